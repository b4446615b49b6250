//! The content of the root. No version is pinned, because backports move on; the manifest records the versions.

use crate::cache;

/// The Debian suite of the root.
pub(crate) const SUITE: &str = "trixie";

/// The suite that has a QEMU with a vfio-user client and a kernel with p2pdma.
pub(crate) const BACKPORTS: &str = "trixie-backports";

/// The packages. Their dependencies are included, their recommendations are not.
pub(crate) const LAB_PACKAGES: &[&str] = &[
    // The virtual machine.
    "linux-image-amd64",
    "qemu-system-x86",
    "seabios",
    // What the kernel's drivers of our own are built with; the headers bring their compiler along.
    "linux-headers-amd64",
    "make",
    // What a guest runs against the devices.
    "e2fsprogs",
    "fio",
    "kmod",
    "nvme-cli",
    "pciutils",
    "xfsprogs",
];

/// What a shell script expects of any Debian; nothing is essential to mmdebstrap's variant `extract`.
pub(crate) const SHELL_PACKAGES: &[&str] = &[
    "base-files",
    "bash",
    "busybox",
    "coreutils",
    "dash",
    "debianutils",
    "diffutils",
    "findutils",
    "grep",
    "gzip",
    "hostname",
    "mawk",
    "mount",
    "ncurses-base",
    "procps",
    "sed",
    "tar",
    "util-linux",
];

/// All packages that are asked for.
pub(crate) fn packages() -> impl Iterator<Item = &'static str> {
    LAB_PACKAGES.iter().chain(SHELL_PACKAGES).copied()
}

/// Takes the whole of backports, since its QEMU and its firmware must be of one age.
pub(crate) const PREFERENCES: &str =
    "Package: *\\nPin: release n=trixie-backports\\nPin-Priority: 900\\n";

/// Symbolic links that Debian makes in maintainer scripts, which do not run here: where, and to what.
pub(crate) const LINKS: &[(&str, &str)] = &[
    ("usr/bin/awk", "mawk"),
    ("usr/bin/which", "which.debianutils"),
];

/// Files that Debian makes in maintainer scripts: where, and their text.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
    ("etc/group", "root:x:0:\n"),
    ("etc/hostname", "peerbar\n"),
];

/// Folders that a guest mounts something on; the root is read-only there.
pub(crate) const MOUNT_POINTS: &[&str] = &["dev", "mnt", "proc", "run", "sys", "tmp"];

/// The hash of the recipe: a root of another recipe is another cache entry.
pub(crate) fn key() -> String {
    let mut parts = vec![SUITE, BACKPORTS, PREFERENCES];
    parts.extend(packages());
    parts.extend(
        LINKS
            .iter()
            .chain(FILES)
            .flat_map(|(place, content)| [place, content]),
    );
    parts.extend_from_slice(MOUNT_POINTS);
    cache::key(parts)
}
