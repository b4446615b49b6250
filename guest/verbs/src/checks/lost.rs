//! Requests in progress while a part of the transfer dies, and what is left afterwards: each end is a process of its own.

use std::io::{self, Write as _};

use peerbar_rdma_end::{GO_ON_BYTES, Loss, Side, go_on};

use super::end_process::between;
use super::memory::MemoryKind;
use super::report::Report;

/// Has the adapter `nic` with the first of `kinds` ask `peer` with the second until a part dies, which the line "under load" asks for.
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

/// New ends with guest RAM transfer in each way.
pub(super) fn works(near: &str, far: &str) -> anyhow::Result<()> {
    let ends = [near, far].map(|nic| (nic, MemoryKind::Host));
    between(ends, GO_ON_BYTES, go_on)
}
