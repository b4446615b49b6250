//! The outcome of an adapter's DMA to the memory of a GPU, and from there.

use std::io;

use peerbar_rdma_end::{Ends, Error, Way, memory_size};
use peerbar_report::Transfer;

use super::end::LocalEnd;
use super::memory::MemoryKind;

/// Writes and reads `size` bytes within the memory of the GPU `gpu` by the adapter `nic`. Prints a
/// [`Transfer`] for each, as a line of JSON.
pub(crate) fn run(nic: &str, gpu: u32, size: u32) -> anyhow::Result<()> {
    let results = transfers(nic, gpu, size);
    let results = results.unwrap_or_else(|refused| [failed(&refused), failed(&refused)]);
    for result in results {
        println!("{}", serde_json::to_string(&result)?);
    }
    Ok(())
}

/// Returns the outcome of a write and of a read.
fn transfers(nic: &str, gpu: u32, size: u32) -> anyhow::Result<[Transfer; 2]> {
    let end = || LocalEnd::open(nic, MemoryKind::Vram(gpu), memory_size(&[size.into()]));
    let (mut near, mut far) = (end()?, end()?);
    let mut ends = Ends::connect(&mut near, &mut far)?;
    Ok([Way::Write, Way::Read].map(|way| {
        let moved = ends.transfer(way, size, fastrand::u64(..));
        moved.map_or_else(judge, |_| Transfer::Right)
    }))
}

/// Judges an error. Success with wrong data is worse than a failure.
fn judge(error: Error) -> Transfer {
    match error {
        Error::Contents { .. } => Transfer::Wrong {
            message: error.to_string(),
        },
        other => failed(&other.into()),
    }
}

fn failed(error: &anyhow::Error) -> Transfer {
    let cause = error.root_cause().downcast_ref::<io::Error>();
    Transfer::Failed {
        errno: cause.and_then(io::Error::raw_os_error),
        message: format!("{error:#}"),
    }
}
