//! The scenario's additions to the guest's root: a driver, a package, files; and that programs find
//! them there.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::thread;

use tempfile::TempDir;

use crate::launched::Launched;

const SCENARIO: &str = r#"
name = "guest-root"
timeout = "2m"
udev = true
packages = ["tree"]
files = { "bin/hello" = "host/hello", "/opt/host" = "host" }

[machine]
iommu = "intel-passthrough"
hugepages = "32M"
network = true

[[module]]
name = "vfio-pci"

[[module]]
path = "driver"
parameters = "answer=42 client={disk0:pci}"

[[nvme]]
name = "disk0"
namespaces = [{ ram = "16M" }]

[[gpu]]
name = "gpu0"
vram = "8M"

[[share]]
path = "host"
at = "/mnt/read"

[[share]]
path = "out"
at = "/srv/written/here"
writable = true

[[check]]
name = "files and a package"
kind = "command"
run = """
set -e
test "$(hello)" = 'from the host'
stat --format=%a /opt/host/hello /usr/bin/hello
readlink /opt/host/link
echo more >> /opt/host/hello
tree --version
"""
expect = ["750\n750\n", "hello\n", "tree v"]
show = true

[[check]]
name = "the driver, and other modules"
kind = "command"
run = """
set -e
cat /sys/module/answering/parameters/answer
test "$(cat /sys/module/answering/parameters/client)" = {disk0:pci}
rmmod answering
modprobe answering answer=43
cat /sys/module/answering/parameters/answer
modprobe loop
ls /dev/loop-control
# The kernel loads what it needs by itself, and what there is not fails at once.
test ! -d /sys/module/ext4
mkfs.ext4 -q {disk0:disk}
mkdir /disk
mount {disk0:disk} /disk
grep -c '{disk0:disk} /disk ext4' /proc/mounts
umount /disk
timeout 20 mount -t absent {disk0:disk} /disk 2>&1 || echo $?
"""
expect = ["42\n", "43\n", "/dev/loop-control\n1\n", "unknown filesystem type 'absent'", "\n32\n"]

[[check]]
name = "soft dependencies, and modprobe of peerbar's own"
kind = "command"
run = """
set -e
cd /sys/module
cat vfio_iommu_type1/parameters/allow_unsafe_interrupts
rmmod vfio_pci vfio_pci_core vfio_iommu_type1 vfio
modprobe vfio-pci
cat vfio_iommu_type1/parameters/allow_unsafe_interrupts
modprobe peerbar_gpu
rmmod peerbar_gpu
modprobe peerbar_gpu_pin_test
ls -d peerbar_gpu
"""
expect = ["Y\nY\npeerbar_gpu\n"]

[[check]]
name = "what programs expect"
kind = "command"
run = """
set -e
bash -c 'cat <(echo by /dev/fd)'
echo through > /dev/stdout
test -c /dev/pts/ptmx -a -c /dev/ptmx
touch /dev/shm/x /usr/x /tmp/x /run/x
test "$(locale charmap)" = UTF-8
getent hosts localhost
hostname
ip -brief address show lo
test -d /sys/kernel/debug/block -a -e /sys/kernel/tracing/trace
grep Huge /proc/meminfo
awk '$2 ~ /kernel.config|huge/ { print $2, $3 }' /proc/mounts
grep -x CONFIG_PCI_P2PDMA=y /boot/config-$(uname -r)
logger hello
echo a b | column -t
udevadm settle
readlink --canonicalize /dev/disk/by-id/nvme-*disk0
"""
expect = ["by /dev/fd", "through\n", "127.0.0.1/8", "peerbar\n", "/sys/kernel/config configfs\n",
    "/dev/hugepages hugetlbfs\n", "P2PDMA=y\na  b\n", "/dev/nvme0n1"]
matches = ["HugePages_Free: +16"]

[[check]]
name = "folders of the host"
kind = "command"
run = """
set -e
test "$(/mnt/read/hello)" = 'from the host'
touch /mnt/read/new 2>&1 || true
echo from the guest > /srv/written/here/file
"""
expect = ["Read-only file system"]

[[check]]
name = "the network"
kind = "command"
run = """
set -e
bash -c 'cat < /dev/tcp/10.0.2.2/PORT'
cat /etc/resolv.conf
ip -brief address show scope global
ip route show default
ping -c 1 10.0.2.2
"""
expect = ["from the loopback interface\n", "nameserver 10.0.2.3\n", "10.0.2.15/24", "via 10.0.2.2", "1 packets received"]

