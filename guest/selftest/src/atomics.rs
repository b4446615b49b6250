//! Many threads, one counter in guest RAM.

use anyhow::ensure;
use peerbar_agent::counters::{Traffic, TrafficWatch};
use peerbar_gds::{Gpu, Kernel, Span};

use crate::Test;

const BLOCKS: u32 = 512;
const THREADS: u32 = 1000;
const ADDS: u64 = BLOCKS as u64 * THREADS as u64;

/// Bytes that each thread moves over the link: it reads the counter and writes it.
const BYTES_OF_AN_ADD: u64 = 2 * 8;

/// Start value of the counter.
const START: u64 = 1 << 40;

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let gpu = test.gpu()?;
    let opened = gpu.open()?;
    let counter = opened.allocate_host(crate::PAGE)?;
    counter.mapping().write(8, &START.to_le_bytes())?;
    let mut watch = TrafficWatch::new(guest);
    let before = watch.watch(|| count(&opened, counter.span(8..16)?))?;
    let mut after = [0; 8];
    counter.mapping().read(8, &mut after)?;
    judge(before, u64::from_le_bytes(after))?;
    judge_route(watch.traffic()?, gpu.number)
}

fn count(gpu: &Gpu, counter: Span<'_>) -> anyhow::Result<u64> {
    let add = Kernel::AtomicAdd { counter, value: 1 };
    Ok(gpu.launch(add, BLOCKS, THREADS)?)
}

fn judge(before: u64, after: u64) -> anyhow::Result<()> {
    ensure!(
        before == START && after == START + ADDS,
        "{BLOCKS} blocks of {THREADS} threads have counted from {before} to {after}; expected from {START} to {}",
        START + ADDS
    );
    Ok(())
}

fn judge_route(traffic: &Traffic, gpu: u32) -> anyhow::Result<()> {
    let (ram, all) = (traffic.payload_to_guest_ram(gpu), traffic.payload());
    let right = ADDS * BYTES_OF_AN_ADD;
    ensure!(
        ram == right && all == right && traffic.failures() == 0,
        "{ADDS} adds should have moved {right} bytes between the GPU and guest RAM; its counters show {ram}, all devices' {all}, \
         {} requests failed",
        traffic.failures()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_add_too_few_is_noticed() {
        assert!(judge(START, START + 512_000).is_ok());
        assert!(judge(START, START + 511_999).is_err());
        assert!(judge(0, 512_000).is_err());
    }
}
