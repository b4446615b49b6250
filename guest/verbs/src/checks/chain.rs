//! From a disk to a GPU, over the wire, to another GPU and to its disk, by two processes.

use std::env;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::Context as _;
use peerbar_rdma_end::{Chain, Ends, FileRange, LineEnd, Way};

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

/// Moves each of `sizes` from the disk of `near` to that of `far`, each size at the places that follow the ones before; by RDMA
/// writes, then by RDMA reads.
pub(crate) fn run(
    near: &Side,
    far: &Side,
    sizes: &[u32],
    report: &mut Report,
) -> anyhow::Result<()> {
    let size = memory_size(sizes);
    let (near_end, far_end) = (
        EndProcess::start(near, size)?,
        EndProcess::start(far, size)?,
    );
    let (near_end, near_lines) = near_end.lines()?;
    let (far_end, far_lines) = far_end.lines()?;
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
    // The ends end with their input.
    drop(ends);
    near_end.wait()?;
    far_end.wait()
}

/// A process of this program that is an end. It is killed if the value is dropped.
struct EndProcess(Child);

impl EndProcess {
    fn start(side: &Side, size: u64) -> anyhow::Result<Self> {
        let program = env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command
            .args(["end", "--nic", &side.nic])
            .args(["--memory", &side.gpu.to_string()])
            .args(["--size", &size.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let child = command.spawn();
        Ok(Self(child.context("cannot start an end of the transfer")?))
    }

    #[allow(clippy::type_complexity, reason = "the streams of a child")]
    fn lines(mut self) -> anyhow::Result<(Self, LineEnd<BufReader<ChildStdout>, ChildStdin>)> {
        let streams = self.0.stdout.take().zip(self.0.stdin.take());
        let (answers, commands) = streams.context("an end has no streams")?;
        Ok((self, LineEnd::new(BufReader::new(answers), commands)))
    }

    fn wait(mut self) -> anyhow::Result<()> {
        let status = self.0.wait().context("cannot wait for an end")?;
        anyhow::ensure!(status.success(), "an end of the transfer ended: {status}");
        Ok(())
    }
}

impl Drop for EndProcess {
    fn drop(&mut self) {
        // An end that has ended cannot be killed, which is no error here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
