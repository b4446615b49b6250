//! An end in a separate process.

use std::env;
use std::io::BufReader;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, ensure};
use peerbar_rdma_end::LineEnd;

use super::memory::MemoryKind;

/// Messages to an end and from it.
pub(crate) type Lines = LineEnd<BufReader<ChildStdout>, ChildStdin>;

/// A process of this program that is an end. Dropping the value kills the process.
pub(crate) struct EndProcess(Child);

impl EndProcess {
    /// Starts an end by the adapter `nic`, with `size` bytes of memory. It ends once its [`Lines`]
    /// are dropped.
    pub(crate) fn start(nic: &str, memory: MemoryKind, size: u64) -> anyhow::Result<(Self, Lines)> {
        let program = env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command
            .args(["end", "--nic", nic])
            .args(["--memory", &memory.to_string()])
            .args(["--size", &size.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .context("cannot start an end of the transfer")?;
        let streams = child.stdout.take().zip(child.stdin.take());
        let process = Self(child);
        let (answers, commands) = streams.context("an end has no streams")?;
        Ok((process, LineEnd::new(BufReader::new(answers), commands)))
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> anyhow::Result<()> {
        let status = self.0.wait().context("cannot wait for an end")?;
        ensure!(status.success(), "an end of the transfer ended: {status}");
        Ok(())
    }
}

impl Drop for EndProcess {
    fn drop(&mut self) {
        // An end that has ended cannot be killed, which is not an error here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts two ends with `size` bytes of memory each, lets `work` conduct them, and waits until they
/// have ended.
pub(crate) fn between(
    [near, far]: [(&str, MemoryKind); 2],
    size: u64,
    work: impl FnOnce(Lines, Lines) -> peerbar_rdma_end::Result<()>,
) -> anyhow::Result<()> {
    let start = |(nic, memory)| EndProcess::start(nic, memory, size);
    let ((near, near_lines), (far, far_lines)) = (start(near)?, start(far)?);
    work(near_lines, far_lines)?;
    near.wait()?;
    far.wait()
}
