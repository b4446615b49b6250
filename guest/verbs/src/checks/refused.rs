//! Requests of another adapter, or of itself, that an adapter must refuse. Each end is a separate
//! process.

use peerbar_rdma_end::{REFUSE_BYTES, refuse};

use super::end_process::between;
use super::memory::MemoryKind;
use super::report::Report;

/// Lets the adapter `nic` send `peer`, which has memory of this kind, requests that it must refuse.
pub(crate) fn run(
    nic: &str,
    peer: &str,
    kind: MemoryKind,
    report: &mut Report,
) -> anyhow::Result<()> {
    let ends = [(nic, MemoryKind::Host), (peer, kind)];
    between(ends, REFUSE_BYTES, |near, far| {
        let of_gpu = kind != MemoryKind::Host;
        let permitted = refuse(near, far, of_gpu, &mut |name, result| {
            report.add(name, result.map_err(Into::into));
        })?;
        println!("# permitted {} {}", permitted.written, permitted.read);
        Ok(())
    })
}
