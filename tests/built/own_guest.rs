//! The guest of a user: their own QEMU, kernel and initramfs, not peerbar's.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use peerbar_lab::artifacts::{Artifacts, Own};
use peerbar_lab::guest_needs::GuestNeeds;
use peerbar_lab::signals;

use crate::PEERBAR;

/// Loads the drivers, and then tries each disk. With a GPU and the tools root, a disk writes to the
/// GPU's memory from peer to peer.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
# What the kernel says may come amid a line of the results.
dmesg -n 1
while read -r name needs; do insmod "/modules/$name.ko"; done < /modules/index
disks=$(grep -l 0x010802 /sys/bus/pci/devices/*/class | wc -l)
left=300
until [ "$(ls /dev/nvme?n1 2> /dev/null | wc -l)" = "$disks" ] || [ "$left" = 0 ]; do usleep 100000; left=$((left - 1)); done
for disk in /dev/nvme?n1; do
    serial=$(tr -d ' ' < "/sys/block/${disk#/dev/}/device/serial")
    text=$(dd if="$disk" bs=16 count=1 2> /dev/null | tr -d '\0')
    echo "RESULT $serial has: ${text:-nothing}"
    head -c 1048576 /dev/urandom > /tmp/written
    dd if=/tmp/written of="$disk" bs=128K seek=8 oflag=direct 2> /dev/null
    dd if="$disk" of=/tmp/read bs=128K skip=8 count=8 iflag=direct 2> /dev/null
    cmp /tmp/written /tmp/read && echo "RESULT $serial reads what was written"
    printf 'a guest was here' | dd of="$disk" conv=fsync 2> /dev/null
    dd if="$disk" of=/dev/null bs=4K skip=4096 count=1 iflag=direct 2> /dev/null || echo "RESULT $serial has a bad block"
done
for gpu in $(dirname $(grep -l 0x10f0 /sys/bus/pci/devices/*/device) 2> /dev/null); do
    upstream=$(realpath "$gpu/../..")
    echo "RESULT GPU below $(cat "$upstream/vendor"):$(cat "$upstream/device") below $(basename "$(realpath "$upstream/..")")"
    mkdir -p /tools
    mount -t 9p -o trans=virtio,version=9p2000.L,ro tools /tools || break
    for folder in dev proc sys; do mount -o bind "/$folder" "/tools/$folder"; done
    mount -t tmpfs tmpfs /tools/tmp
    cd /tools/tmp
    chroot /tools fio --name=p2p --filename=/dev/nvme1n1 --direct=1 --rw=write --bs=128k --offset=16m --size=8m \
        --iomem=mmapshared:$gpu/p2pmem/allocate --verify=crc32c --output-format=terse > /dev/null && echo "RESULT GPU and disk are peers"
done
echo "RESULT p2pmem: $(cat /sys/bus/pci/devices/*/p2pmem/published)"
poweroff -f
"#;

/// The guest's files in the test's folder.
pub(crate) struct OwnGuest {
    /// The path on which `qemu-system-x86_64` and our programs are found.
    path: String,
    kernel: PathBuf,
    initrd: PathBuf,
    /// They stay in the cache as long as this lives.
    artifacts: Artifacts,
}

impl OwnGuest {
    /// Makes it in `folder`.
    pub(crate) fn make(folder: &Path) -> anyhow::Result<Self> {
        Self::with_modules(folder, &["nvme"])
    }

    /// Makes it in `folder` with these modules of the kernel.
    pub(crate) fn with_modules(folder: &Path, modules: &[&str]) -> anyhow::Result<Self> {
        let programs = PEERBAR.parent().context("no folder of programs")?;
        let agent = programs.join("peerbar-agent");
        let needs = GuestNeeds {
            modules: modules.iter().map(|&name| name.to_owned()).collect(),
            tools: true,
            ..GuestNeeds::default()
        };
        let artifacts = Artifacts::prepare(&Own::default(), &needs, &agent, &signals::NONE);
        let artifacts = artifacts.context("the programs are not built")?;
        let root = artifacts.root.as_ref().context("no root")?.path();
        let bin = folder.join("bin");
        fs::create_dir_all(&bin)?;
        // With a thread for each virtual processor, QEMU may keep a stale breakpoint
        // (docs/src/reliability.md, Known problems).
        let words = ["-accel", "tcg,thread=single"];
        write_script(
            &bin.join("qemu-system-x86_64"),
            &wrapper(&artifacts, &words)?,
        )?;
        let initrd = folder.join("initrd");
        let mut bytes = fs::read(&artifacts.guest.initramfs)?;
        bytes.extend(archive(root, &folder.join("tree"))?);
        fs::write(&initrd, bytes)?;
        let path = std::env::var("PATH").unwrap_or_default();
        Ok(Self {
            path: format!("{}:{}:{path}", bin.display(), programs.display()),
            kernel: artifacts.guest.kernel.clone(),
            initrd,
            artifacts,
        })
    }

