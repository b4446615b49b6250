//! File systems that a guest needs before anything else.

use std::ffi::CStr;
use std::fs;

use anyhow::Context;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

/// Mounts `/sys`.
pub(crate) fn sysfs() -> anyhow::Result<()> {
    attach("sysfs", "/sys", "sysfs", None)
}

/// Mounts `/proc`, `/dev`, `/tmp` and `/run`.
pub(crate) fn essential() -> anyhow::Result<()> {
    attach("proc", "/proc", "proc", None)?;
    attach("devtmpfs", "/dev", "devtmpfs", None)?;
    attach("tmpfs", "/tmp", "tmpfs", Some(c"mode=1777"))?;
    attach("tmpfs", "/run", "tmpfs", Some(c"mode=755"))
}

/// Mounts the kernel's tracing where it belongs.
pub(crate) fn tracing() -> anyhow::Result<()> {
    attach("tracefs", "/sys/kernel/tracing", "tracefs", None)
}

fn attach(source: &str, target: &str, kind: &str, options: Option<&CStr>) -> anyhow::Result<()> {
    fs::create_dir_all(target).with_context(|| format!("cannot create {target}"))?;
    match mount(source, target, kind, MountFlags::empty(), options) {
        // The kernel mounts devtmpfs by itself where it is configured so.
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot mount {kind} on {target}")),
    }
}
