//! Channels that misbehave get an error from the GPU and its driver, and other channels are not
//! affected.

mod past_driver;
mod requests;
mod through_driver;

use anyhow::{Context, ensure};
use peerbar_agent::counters::TrafficWatch;

use self::past_driver::{FAILED_REQUESTS, Fixture};
use self::through_driver::IMPORTED_BYTES;
use crate::Test;
use crate::channel::Channel;

pub(super) use self::requests::Node;

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let gpu = test.gpu()?;
    let channel = Channel::of(&gpu.pci)?;
    let fixture = Fixture::new(guest, gpu, &channel)?;
    let mut watch = TrafficWatch::new(guest);
    watch
        .watch(|| fixture.run())
        .context("a driver that misbehaves")?;
    watch
        .watch(|| through_driver::run(gpu, &channel))
        .context("a program that misbehaves")?;
    let seen = watch.traffic()?;
    ensure!(
        seen.payload() == IMPORTED_BYTES && seen.failures() == FAILED_REQUESTS,
        "{} bytes of payload were moved and {} DMA requests failed, where {IMPORTED_BYTES} and {FAILED_REQUESTS} were right",
        seen.payload(),
        seen.failures()
    );
    Ok(())
}
