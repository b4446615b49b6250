//! A launch that takes longer than the GPU permits, together with programs that need little.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use peerbar_gds::{Command, Error, Fault, Kernel};

use crate::Test;
use crate::expect::works;

/// Maximum number of threads of a launch.
const BLOCKS: u32 = 1 << 14;
const THREADS: u32 = 1024;
const ALL_ADDS: u64 = BLOCKS as u64 * THREADS as u64;

/// Time limit for the launch to fail: longer than a sensible `job-timeout`.
const TIME_OUT: Duration = Duration::from_secs(60);

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let gpu = test.gpu()?;
    let (long, other) = (gpu.open()?, gpu.open()?);
    let counter = long.allocate_host(crate::PAGE)?;
    let add = Kernel::AtomicAdd {
        counter: counter.span(..8)?,
        value: 1,
    };
    let launch = long.submit(&Command::Launch {
        kernel: add,
        grid: BLOCKS,
        block: THREADS,
    })?;
    works(&other).context("another channel during the launch")?;
    match launch.wait(TIME_OUT) {
        Err(Error::Fault(Fault::TimeOut)) => {}
        other => bail!("the launch should have ended with fault 7, but: {other:?}"),
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
    works(&other).context("another channel after the launch")?;
    Ok(())
}
