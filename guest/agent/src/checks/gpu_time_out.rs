//! A launch that is longer than the GPU permits, beside programs that want little.

use super::{CheckOutcome, Run};
use anyhow::{Context, bail, ensure};
use peerbar_gds::{Command, Error, Fault, Gpu, Kernel};
use peerbar_report::{GpuTimeOut, Measure};
use std::time::Duration;

use crate::guest_context::GuestContext;

/// The most threads that a launch may have.
const BLOCKS: u32 = 1 << 14;
const THREADS: u32 = 1024;
const ALL_ADDS: u64 = BLOCKS as u64 * THREADS as u64;

/// How long the launch may take to fail: longer than a sensible `job-timeout`.
const TIME_OUT: Duration = Duration::from_secs(60);

const BYTES: u64 = 64 << 10;
const MARK: u64 = 0x4d4d_4d4d_4d4d_4d4d;

impl Run for GpuTimeOut {
    fn run(&self, guest: &GuestContext, _measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let gpu = guest.gpu(&self.gpu)?;
        let (long, other) = (gpu.open()?, gpu.open()?);
        let counter = long.allocate_host(super::PAGE)?;
        let add = Kernel::AtomicAdd {
            counter: counter.span(..8)?,
            value: 1,
        };
        let launch = long.submit(&Command::Launch {
            kernel: add,
            grid: BLOCKS,
            block: THREADS,
        })?;
        small_work(&other).context("another channel during the launch")?;
        match launch.wait(TIME_OUT) {
            Err(Error::Fault(Fault::TimeOut)) => {}
            other => bail!("the launch was to end with fault 7, but: {other:?}"),
        }
        let added = || -> anyhow::Result<u64> {
            let mut bytes = [0; 8];
            counter.mapping().read(0, &mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let left = added()?;
        ensure!(
            left > 0 && left < ALL_ADDS,
            "the launch has made {left} of {ALL_ADDS} additions before it failed"
        );
        let before = long.launch(add, 1, 1).context("the next launch")?;
        let after = added()?;
        ensure!(
            before == left && after == left + 1,
            "the next launch has counted from {before} to {after}, where {left} were"
        );
        small_work(&other).context("another channel after the launch")?;
        Ok(CheckOutcome::Passed)
    }
}

/// Allocates, which takes a command of the driver's own, and has the GPU fill, copy and compare.
fn small_work(gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(2 * BYTES)?;
    let (left, right) = (buffer.span(..BYTES)?, buffer.span(BYTES..)?);
    gpu.fill(left, MARK)?;
    gpu.copy(left, right)?;
    let different = gpu.compare(left, right)?;
    ensure!(different.is_none(), "byte {different:?} of a copy is wrong");
    Ok(())
}
