//! The virtio-serial port to the launcher.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use peerbar_report::{PORT, Plan, TRACE_PORT};
use rustix::event::{Timespec, epoll};
use rustix::fs::{Mode, OFlags, fcntl_setfl};

use crate::uevents::Uevents;

/// Time limit for the port to appear, and for the plan to arrive.
const TIME_OUT: Duration = Duration::from_secs(30);

/// Longest accepted plan in bytes.
const PLAN_LIMIT: usize = 1 << 20;

/// The open port.
#[derive(Debug)]
pub(crate) struct Port {
    file: File,
}

impl Port {
    /// Waits for the report's port and opens it.
    pub(crate) fn open(uevents: &Uevents) -> anyhow::Result<Self> {
        let node = wait_for(PORT, uevents)?;
        // Non-blocking, because a read ends at once while the host has not connected.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(&node, flags, Mode::empty())
            .with_context(|| format!("cannot open the port {}", node.display()))?;
        Ok(Port { file: file.into() })
    }

    /// Reads the launcher's line. Returns the plan, and the port to report to.
    pub(crate) fn read_plan(mut self) -> anyhow::Result<(Plan, File)> {
        let line = self.read_line()?;
        let plan = serde_json::from_slice(&line).context("this agent cannot parse the plan")?;
        fcntl_setfl(&self.file, OFlags::empty()).context("cannot make the port blocking")?;
        Ok((plan, self.file))
    }

    /// Reads up to the first newline.
    ///
    /// The port reports a hang-up until the host connects, so only an edge shows that there is more
    /// to read.
    fn read_line(&mut self) -> anyhow::Result<Vec<u8>> {
        let edges = epoll::create(epoll::CreateFlags::CLOEXEC).context("cannot create an epoll")?;
        let interest = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&edges, &self.file, epoll::EventData::new_u64(0), interest)
            .context("cannot watch the port")?;
        let deadline = Instant::now() + TIME_OUT;
        let mut line = Vec::new();
        loop {
            if self.drain(&mut line)? {
                return Ok(line);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!(
                    "no plan came through the port {PORT} within {} s ({} bytes did)",
                    TIME_OUT.as_secs(),
                    line.len()
                );
            }
            let timeout = Timespec::try_from(left).context("bad time-out")?;
            let mut events = [epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(0),
            }];
            match epoll::wait(&edges, &mut events, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for the plan"),
            }
        }
    }

    /// Takes the available data. Returns `true` once `line` is complete.
    fn drain(&mut self, line: &mut Vec<u8>) -> anyhow::Result<bool> {
        let mut chunk = [0; 4096];
        loop {
            let count = match self.file.read(&mut chunk) {
                Ok(0) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                count => count.context("cannot read the plan")?,
            };
            let bytes = chunk.get(..count).unwrap_or_default();
            let end = bytes.iter().position(|byte| *byte == b'\n');
            line.extend_from_slice(bytes.get(..end.unwrap_or(count)).unwrap_or_default());
            if line.len() > PLAN_LIMIT {
                bail!("the plan is longer than {PLAN_LIMIT} bytes");
            }
            if end.is_some() {
                return Ok(true);
            }
        }
    }
}

/// Waits for the port for trace events and opens it for writing.
pub(crate) fn open_trace(uevents: &Uevents) -> anyhow::Result<File> {
    let node = wait_for(TRACE_PORT, uevents)?;
    let port = File::options().write(true).open(&node);
    port.with_context(|| format!("cannot open the port {}", node.display()))
}

fn wait_for(name: &str, uevents: &Uevents) -> anyhow::Result<PathBuf> {
    uevents.wait_for(TIME_OUT, || {
        find(
            name,
            Path::new("/sys/class/virtio-ports"),
            Path::new("/dev"),
        )
    })
}

/// Returns the device node of the port of that name.
fn find(wanted: &str, class: &Path, dev: &Path) -> anyhow::Result<PathBuf> {
    let mut seen = Vec::new();
    for entry in fs::read_dir(class).into_iter().flatten().flatten() {
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        let node = dev.join(entry.file_name());
        if name.trim() == wanted && node.exists() {
            return Ok(node);
        }
        seen.push(format!(
            "{} ({:?})",
            entry.file_name().to_string_lossy(),
            name.trim()
        ));
    }
    bail!(
        "no virtio-serial port named {wanted} in {} (there: {}); QEMU needs -device virtio-serial-pci and -device \
         virtserialport,name={wanted}, the kernel virtio_pci and virtio_console",
        class.display(),
        if seen.is_empty() {
            "none".to_owned()
        } else {
            seen.join(", ")
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_found_by_its_name() {
        let root = tempfile::tempdir().unwrap();
        let (class, dev) = (root.path().join("class"), root.path().join("dev"));
        for (port, name) in [
            ("vport1p1", "other\n"),
            ("vport1p2", "org.peerbar.report\n"),
        ] {
            fs::create_dir_all(class.join(port)).unwrap();
            fs::write(class.join(port).join("name"), name).unwrap();
        }
        fs::create_dir(&dev).unwrap();
        let error = find(PORT, &class, &dev).unwrap_err().to_string();
        assert!(error.contains("vport1p1 (\"other\")"), "{error}");

        fs::write(dev.join("vport1p2"), "").unwrap();
        assert_eq!(find(PORT, &class, &dev).unwrap(), dev.join("vport1p2"));
    }

    #[test]
    fn a_line_may_come_in_pieces() {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let mut port = Port { file: read.into() };
        let mut line = Vec::new();
        rustix::io::write(&write, b"{\"a\":").unwrap();
        assert!(!port.drain(&mut line).unwrap());
        rustix::io::write(&write, b"1}\nrest").unwrap();
        assert!(port.drain(&mut line).unwrap());
        assert_eq!(line, b"{\"a\":1}");
    }
}
