//! A function-level reset in the middle of a command that must not be executed twice: it fails with
//! that reason, or it was executed in full. The commands behind it are executed as without a reset.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use peerbar_agent::devices::reset;
use peerbar_agent::gpus;
use peerbar_agent::guest_context::GuestContext;
use peerbar_gds::{Command, Error, Fault, Fence, Gpu, HostBuffer, Kernel};

const RESETS: u32 = 3;

/// Blocks and threads of the command that the reset interrupts, and of those behind it, each with
/// its own counter.
const LAUNCHES: [(u32, u32); 3] = [(1 << 14, 1024), (512, 1000), (1, 1)];

/// Bytes of a counter.
const COUNTER: u64 = 8;

/// Time limit of the commands.
const TIME_OUT: Duration = Duration::from_secs(30);

pub(super) fn run(guest: &GuestContext, gpu: &gpus::Gpu) -> anyhow::Result<()> {
    let mut cut = 0;
    for number in 1..=RESETS {
        let was_cut = reset_amid_additions(guest, gpu);
        cut += u32::from(was_cut.with_context(|| format!("reset {number} amid atomic additions"))?);
    }
    ensure!(
        cut > 0,
        "none of {RESETS} resets came before its command was done, so they have shown nothing"
    );
    Ok(())
}

/// Returns `true` if the first command was ended by the reset.
fn reset_amid_additions(guest: &GuestContext, gpu: &gpus::Gpu) -> anyhow::Result<bool> {
    let opened = gpu.open()?;
    let counters = opened.allocate_host(crate::PAGE)?;
    let fences = launch_all(&opened, &counters)?;
    guest.uevents.wait_for(TIME_OUT, || {
        let count = counter(&counters, 0)?;
        ensure!(count > 0, "the first command does not begin");
        Ok(())
    })?;
    reset(&gpu.pci.join("reset"))?;

    let (first, behind) = fences.split_first().context("no commands")?;
    let outcome = first.wait(TIME_OUT);
    let count = counter(&counters, 0)?;
    let was_cut = judge(&outcome, count, adds(LAUNCHES.first()))?;
    for (index, (fence, launch)) in (1..).zip(behind.iter().zip(LAUNCHES.iter().skip(1))) {
        let outcome = fence.wait(TIME_OUT);
        let cut = judge(&outcome, counter(&counters, index)?, adds(Some(launch)))?;
        ensure!(
            !cut,
            "command {index}, which had not begun, was given up, too"
        );
    }
    let later = counter(&counters, 0)?;
    ensure!(
        later == count,
        "a counter has gone from {count} to {later} after its command had ended"
    );
    Ok(was_cut)
}

fn launch_all(gpu: &Gpu, counters: &HostBuffer) -> anyhow::Result<Vec<Fence>> {
    let launch = |(index, &(grid, block))| {
        let at = COUNTER * index;
        let counter = counters.span(at..at + COUNTER)?;
        let kernel = Kernel::AtomicAdd { counter, value: 1 };
        Ok(gpu.submit(&Command::Launch {
            kernel,
            grid,
            block,
        })?)
    };
    (0..).zip(&LAUNCHES).map(launch).collect()
}

fn adds(launch: Option<&(u32, u32)>) -> u64 {
    launch.map_or(0, |(grid, block)| u64::from(*grid) * u64::from(*block))
}

fn counter(counters: &HostBuffer, index: u64) -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    counters.mapping().read(COUNTER * index, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Returns `true` if the command was given up. A success with another count than the full one is an
/// error.
fn judge(outcome: &peerbar_gds::Result<u64>, count: u64, full: u64) -> anyhow::Result<bool> {
    match outcome {
        Ok(0) if count == full => Ok(false),
        Err(Error::Fault(Fault::Reset)) if count <= full => Ok(true),
        other => bail!("{full} additions have ended with {other:?} and a count of {count}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_has_the_full_count() {
        assert!(!judge(&Ok(0), 512, 512).unwrap());
        assert!(judge(&Err(Error::Fault(Fault::Reset)), 100, 512).unwrap());
        assert!(judge(&Ok(0), 511, 512).is_err());
        assert!(judge(&Ok(0), 600, 512).is_err());
        assert!(judge(&Ok(7), 512, 512).is_err());
        assert!(judge(&Err(Error::Fault(Fault::Reset)), 600, 512).is_err());
        assert!(judge(&Err(Error::Fault(Fault::Dma)), 100, 512).is_err());
    }
}
