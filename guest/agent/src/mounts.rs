//! File systems that a guest needs before anything else.

use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::symlink;

use anyhow::Context;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

/// Links that programs expect in `/dev`, and that no driver makes.
const LINKS: [(&str, &str); 4] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];

/// Mounts `/sys`.
pub(crate) fn sysfs() -> anyhow::Result<()> {
    attach("sysfs", "/sys", "sysfs", None)
}

/// Mounts `/proc`, `/dev`, `/tmp` and `/run`.
pub(crate) fn essential() -> anyhow::Result<()> {
    attach("proc", "/proc", "proc", None)?;
    attach("devtmpfs", "/dev", "devtmpfs", None)?;
    if is_supported("devpts")? {
        attach(
            "devpts",
            "/dev/pts",
            "devpts",
            Some(c"mode=620,ptmxmode=666"),
        )?;
    }
    scratch("/dev/shm")?;
    scratch("/tmp")?;
    attach("tmpfs", "/run", "tmpfs", Some(c"mode=755"))?;
    for (link, target) in LINKS {
        symlink(target, link).with_context(|| format!("cannot create {link}"))?;
    }
    Ok(())
}

/// Mounts the kernel's tracing file system at its usual place.
pub(crate) fn tracing() -> anyhow::Result<()> {
    attach("tracefs", "/sys/kernel/tracing", "tracefs", None)
}

/// Mounts the kernel's file systems for debugging that it was built with.
pub(crate) fn debugging() -> anyhow::Result<()> {
    as_far_as_supported(&[
        ("tracefs", "/sys/kernel/tracing"),
        ("debugfs", "/sys/kernel/debug"),
    ])
}

/// Mounts the file systems for kernel configuration and huge pages that the kernel was built with.
pub(crate) fn for_programs() -> anyhow::Result<()> {
    as_far_as_supported(&[
        ("configfs", "/sys/kernel/config"),
        ("hugetlbfs", "/dev/hugepages"),
    ])
}

fn as_far_as_supported(mounts: &[(&str, &str)]) -> anyhow::Result<()> {
    for &(kind, target) in mounts {
        if is_supported(kind)? {
            attach(kind, target, kind, None)?;
        }
    }
    Ok(())
}

/// Mounts an empty folder in memory that anyone may write.
pub(crate) fn scratch(target: &str) -> anyhow::Result<()> {
    attach("tmpfs", target, "tmpfs", Some(c"mode=1777"))
}

/// Returns `true` if the kernel has the file system `kind`.
pub(crate) fn is_supported(kind: &str) -> anyhow::Result<bool> {
    let list = fs::read_to_string("/proc/filesystems").context("cannot read /proc/filesystems")?;
    Ok(list
        .lines()
        .any(|line| line.split_whitespace().last() == Some(kind)))
}

fn attach(source: &str, target: &str, kind: &str, options: Option<&CStr>) -> anyhow::Result<()> {
    fs::create_dir_all(target).with_context(|| format!("cannot create {target}"))?;
    match mount(source, target, kind, MountFlags::empty(), options) {
        // The kernel itself mounts devtmpfs if it is configured to do so.
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot mount {kind} on {target}")),
    }
}