    /// Makes the same guest for a user without a suitable QEMU.
    pub(crate) fn without_qemu(mut self) -> Self {
        let (_, rest) = self.path.split_once(':').unwrap_or_default();
        self.path = rest.to_owned();
        self
    }

    /// Returns the guest's tools root.
    pub(crate) fn tools(&self) -> anyhow::Result<&Path> {
        let root = self.artifacts.root.as_ref();
        Ok(root.context("no root")?.path())
    }

    /// Returns a shell in `folder` that runs `commands`, as a user of this guest has it.
    pub(crate) fn shell(&self, folder: &Path, commands: &str) -> Command {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", commands])
            .current_dir(folder)
            .stdin(Stdio::null());
        shell.env("PATH", &self.path);
        shell
            .env("KERNEL", &self.kernel)
            .env("INITRD", &self.initrd);
        shell
    }

    /// Returns the output after `RESULT`, by lines, of a guest that `commands` start.
    pub(crate) fn said(&self, folder: &Path, commands: &str) -> anyhow::Result<Vec<String>> {
        let limited = format!(
            "exec timeout --foreground 600 sh -ec '{}'",
            commands.replace('\'', r"'\''")
        );
        let output = self.shell(folder, &limited).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{commands}: {}: {said}{text}",
            output.status
        );
        let lines = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("RESULT "));
        Ok(lines.map(str::to_owned).collect())
    }
}

/// Returns a script that starts the cache's QEMU with `own` arguments before those that it gets.
pub(crate) fn wrapper(artifacts: &Artifacts, own: &[&str]) -> anyhow::Result<String> {
    let command = artifacts.qemu.command();
    let mut words = vec!["exec env".to_owned()];
    for (name, value) in command.get_envs() {
        let value = value.context("an unset variable")?;
        words.push(format!(
            "{}='{}'",
            name.to_string_lossy(),
            value.to_string_lossy()
        ));
    }
    words.push(format!("'{}'", command.get_program().to_string_lossy()));
    words.extend(
        command
            .get_args()
            .map(|word| format!("'{}'", word.to_string_lossy())),
    );
    words.extend(own.iter().map(|&word| word.to_owned()));
    Ok(format!("#!/bin/sh\n{} \"$@\"\n", words.join(" ")))
}

/// Returns an archive with a shell of `root` and [`INIT`], which the kernel unpacks over one with
/// modules.
fn archive(root: &Path, tree: &Path) -> anyhow::Result<Vec<u8>> {
    const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
    const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";
    let copies = [
        ("usr/bin/busybox", "bin/busybox"),
        (LOADER, "lib64/ld-linux-x86-64.so.2"),
        (
            "usr/lib/x86_64-linux-gnu/libc.so.6",
            "lib/x86_64-linux-gnu/libc.so.6",
        ),
        (
            "usr/lib/x86_64-linux-gnu/libresolv.so.2",
            "lib/x86_64-linux-gnu/libresolv.so.2",
        ),
    ];
    for (from, to) in copies {
        let to = tree.join(to);
        fs::create_dir_all(to.parent().context("no folder")?)?;
        fs::copy(root.join(from), &to).with_context(|| format!("cannot copy {from}"))?;
    }
    write_script(&tree.join("init"), INIT)?;
    let names = "init\nbin\nbin/busybox\nlib64\nlib64/ld-linux-x86-64.so.2\nlib\nlib/x86_64-linux-gnu\n\
                 lib/x86_64-linux-gnu/libc.so.6\nlib/x86_64-linux-gnu/libresolv.so.2\n";
    let mut cpio = Command::new(root.join(LOADER))
        .arg("--library-path")
        .arg(root.join(LIBRARIES))
        .arg(root.join("usr/bin/busybox"))
        .args(["cpio", "-o", "-H", "newc"])
        .current_dir(tree)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    cpio.stdin
        .take()
        .context("no stdin")?
        .write_all(names.as_bytes())?;
    let output = cpio.wait_with_output()?;
    ensure!(output.status.success(), "cpio: {}", output.status);
    Ok(output.stdout)
}

/// Another process writes it: a writable descriptor in the child of another test would prevent the
/// script's start.
pub(crate) fn write_script(path: &Path, text: &str) -> anyhow::Result<()> {
    // Another process writes it: a writable descriptor in the child of another test would prevent
    // its start.
    let draft = path.with_extension("draft");
    fs::write(&draft, text)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755))?;
    let copied = Command::new("cp")
        .arg("-p")
        .arg(&draft)
        .arg(path)
        .status()?;
    ensure!(copied.success(), "cannot write {}", path.display());
    Ok(fs::remove_file(&draft)?)
}
