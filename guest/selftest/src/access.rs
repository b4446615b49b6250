//! Loads and stores through a mapping of GPU memory by the kernel. They fail with EFAULT where a
//! program's own accesses would end it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use anyhow::{Context, bail, ensure};
use peerbar_gds::Mapping;
use rustix::fs::{MemfdFlags, memfd_create};

/// Stores `byte` at `offset`. Returns `false` if the memory behind the mapping is gone.
pub(super) fn store(mapping: &Mapping, offset: u64, byte: u8) -> anyhow::Result<bool> {
    let file = file()?;
    file.write_all_at(&[byte], 0)?;
    let count = mapping.read_file(offset..offset.saturating_add(1), &file, 0);
    is_there(count).context("a store through a mapping")
}

/// Checks that accesses to the first and the last byte find no memory.
pub(super) fn is_gone(mapping: &Mapping) -> anyhow::Result<()> {
    for offset in [0, mapping.size().saturating_sub(1)] {
        let count = mapping.write_file(offset..offset.saturating_add(1), &file()?, 0);
        let is_there = is_there(count).context("a load through a mapping")?;
        ensure!(!is_there, "byte {offset} of a mapping still shows memory");
    }
    Ok(())
}

/// Returns a file that the kernel copies to and from.
fn file() -> anyhow::Result<File> {
    let file = memfd_create("access", MemfdFlags::CLOEXEC).context("memfd_create")?;
    Ok(file.into())
}

fn is_there(count: io::Result<u64>) -> anyhow::Result<bool> {
    match count {
        Ok(1) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(false),
        other => bail!("it ends with {other:?}"),
    }
}