[[check]]
name = "tools to work with"
kind = "command"
run = """
set -e
echo text | less
printf 'ab' | hexdump -C
vi --help 2>&1 | head -1
rsync --version | head -1
test -x /usr/sbin/sshd
"""
expect = ["text\n", "61 62", "BusyBox", "rsync  version"]
"#;

const DRIVER: &str = r#"
#include <linux/module.h>

static int answer = 1;
module_param(answer, int, 0444);
static char *client = "nobody";
module_param(client, charp, 0444);
MODULE_PARM_DESC(answer, "what is read back");
MODULE_DESCRIPTION("A module with a parameter");
MODULE_LICENSE("GPL");
"#;

/// Makes a folder with the scenario and the files that it names. `driver` is the driver's source,
/// and the guest connects to the `port` of the host.
fn folder(driver: &str, port: u16) -> anyhow::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("host"))?;
    fs::create_dir(at("driver"))?;
    fs::create_dir(at("out"))?;
    let scenario = SCENARIO.replace("PORT", &port.to_string());
    fs::write(at("root.toml"), scenario)?;
    fs::write(at("host/hello"), "#!/bin/sh\necho from the host\n")?;
    fs::write(at("driver/answering.c"), driver)?;
    fs::write(at("driver/Makefile"), "obj-m := answering.o\n")?;
    fs::set_permissions(at("host/hello"), fs::Permissions::from_mode(0o750))?;
    symlink("hello", at("host/link"))?;
    Ok(folder)
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn guest_has_what_its_scenario_brings() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (mut guest, _) = listener.accept().unwrap();
        guest.write_all(b"from the loopback interface\n").unwrap();
    });
    let folder = folder(DRIVER, port).unwrap();
    let mut run = Launched::start(folder, &["run", "root.toml"]).unwrap();
    let (code, results, progress) = run.end().unwrap();
    assert_eq!(code, Some(0), "{results}{progress}");
    assert!(
        progress.contains("files and a package: tree v"),
        "{progress}"
    );
    assert!(!progress.contains("/dev/loop-control"), "{progress}");
    let started = run.kept("started.json").unwrap();
    assert!(started.contains("\"tree\": \""), "{started}");
    let staged = run.folder.path().join("runs/latest/files/usr/bin/hello");
    assert!(staged.is_file(), "{}", staged.display());
    let written = fs::read_to_string(run.folder.path().join("out/file")).unwrap();
    assert_eq!(written, "from the guest\n");
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn build_error_of_a_driver_is_shown_before_a_boot() {
    let broken = DRIVER.replace("= 1;", "= nothing;");
    let mut run = Launched::start(folder(&broken, 1).unwrap(), &["run", "root.toml"]).unwrap();
    let (code, results, progress) = run.end().unwrap();
    assert_eq!(code, Some(2), "{results}{progress}");
    let complaint = "driver/answering.c:4:21: error: ‘nothing’ undeclared";
    assert!(progress.contains(complaint), "{progress}");
    assert!(
        progress.contains("static int answer = nothing;"),
        "{progress}"
    );
    let runs = run.folder.path().join("runs");
    assert!(!Path::new(&runs).exists(), "{progress}");
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn what_the_host_lacks_is_named_with_its_line() {
    for (from, to, words) in [
        (
            "host/hello\"",
            "host/hallo\"",
            "root.toml:6: `files`: host/hallo cannot be read",
        ),
        (
            "\"driver\"",
            "\"drover\"",
            "root.toml:17: `path`: drover is not a folder",
        ),
        (
            "\"tree\"",
            "\"Tree\"",
            "root.toml:5: `packages`: invalid package name `Tree`",
        ),
        (
            "\"out\"",
            "\"owt\"",
            "`path`: owt is not a folder of the host",
        ),
    ] {
        let folder = folder(DRIVER, 1).unwrap();
        let scenario = SCENARIO.replacen(from, to, 1);
        fs::write(folder.path().join("root.toml"), scenario).unwrap();
        let mut run = Launched::start(folder, &["run", "root.toml"]).unwrap();
        let (code, _, progress) = run.end().unwrap();
        assert_eq!(code, Some(2), "{progress}");
        assert!(progress.contains(words), "{progress}");
    }
}
