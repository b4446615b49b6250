//! What a GPU and its driver make of those who misbehave: an error for them, and nothing for the others.

mod past_driver;
mod requests;
mod through_driver;

use anyhow::{Context, ensure};

pub(super) use self::requests::Node;

use self::past_driver::{Bench, FAILED_REQUESTS};
use self::through_driver::IMPORTED_BYTES;
use crate::counters::Witness;
use crate::gpu_channel::Channel;
use crate::lab::Lab;

pub(super) fn run(lab: &Lab, gpu: &str) -> anyhow::Result<()> {
    let gpu = lab.gpu(gpu)?;
    let channel = Channel::of(&gpu.pci)?;
    let bench = Bench::new(lab, gpu, &channel)?;
    let mut witness = Witness::new(lab);
    witness
        .watch(|| bench.run())
        .context("a driver that misbehaves")?;
    witness
        .watch(|| through_driver::run(gpu, &channel))
        .context("a program that misbehaves")?;
    let seen = witness.traffic()?;
    ensure!(
        seen.payload() == IMPORTED_BYTES && seen.failures() == FAILED_REQUESTS,
        "{} bytes of payload were moved and {} DMA requests failed, where {IMPORTED_BYTES} and {FAILED_REQUESTS} were right",
        seen.payload(),
        seen.failures()
    );
    Ok(())
}
