//! Sends, writes and reads between two ends in this process.

use anyhow::anyhow;
use peerbar_rdma_end::{Ends, Results, memory_size, transfers};

use super::end::LocalEnd;
use super::memory::MemoryKind;
use super::report::Report;

/// Transfers each of `sizes` from `kinds[0]` of the adapter `nic` to `kinds[1]` of `peer`, in each
/// possible way.
pub(crate) fn run(
    nic: &str,
    peer: &str,
    [from, to]: [MemoryKind; 2],
    sizes: &[u64],
    report: &mut Report,
) -> anyhow::Result<()> {
    let size = memory_size(sizes);
    let mut near = LocalEnd::open(nic, from, size)?;
    let mut far = LocalEnd::open(peer, to, size)?;
    let mut ends = Ends::connect(&mut near, &mut far)?;
    let mut results = Results::default();
    let ended = transfers(&mut ends, sizes, &mut results);
    for result in results.subtests {
        let failure = result.diagnostics.into_iter().next();
        report.add(
            result.name,
            failure.map_or(Ok(()), |reason| Err(anyhow!(reason))),
        );
    }
    ended.map_err(anyhow::Error::msg)
}
