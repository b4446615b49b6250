//! GPU memory that an adapter's driver must not register.

use peerbar_gds::{ExportPolicy, Gpu};
use peerbar_verbs::{AccessFlags, Region};

use super::memory::{PAGE, VRAM_ADDRESS};
use super::refusals::Fixture;
use super::report::{AddResult, refused};

/// Number of pages of a buffer.
const PAGES: u64 = 16;
const BYTES: u64 = PAGES * PAGE;

/// Sends the adapter `nic` requests for memory of `gpu` that it must refuse. `add` gets each result.
pub(crate) fn run(nic: &str, gpu: &Gpu, add: AddResult<'_>) -> anyhow::Result<()> {
    let fixture = Fixture::new(nic)?;
    add("more than the dma-buf has", longer(&fixture, gpu));
    add("dma-buf that can be revoked", revocable(&fixture, gpu));
    Ok(())
}

fn longer(fixture: &Fixture, gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(BYTES)?;
    let dma_buf = buffer.export_as(ExportPolicy::Pinned)?;
    let size = buffer.size().saturating_add(PAGE);
    let registered = Region::of_dma_buf(
        &fixture.ends.domain,
        dma_buf,
        size,
        VRAM_ADDRESS,
        AccessFlags::ALL,
    );
    refused(registered, libc::EINVAL)
}

/// Checks that revocable memory is refused: the kernel's driver must pin memory, which its exporter
/// does not allow.
fn revocable(fixture: &Fixture, gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(BYTES)?;
    let dma_buf = buffer.export_as(ExportPolicy::Revocable)?;
    let size = buffer.size();
    let registered = Region::of_dma_buf(
        &fixture.ends.domain,
        dma_buf,
        size,
        VRAM_ADDRESS,
        AccessFlags::ALL,
    );
    refused(registered, libc::EOPNOTSUPP)
}
