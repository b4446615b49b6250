//! Fences that a program has put on a dma-buf and does not signal.

use std::time::Duration;

use anyhow::{Context, ensure};

use crate::expect::driver_refused;
use crate::{Test, vgem};

const BYTES: u64 = 64 << 10;

/// Time limit for the return of the memory.
const TIME_OUT: Duration = Duration::from_secs(30);

/// The time that the driver would need to return it. vgem's fences expire 10 s after they are made,
/// and a revoke takes half of that.
const MOMENT: Duration = Duration::from_millis(300);

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let gpu = test.gpu()?;
    let opened = gpu.open()?;
    guest.load_module("vgem")?;
    let card = guest.uevents.wait_for(TIME_OUT, vgem::open)?;
    let before = gpu.free_vram()?;
    let buffer = opened.allocate(BYTES)?;
    let dma_buf = buffer.export()?;
    let fences = [
        vgem::Fence::on(&card, &dma_buf)?,
        vgem::Fence::on(&card, &dma_buf)?,
    ];
    driver_refused(buffer.revoke(), libc::ETIMEDOUT).context("a revoke")?;
    drop((dma_buf, buffer));
    let uevents = &guest.uevents;
    for fence in fences {
        // A return that comes too early would take effect after a moment.
        let returned = uevents.wait_for(MOMENT, || gpu.check_free_vram(before));
        fence.signal()?;
        ensure!(
            returned.is_err(),
            "{BYTES} bytes of VRAM were free again while a fence was still on them"
        );
    }
    uevents.wait_for(TIME_OUT, || gpu.check_free_vram(before))?;
    Ok(())
}
