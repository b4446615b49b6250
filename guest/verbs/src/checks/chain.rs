//! From a disk to a GPU, over the wire, to another GPU and to its disk, by two processes.

use std::path::PathBuf;

use peerbar_rdma_end::{Chain, Ends, FileRange, Way};

use super::end_process::EndProcess;
use super::memory::MemoryKind;
use super::report::Report;
use super::transfers::memory_size;

/// One side of the chain.
#[derive(Debug)]
pub(crate) struct Side {
    /// The kernel's name of the adapter.
    pub(crate) nic: String,
    /// The number of the GPU's device file.
    pub(crate) gpu: u32,
    /// The disk's block device.
    pub(crate) disk: PathBuf,
}

/// Moves each of `sizes` from the disk of `near` to that of `far`, each size at the offsets after
/// the previous ones: first by RDMA writes, then by RDMA reads.
pub(crate) fn run(
    near: &Side,
    far: &Side,
    sizes: &[u32],
    report: &mut Report,
) -> anyhow::Result<()> {
    let size = memory_size(sizes);
    let start = |side: &Side| EndProcess::start(&side.nic, MemoryKind::Vram(side.gpu), size);
    let ((near_end, near_lines), (far_end, far_lines)) = (start(near)?, start(far)?);
    let mut ends = Ends::connect(near_lines, far_lines)?;
    let mut at = 0;
    for way in [Way::Write, Way::Read] {
        for &length in sizes {
            let file = |side: &Side| FileRange {
                path: side.disk.clone(),
                at,
            };
            let chain = Chain {
                source: file(near),
                target: file(far),
                length,
                way,
            };
            let moved = ends.chain(&chain);
            if let Ok(elapsed) = moved {
                report.count(length.into(), elapsed);
            }
            report.add(
                format!("{length} bytes by {way}"),
                moved.map(drop).map_err(Into::into),
            );
            at = at.saturating_add(length.into());
        }
    }
    // The ends stop when their input ends.
    drop(ends);
    near_end.wait()?;
    far_end.wait()
}
