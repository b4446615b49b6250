//! The processes of a machine, by descriptors, so that reused process ids do not matter.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use anyhow::Context;
use peerbar_lab::Lab;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The name of QEMU among those of the servers.
pub(crate) const QEMU: &str = "qemu";

/// QEMU and the servers, by their names.
pub(crate) struct Processes(BTreeMap<String, OwnedFd>);

impl Processes {
    pub(crate) fn of(lab: &Lab) -> anyhow::Result<Self> {
        let named = lab.servers().chain([(QEMU, lab.qemu())]);
        let opened = named.map(|(name, process)| {
            let pid = Pid::from_raw(process.try_into()?).context("no process")?;
            Ok((name.to_owned(), pidfd_open(pid, PidfdFlags::empty())?))
        });
        opened.collect::<anyhow::Result<_>>().map(Self)
    }

    pub(crate) fn signal(&self, name: &str, signal: Signal) -> anyhow::Result<()> {
        let process = self.0.get(name);
        let process = process.with_context(|| format!("no process {name}"))?;
        pidfd_send_signal(process, signal).with_context(|| format!("cannot signal {name}"))
    }

    /// Returns the names of those that have not ended. A zombie has ended.
    pub(crate) fn alive(&self) -> anyhow::Result<Vec<&str>> {
        let mut alive = Vec::new();
        for (name, process) in &self.0 {
            let mut ended = [PollFd::new(process, PollFlags::IN)];
            if poll(&mut ended, Some(&Timespec::default()))? == 0 {
                alive.push(name.as_str());
            }
        }
        Ok(alive)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}
