//! The content of the root. No version is pinned, because backports move on; the manifest records
//! the versions.

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
    // Tools for building the kernel drivers of this project; the headers bring their compiler
    // along.
    "linux-headers-amd64",
    "make",
    // Programs that a guest runs against the devices.
    "e2fsprogs",
    "fio",
    "iproute2",
    "kmod",
    "nvme-cli",
    "pciutils",
    "strace",
    "udev",
    "xfsprogs",
];

/// Programs that a shell script expects of any Debian; mmdebstrap's variant `extract` treats no
/// package as essential.
pub(crate) const SHELL_PACKAGES: &[&str] = &[
    "base-files",
    "bash",
    // hexdump and column.
    "bsdextrautils",
    // logger.
    "bsdutils",
    "busybox",
    "coreutils",
    "dash",
    "debianutils",
    "diffutils",
    "findutils",
    "grep",
    "gzip",
    "hostname",
    "less",
    // The locale C.UTF-8, ldd and getent.
    "libc-bin",
    "mawk",
    "mount",
    "ncurses-base",
    // For `peerbar ssh-config`.
    "openssh-server",
    "procps",
    "rsync",
    "sed",
    "tar",
    "util-linux",
];

/// Returns all requested packages.
pub(crate) fn packages() -> impl Iterator<Item = &'static str> {
    LAB_PACKAGES.iter().chain(SHELL_PACKAGES).copied()
}

/// Takes the whole of backports, since its QEMU and its firmware must match.
pub(crate) const PREFERENCES: &str =
    "Package: *\\nPin: release n=trixie-backports\\nPin-Priority: 900\\n";

/// The sources of packages.
pub(crate) const SOURCES: [&str; 3] = [SUITE, BACKPORTS, PREFERENCES];

/// Symbolic links that Debian makes in maintainer scripts, which do not run here, and programs that
/// BusyBox replaces: path, and target.
pub(crate) const LINKS: &[(&str, &str)] = &[
    ("usr/bin/awk", "mawk"),
    ("usr/bin/ping", "busybox"),
    ("usr/bin/vi", "busybox"),
    ("usr/bin/which", "which.debianutils"),
];

/// Files that Debian makes in maintainer scripts: path, and text.
pub(crate) const FILES: &[(&str, &str)] = &[
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/bash\n\
         sshd:x:102:65534::/run/sshd:/usr/sbin/nologin\n\
         tcpdump:x:103:65534::/nonexistent:/usr/sbin/nologin\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    ("etc/group", GROUPS),
    ("etc/hostname", "peerbar\n"),
    ("etc/hosts", "127.0.0.1 localhost peerbar\n::1 localhost\n"),
    ("etc/ssh/sshd_config", SSHD),
    // Replaces a copy of the host's.
    ("etc/resolv.conf", "# A guest has no network.\n"),
];

/// The settings of the server that `peerbar ssh-config` starts for each connection, and that has
/// neither a terminal nor a log: its errors go to the client's. The keys are those of the run. The
/// tree belongs to the host's user, so its owners are meaningless (`StrictModes`).
const SSHD: &str = "HostKey /run/peerbar-ssh/host_key\n\
                    AuthorizedKeysFile /run/peerbar-ssh/authorized_keys\n\
                    AuthenticationMethods publickey\n\
                    PermitRootLogin prohibit-password\n\
                    StrictModes no\n\
                    UsePAM no\n\
                    LogLevel ERROR\n\
                    SetEnv LANG=C.UTF-8\n\
                    Subsystem sftp internal-sftp\n";

/// The groups that udev's rules name.
const GROUPS: &str = "root:x:0:\ntty:x:5:\ndisk:x:6:\nlp:x:7:\nkmem:x:15:\ndialout:x:20:\ncdrom:x:24:\ntape:x:26:\n\
                      audio:x:29:\nvideo:x:44:\nsgx:x:101:\nkvm:x:102:\nrender:x:103:\ninput:x:104:\nnogroup:x:65534:\n";

/// Mount points of a guest.
pub(crate) const MOUNT_POINTS: &[&str] = &["dev", "host", "mnt", "proc", "run", "sys", "tmp"];

/// Changes when the processing of the unpacked tree changes.
const STEPS: &str = "depmod";

/// Returns the hash of the recipe: a root of another recipe is another cache entry.
pub(crate) fn key() -> String {
    let mut parts = SOURCES.to_vec();
    parts.push(STEPS);
    parts.extend(packages());
    parts.extend(
        LINKS
            .iter()
            .chain(FILES)
            .flat_map(|(path, content)| [path, content]),
    );
    parts.extend_from_slice(MOUNT_POINTS);
    cache::key(parts)
}
