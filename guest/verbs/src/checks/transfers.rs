//! Sends, writes and reads between two ends in this process.

use peerbar_rdma_end::{End, Ends, Error, MARGIN, Way};

use super::end::LocalEnd;
use super::memory::MemoryKind;
use super::report::Report;

/// Transfers each of `sizes` from `kinds[0]` of the adapter `nic` to `kinds[1]` of `peer`, in each way that there is.
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
    transfer_all(&mut Ends::connect(near, far)?, sizes, report);
    Ok(())
}

/// Transfers each of `sizes` in each way that there is, until nothing more can be asked of an end.
pub(crate) fn transfer_all<N: End, F: End>(
    ends: &mut Ends<N, F>,
    sizes: &[u32],
    report: &mut Report,
) {
    for &size in sizes {
        for way in Way::ALL {
            if !ends.takes(way, size) {
                continue;
            }
            let moved = ends.transfer(way, size, fastrand::u64(..));
            if let Ok(elapsed) = moved {
                report.count(size.into(), elapsed);
            }
            let is_over = moved.as_ref().is_err_and(Error::is_of_streams);
            report.add(format!("{way} {size}"), moved.map(drop).map_err(Into::into));
            if is_over {
                return;
            }
        }
    }
}

/// The memory that an end needs for transfers of these sizes, in bytes.
pub(crate) fn memory_size(sizes: &[u32]) -> u64 {
    let largest = sizes.iter().copied().max().unwrap_or(0);
    u64::from(largest).saturating_add(2 * MARGIN)
}
