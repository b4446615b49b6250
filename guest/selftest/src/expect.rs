//! Expectations of tests about the GPU, its driver and the kernel.

use std::fmt::Debug;
use std::io;

use anyhow::{bail, ensure};
use peerbar_gds::{Buffer, Error, Gpu, Result, Span};

use crate::load::GPU_PAGE;

const MARK: u64 = 0x7070_7070_7070_7070;

/// Checks that the kernel has refused the request with `errno`.
pub(crate) fn refused<T: Debug>(outcome: io::Result<T>, errno: i32) -> anyhow::Result<()> {
    match outcome {
        Err(error) if error.raw_os_error() == Some(errno) => Ok(()),
        other => bail!("it ends with {other:?}, not with errno {errno}"),
    }
}

/// Checks that the GPU's driver has refused the request with `errno`.
pub(crate) fn driver_refused<T: Debug>(outcome: Result<T>, errno: i32) -> anyhow::Result<()> {
    match outcome {
        Err(Error::Driver { source, .. }) => refused::<()>(Err(source), errno),
        other => bail!("it ends with {other:?}, not with errno {errno} of the driver"),
    }
}

/// Checks that the GPU finds the same bytes in both.
pub(crate) fn same(gpu: &Gpu, seen: Span<'_>, right: Span<'_>) -> anyhow::Result<()> {
    let different = gpu.compare(seen, right)?;
    ensure!(different.is_none(), "byte {different:?} of it is wrong");
    Ok(())
}

/// Checks that the GPU allocates, fills, copies and compares memory.
pub(crate) fn works(gpu: &Gpu) -> anyhow::Result<()> {
    let (first, second) = (gpu.allocate(GPU_PAGE)?, gpu.allocate(GPU_PAGE)?);
    gpu.fill(first.span(..)?, MARK)?;
    gpu.copy(first.span(..)?, second.span(..)?)?;
    same(gpu, second.span(..)?, first.span(..)?)
}

/// Allocates all free memory.
pub(crate) fn take_all(gpu: &Gpu) -> Vec<Buffer> {
    let mut buffers = Vec::new();
    for size in [16 << 20, 1 << 20, GPU_PAGE] {
        while let Ok(buffer) = gpu.allocate(size) {
            buffers.push(buffer);
        }
    }
    buffers
}

/// Returns the total size of `buffers` in bytes.
pub(crate) fn sizes(buffers: &[Buffer]) -> u64 {
    buffers.iter().map(Buffer::size).sum()
}
