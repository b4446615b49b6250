//! Requests in progress while a part of the transfer is lost, and the remaining parts afterwards.
//! Each end is a separate process.

use std::io::{self, Write as _};

use peerbar_rdma_end::{GO_ON_BYTES, Loss, Side, go_on};

use super::end_process::between;
use super::memory::MemoryKind;
use super::report::Report;

/// Lets the adapter `nic`, with memory of the first of `kinds`, send requests to `peer`, with the
/// second, until a part is lost, which the line "under load" requests.
pub(crate) fn run(
    nic: &str,
    peer: &str,
    [from, to]: [MemoryKind; 2],
    loss: Loss,
    report: &mut Report,
) -> anyhow::Result<()> {
    let kill = &mut || {
        println!("# under load");
        io::stdout().flush()
    };
    between([(nic, from), (peer, to)], Loss::bytes(), |near, far| {
        let mut add = |name: &str, result: peerbar_rdma_end::Result<()>| {
            report.add(name, result.map_err(Into::into));
        };
        let acknowledged = loss.conduct(near, far, kill, &mut add)?;
        println!("# acknowledged {acknowledged}");
        Ok(())
    })?;
    for &pair in loss.part.left() {
        let [near, far] = pair.map(|side| match side {
            Side::Near => nic,
            Side::Far => peer,
        });
        report.add(format!("{near} and {far} go on"), works(near, far));
    }
    Ok(())
}

/// Checks that new ends with guest RAM transfer in each way.
pub(super) fn works(near: &str, far: &str) -> anyhow::Result<()> {
    let ends = [near, far].map(|nic| (nic, MemoryKind::Host));
    between(ends, GO_ON_BYTES, go_on)
}
