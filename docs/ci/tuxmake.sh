#!/bin/sh
# TuxMake, in a kernel tree: builds it for peerbar and runs the demo on it. peerbar takes the place of
# TuxRun, whose guests lack the devices. PEERBAR is the folder of peerbar's sources, after scripts/build.
set -eu
PATH=$PEERBAR/target/peerbar:$PATH
tuxmake --target-arch x86_64 --kconfig x86_64_defconfig --kconfig-add "$PEERBAR/images/kernel/scenarios.config" \
    --build-dir tuxmake --output-dir tuxmake-results config kernel modules
peerbar run demo --kernel tuxmake
