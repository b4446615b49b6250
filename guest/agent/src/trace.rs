//! The kernel's trace events of commands and of the IOMMU, for `peerbar trace`. They are collected
//! only if the plan asks for them, in a tracing instance whose buffer is emptied between checks, so
//! that no measured check waits for it.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::num::NonZero;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use peerbar_report::TraceLine;
use rustix::fs::OFlags;

use crate::guest_context::GuestContext;
use crate::mounts;

/// A separate instance: the watch of the kernel's decisions has another one.
const INSTANCE: &str = "/sys/kernel/tracing/instances/peerbar-trace";
/// The traced events, as far as the kernel has them.
const EVENTS: [&str; 5] = [
    "nvme/nvme_setup_cmd",
    "nvme/nvme_complete_rq",
    "iommu/map",
    "iommu/unmap",
    "iommu/io_page_fault",
];
/// Total size of the kernel's buffers of all processors, in KiB.
const BUFFER_KIB: usize = 16 << 10;
/// Limit of the bytes of events that are sent to the launcher, which keeps no more either.
const MOST: usize = 32 << 20;
/// Number of clock readings at a time.
const SAMPLES: usize = 4;

/// Trace events on their way to the launcher.
#[derive(Debug)]
pub(crate) struct KernelTracing {
    port: File,
    /// `None` once too much was sent, or if the kernel does not trace.
    events: Option<File>,
    sent: usize,
}

impl KernelTracing {
    /// Starts tracing, with `port` for the events. A kernel that does not trace is not a failure:
    /// the launcher gets the reason.
    pub(crate) fn start(port: File, guest: &GuestContext) -> anyhow::Result<Self> {
        let mut tracing = Self {
            port,
            events: None,
            sent: 0,
        };
        for controller in &guest.controllers {
            let name = controller.directory.file_name().unwrap_or_default();
            tracing.say(&TraceLine::Controller {
                controller: name.to_string_lossy().into_owned(),
                device: controller.name.clone(),
            })?;
        }
        match trace() {
            Ok((events, missing)) => {
                tracing.events = Some(events);
                for what in missing {
                    tracing.say(&TraceLine::Missing(what))?;
                }
            }
            Err(error) => tracing.say(&TraceLine::Missing(format!("{error:#}")))?,
        }
        tracing.collect(guest)?;
        Ok(tracing)
    }

    /// Sends the events since the last call, and readings of the clocks.
    pub(crate) fn collect(&mut self, guest: &GuestContext) -> anyhow::Result<()> {
        for _ in 0..SAMPLES {
            let sample = guest.launcher.clock()?;
            self.say(&TraceLine::Clock(sample))?;
        }
        let mut chunk = vec![0; 64 << 10];
        while let Some(events) = &mut self.events {
            match events.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => {
                    let bytes = chunk.get(..count).unwrap_or_default();
                    self.port
                        .write_all(bytes)
                        .context("cannot send trace events")?;
                    self.sent = self.sent.saturating_add(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // There is nothing more for now.
                Err(_) => break,
            }
            if self.sent > MOST {
                self.events = None;
                write(&Path::new(INSTANCE).join("tracing_on"), "0")?;
                self.say(&TraceLine::Cut)?;
            }
        }
        Ok(())
    }

    fn say(&mut self, line: &TraceLine) -> anyhow::Result<()> {
        let text = format!("{line}\n");
        let written = self.port.write_all(text.as_bytes());
        written.context("cannot write to the port of trace events")
    }
}

/// Starts the kernel's tracing. Returns the events, which are gone once read, and the names of
/// those that are not traced.
fn trace() -> anyhow::Result<(File, Vec<String>)> {
    mounts::tracing()?;
    let instance = PathBuf::from(INSTANCE);
    fs::create_dir(&instance).with_context(|| format!("cannot create {INSTANCE}"))?;
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let size = BUFFER_KIB / processors;
    write(&instance.join("buffer_size_kb"), &size.max(64).to_string())?;
    // The only clock that the agent can read, too.
    write(&instance.join("trace_clock"), "mono")?;
    let mut missing = Vec::new();
    for event in EVENTS {
        let path = instance.join("events").join(event).join("enable");
        if let Err(error) = write(&path, "1") {
            missing.push(format!("{event}: {error:#}"));
        }
    }
    let path = instance.join("trace_pipe");
    let mut options = OpenOptions::new();
    let options = options.read(true);
    let options = options.custom_flags(i32::try_from(OFlags::NONBLOCK.bits())?);
    let events = options.open(&path);
    let events = events.with_context(|| format!("cannot open {}", path.display()))?;
    Ok((events, missing))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let file = OpenOptions::new().write(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {text:?} to {}", path.display()))
}
