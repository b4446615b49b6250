//! Sends, writes and reads between two ends in this process.

use peerbar_rdma_end::{Ends, MARGIN, Way};

use super::end::LocalEnd;
use super::memory::MemoryKind;
use super::report::Report;

/// Transfers each of `sizes` from `kinds[0]` of the adapter `nic` to `kinds[1]` of `peer`, in each
/// possible way.
pub(crate) fn run(
    nic: &str,
    peer: &str,
    [from, to]: [MemoryKind; 2],
    sizes: &[u32],
    report: &mut Report,
) -> anyhow::Result<()> {
    let size = memory_size(sizes);
    let (near, far) = (
        LocalEnd::open(nic, from, size)?,
        LocalEnd::open(peer, to, size)?,
    );
    let mut ends = Ends::connect(near, far)?;
    for &size in sizes {
        for way in Way::ALL {
            if !ends.takes(way, size) {
                continue;
            }
            let moved = ends.transfer(way, size, fastrand::u64(..));
            if let Ok(elapsed) = moved {
                report.count(size.into(), elapsed);
            }
            report.add(format!("{way} {size}"), moved.map(drop).map_err(Into::into));
        }
    }
    Ok(())
}

/// Returns the bytes of memory that an end needs for transfers of these sizes.
pub(crate) fn memory_size(sizes: &[u32]) -> u64 {
    let largest = sizes.iter().copied().max().unwrap_or(0);
    u64::from(largest).saturating_add(2 * MARGIN)
}
