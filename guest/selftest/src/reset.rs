//! A function-level reset loses no command's result and no buffer's contents. The command that it
//! interrupts may fail, and then reports that.

mod interrupted;

use std::time::Duration;

use anyhow::Context;
use peerbar_agent::devices::reset;
use peerbar_gds::{Command, Fence, Gpu, Span};

use crate::Test;
use crate::expect::same;
use crate::load::{GPU_PAGE, Load, memory_is_back};

const RESETS: u32 = 4;
const THREADS: u64 = 2;
const MARK: u64 = 0x0102_0304_0506_0708;

/// Number of commands that wait for their turn when the reset comes, and the size of each in bytes.
const QUEUED: usize = 64;
const QUEUED_BYTES: u64 = 8 << 20;

const TIME_OUT: Duration = Duration::from_secs(20);

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let gpu = test.gpu()?;
    let opened = gpu.open()?;
    let kept = opened.allocate(GPU_PAGE)?;
    opened.fill(kept.span(..)?, MARK)?;
    let host = opened.allocate_host(QUEUED_BYTES)?;
    let vram = opened.allocate(QUEUED_BYTES)?;
    let file = gpu.pci.join("reset");
    for number in 1..=RESETS {
        let load = Load::start(&opened, THREADS);
        let fences = queue(&opened, vram.span(..)?, host.span(..)?)?;
        reset(&file)?;
        for (index, fence) in fences.iter().enumerate() {
            fence
                .wait(TIME_OUT)
                .with_context(|| format!("command {index} in line at reset {number}"))?;
        }
        load.end()
            .with_context(|| format!("commands across reset {number}"))?;
    }
    let expected = opened.allocate(GPU_PAGE)?;
    opened.fill(expected.span(..)?, MARK)?;
    same(&opened, kept.span(..)?, expected.span(..)?)
        .with_context(|| format!("VRAM after {RESETS} resets"))?;
    drop((kept, expected, host, vram, opened));
    interrupted::run(guest, gpu)?;
    memory_is_back(guest, gpu)
}

fn queue(gpu: &Gpu, from: Span<'_>, to: Span<'_>) -> anyhow::Result<Vec<Fence>> {
    let command = Command::Copy { from, to };
    let submit = |_| Ok(gpu.submit(&command)?);
    (0..QUEUED).map(submit).collect()
}
