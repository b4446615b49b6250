//! Fences that a program has put on a dma-buf and does not signal.

use super::{Outcome, Run};
use anyhow::{bail, ensure};
use peerbar_gds::Error;
use peerbar_report::{GpuFences, Measure};
use std::time::Duration;

use crate::guest_context::GuestContext;
use crate::vgem;

const BYTES: u64 = 64 << 10;

/// How long the return of the memory may take.
const PATIENCE: Duration = Duration::from_secs(30);

impl Run for GpuFences {
    fn run(&self, guest: &GuestContext, _measure: &mut Measure) -> anyhow::Result<Outcome> {
        let gpu = guest.gpu(&self.gpu)?;
        let opened = gpu.open()?;
        guest.load_module("vgem")?;
        let card = guest.uevents.wait_for(PATIENCE, vgem::open)?;
        let before = gpu.free_vram()?;
        let buffer = opened.allocate(BYTES)?;
        let dma_buf = buffer.export()?;
        let fences = [
            vgem::Fence::on(&card, &dma_buf)?,
            vgem::Fence::on(&card, &dma_buf)?,
        ];
        match buffer.revoke() {
            Err(Error::Driver { source, .. }) if source.raw_os_error() == Some(libc::ETIMEDOUT) => {
            }
            other => bail!("a revoke was to end with ETIMEDOUT, but: {other:?}"),
        }
        drop((dma_buf, buffer));
        for fence in fences {
            let meanwhile = gpu.free_vram()?;
            fence.signal()?;
            ensure!(
                meanwhile == before - BYTES,
                "{before} bytes of VRAM were free, and {meanwhile} while a fence was still on {BYTES} of them"
            );
        }
        let uevents = &guest.uevents;
        uevents.wait_for(PATIENCE, || gpu.check_free_vram(before))?;
        Ok(Outcome::Passed)
    }
}
