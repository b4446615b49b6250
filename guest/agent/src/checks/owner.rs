//! The owner of the memory that a command's payload reached, if
//! [`Expectation::through`](peerbar_report::Expectation::through) names a provider.
//!
//! The counters of a device distinguish its own memory from that of other devices, but not the
//! other devices from each other. If several are possible, the files that the command has opened to
//! allocate memory decide, and those that processes held before. Memory that a process holds only
//! by a DMA-buf or a memory region is not known.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use peerbar_dma_log::Completer;
use peerbar_report::PayloadFlow;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::holders::{Holders, holders};
use crate::guest_context::GuestContext;
use crate::p2pmem::Pool;

/// Bytes of events that are read at a time (inotify(7): an event has 16 bytes and no name).
const EVENTS: usize = 1024;

/// Records the devices whose memory programs open.
pub(super) struct OpenedMemory {
    inotify: OwnedFd,
    /// The watch descriptor of each file, with the device's name.
    watched: Vec<(i32, String)>,
    /// Processes that had memory of a device before.
    held: Holders,
}

impl OpenedMemory {
    /// Records from now on which devices' memory is opened in the guest.
    ///
    /// # Errors
    /// A file that cannot be watched.
    pub(super) fn record(guest: &GuestContext) -> anyhow::Result<Self> {
        let pools = guest.controllers.iter();
        let pools = pools.map(|disk| (&disk.name, Pool::of(&disk.pci).allocate_file()));
        let of_gpus = guest.gpus.iter();
        let of_gpus = of_gpus.map(|gpu| (&gpu.name, gpu.pool().allocate_file()));
        let pools = pools.chain(of_gpus);
        let nodes = guest.gpus.iter();
        let nodes = nodes.map(|gpu| (&gpu.name, gpu.node_path()));
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
            .context("cannot watch files")?;
        let mut opened = Self {
            inotify,
            watched: Vec::new(),
            held: Holders::new(),
        };
        let mut files = Vec::new();
        for (name, path) in pools.chain(nodes).filter(|(_, path)| path.exists()) {
            opened.watch(name, &path)?;
            files.push((name.clone(), path_end(&path)?));
        }
        opened.held = holders(Path::new("/proc"), &files);
        Ok(opened)
    }

    fn watch(&mut self, name: &str, path: &Path) -> anyhow::Result<()> {
        let watch = inotify::add_watch(&self.inotify, path, WatchFlags::OPEN)
            .with_context(|| format!("cannot watch {}", path.display()))?;
        self.watched.push((watch, name.to_owned()));
        Ok(())
    }

    /// Returns the devices whose memory was opened.
    fn opened(&self) -> anyhow::Result<BTreeSet<&str>> {
        let mut buffer = [MaybeUninit::uninit(); EVENTS];
        let mut events = Reader::new(&self.inotify, &mut buffer);
        let mut opened = BTreeSet::new();
        loop {
            let watch = match events.next() {
                // The device has gone, and its file with it.
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => continue,
                Ok(event) => event.wd(),
                Err(Errno::WOULDBLOCK) => return Ok(opened),
                Err(error) => return Err(error).context("cannot read which files were opened"),
            };
            let of_watch = self.watched.iter().find(|(of, _)| *of == watch);
            // The queue has lost events: anything may have been opened.
            let Some((_, name)) = of_watch else {
                bail!("too many files were opened to know whose memory was used");
            };
            opened.insert(name.as_str());
        }
    }

    /// Fails unless the payload of `flows` reached memory of `provider`. `what` moved it.
    ///
    /// # Errors
    /// The payload reached memory of another device, according to the counters or the opened files;
    /// or this is possible, because a process held such memory before.
    pub(super) fn judge(
        &self,
        what: &str,
        provider: &str,
        flows: &[PayloadFlow],
    ) -> anyhow::Result<()> {
        judge_flows(what, provider, flows)?;
        judge_opened(what, provider, &self.opened()?)?;
        judge_held(what, provider, flows, &self.held)
    }
}

/// Returns the end of a file's path that is the same in each root, without the mount point of
/// sysfs.
fn path_end(path: &Path) -> anyhow::Result<String> {
    let path = path.canonicalize();
    let path = path.context("cannot find the file of a device's memory")?;
    let end = path.strip_prefix("/sys").unwrap_or(&path);
    Ok(Path::new("/").join(end).to_string_lossy().into_owned())
}

/// Judges the flows. A provider reaches its own memory, and all others that of another device.
fn judge_flows(what: &str, provider: &str, flows: &[PayloadFlow]) -> anyhow::Result<()> {
    for flow in flows {
        let PayloadFlow {
            requester, bytes, ..
        } = flow;
        match flow.completer {
            Completer::OwnMemory => ensure!(
                requester == provider,
                "{what} moved {bytes} bytes to or from {requester}'s own memory, not that of {provider}"
            ),
            Completer::PeerBar => ensure!(
                requester != provider,
                "{what} had {provider} move {bytes} bytes to or from memory of another device, not its own"
            ),
            Completer::GuestRam | Completer::Unknown | Completer::None => {}
        }
    }
    Ok(())
}

fn judge_opened(what: &str, provider: &str, opened: &BTreeSet<&str>) -> anyhow::Result<()> {
    // The counters do not tell which of several was used.
    let other = opened.iter().find(|name| **name != provider);
    if let Some(other) = other {
        bail!("{what} opened memory of {other}, but `through` names {provider}");
    }
    Ok(())
}

/// Fails if a peer that `flows` reached may be a device of `held`. A device does not reach its own
/// memory as that of a peer.
fn judge_held(
    what: &str,
    provider: &str,
    flows: &[PayloadFlow],
    held: &Holders,
) -> anyhow::Result<()> {
    let is_possible = |device: &str| {
        let mut to_peers = flows
            .iter()
            .filter(|flow| flow.completer == Completer::PeerBar);
        device != provider && to_peers.any(|flow| flow.requester != device)
    };
    if let Some((device, process)) = held.iter().find(|(device, _)| is_possible(device)) {
        bail!(
            "{what} may have used memory of {device}, but `through` names {provider}: {process} held some before, and the counters do not \
             tell the two apart; end that process before the check"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Direction, Route};

    use super::*;

    #[test]
    fn opened_files_count_and_files_that_go_do_not() {
        let flags = CreateFlags::NONBLOCK | CreateFlags::CLOEXEC;
        let mut memory = OpenedMemory {
            inotify: inotify::init(flags).unwrap(),
            watched: Vec::new(),
            held: Holders::new(),
        };
        let folder = tempfile::tempdir().unwrap();
        let [used, gone] = ["used", "gone"].map(|name| folder.path().join(name));
        for (name, path) in [("gpu0", &used), ("gpu1", &gone)] {
            std::fs::write(path, "").unwrap();
            memory.watch(name, path).unwrap();
        }
        std::fs::remove_file(&gone).unwrap();
        assert_eq!(memory.opened().unwrap(), BTreeSet::new());
        drop(std::fs::File::open(&used).unwrap());
        assert_eq!(memory.opened().unwrap(), BTreeSet::from(["gpu0"]));
    }

    fn flow(requester: &str, completer: Completer) -> PayloadFlow {
        PayloadFlow {
            requester: requester.to_owned(),
            completer,
            route: Route::Peer,
            direction: Direction::Read,
            bytes: 4096,
        }
    }

    #[test]
    fn provider_meets_its_own_memory_and_others_that_of_a_peer() {
        let judged = |flows: &[PayloadFlow]| judge_flows("it", "disk0", flows).is_ok();
        let right = [
            flow("disk0", Completer::OwnMemory),
            flow("disk1", Completer::PeerBar),
        ];
        assert!(judged(&right));
        assert!(!judged(&[flow("disk1", Completer::OwnMemory)]));
        assert!(!judged(&[flow("disk0", Completer::PeerBar)]));
    }

    #[test]
    fn memory_of_another_device_that_was_opened_fails() {
        let judged = |opened: &[&'static str]| {
            judge_opened("it", "disk0", &opened.iter().copied().collect()).is_ok()
        };
        assert!(judged(&[]), "the kernel may have allocated it");
        assert!(judged(&["disk0"]));
        assert!(!judged(&["gpu0"]));
        assert!(!judged(&["disk0", "disk1"]));
    }

    #[test]
    fn memory_that_was_held_before_fails_if_a_peer_may_be_it() {
        let judged = |device: &str, flows: &[PayloadFlow]| {
            let held = Holders::from([(device.to_owned(), "`a` (process 7)".to_owned())]);
            judge_held("it", "gpu0", flows, &held).map_err(|error| error.to_string())
        };
        let peer = flow("disk0", Completer::PeerBar);
        let error = judged("disk2", std::slice::from_ref(&peer)).unwrap_err();
        let expected = "it may have used memory of disk2, but `through` names gpu0: `a` (process 7) held some before";
        assert!(error.starts_with(expected), "{error}");
        judged("gpu0", std::slice::from_ref(&peer)).unwrap();
        judged("disk0", std::slice::from_ref(&peer)).unwrap();
        let two = [peer, flow("disk1", Completer::PeerBar)];
        assert!(judged("disk0", &two).is_err());
        let own = flow("gpu0", Completer::OwnMemory);
        judged("disk2", &[own, flow("disk0", Completer::GuestRam)]).unwrap();
    }
}
