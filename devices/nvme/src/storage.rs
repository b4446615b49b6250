//! State that all threads that execute commands share: the namespaces, their health and their
//! statistics.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use fastrand::Rng;
use parking_lot::Mutex;
use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::completion::Status;
use strum::FromRepr;

use crate::health::Health;
use crate::io::status::write_error;
use crate::job::InProgress;
use crate::namespace::{Extent, LockMode, Namespace, Ticket};
use crate::pmr::PersistentMemory;

/// The access of I/O commands to the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRepr)]
#[repr(u8)]
pub(crate) enum Media {
    /// Full access.
    Usable,
    /// No access: the media is being sanitized.
    BeingSanitized,
    /// No access: a sanitize has failed.
    Failed,
}

/// The namespaces of a controller, from NSID 1 on, and its Persistent Memory Region.
pub(crate) struct Storage {
    pub(crate) namespaces: Vec<Namespace>,
    pmr: Option<Arc<PersistentMemory>>,
    pub(crate) health: Health,
    write_cache: AtomicBool,
    /// A [`Media`].
    media: AtomicU8,
    /// The pattern of a power loss, which takes effect once no command is in progress.
    power_loss: Mutex<Option<u64>>,
    /// Makes every thread poll its deferred commands, and the engine check the namespaces.
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Storage {
    /// Makes the storage of these namespaces, and of a Persistent Memory Region if there is one.
    /// `wake` wakes all threads.
    pub(crate) fn new(
        namespaces: Vec<Namespace>,
        pmr: Option<Arc<PersistentMemory>>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self {
            namespaces,
            pmr,
            health: Health::new(),
            write_cache: AtomicBool::new(true),
            media: AtomicU8::new(Media::Usable as u8),
            power_loss: Mutex::new(None),
            wake: Box::new(wake),
        }
    }

    /// Returns the namespace with this NSID (NVMe Base 2.0, 3.2.1).
    pub(crate) fn find(&self, nsid: u32) -> Result<&Namespace, Status> {
        let namespace = index_of(nsid).and_then(|index| self.namespaces.get(index));
        namespace.ok_or(Status::INVALID_NAMESPACE.with_dnr(true))
    }

    /// Returns the index of that namespace, as a range.
    pub(crate) fn index_range(&self, nsid: u32) -> Result<Range<usize>, Status> {
        self.find(nsid)?;
        Ok(index_of(nsid).map_or(0..0, |index| index..index + 1))
    }

    /// Locks blocks for a command. Returns `true` if none of them was locked. If one was, a later
    /// unlock wakes all threads.
    #[inline(always)]
    pub(crate) fn lock(
        &self,
        command: &mut InProgress<'_>,
        namespace: &Namespace,
        extent: Extent,
        mode: LockMode,
    ) -> bool {
        let Some(locks) = namespace.locks() else {
            return true;
        };
        match locks.lock(extent, mode) {
            Ok(()) => command.locked = Some((extent, mode)),
            Err(busy) if busy.is_awaited => (self.wake)(),
            Err(_) => {}
        }
        command.locked.is_some()
    }

    /// Locks the start of an extent for a command that writes it. Returns that start, or `None` if
    /// the first block is locked; then a later unlock wakes all threads.
    pub(crate) fn lock_start(
        &self,
        command: &mut InProgress<'_>,
        namespace: &Namespace,
        extent: Extent,
    ) -> Option<Extent> {
        let Some(locks) = namespace.locks() else {
            return Some(extent);
        };
        let start = locks.lock_start(extent)?;
        command.locked = Some((start, LockMode::Exclusive));
        Some(start)
    }

    /// Unlocks the blocks that a command has locked.
    pub(crate) fn unlock(&self, entry: &SubmissionEntry, locked: Option<(Extent, LockMode)>) {
        let Some((extent, mode)) = locked else {
            return;
        };
        let namespace = self.find(entry.nsid.get()).ok();
        if namespace
            .and_then(Namespace::locks)
            .is_some_and(|locks| locks.unlock(extent, mode))
        {
            (self.wake)();
        }
    }

    /// Volatile Write Cache: returns `true` if writes may wait for a Flush.
    pub(crate) fn write_cache(&self) -> bool {
        self.write_cache.load(Ordering::Acquire)
    }

    /// Turns the volatile write cache on or off.
    pub(crate) fn set_write_cache(&self, on: bool) {
        self.write_cache.store(on, Ordering::Release);
    }

    /// Returns the access that I/O commands have to the media.
    pub(crate) fn media(&self) -> Media {
        Media::from_repr(self.media.load(Ordering::Acquire)).unwrap_or(Media::Failed)
    }

    /// Sets the access of commands that start from now on.
    pub(crate) fn set_media(&self, media: Media) {
        self.media.store(media as u8, Ordering::Release);
    }

    /// Refuses an I/O command unless the media is usable.
    pub(crate) fn check_media(&self) -> Result<(), Status> {
        match self.media() {
            Media::Usable => Ok(()),
            Media::BeingSanitized => Err(Status::SANITIZE_IN_PROGRESS),
            Media::Failed => Err(Status::SANITIZE_FAILED.with_dnr(true)),
        }
    }

    /// Zeroes all namespaces and the Persistent Memory Region on stable storage; with `deallocate`,
    /// also frees the namespaces' storage. No command may be in progress.
    pub(crate) fn erase(&self, deallocate: bool) -> Result<(), Status> {
        let mut outcome = Ok(());
        for namespace in &self.namespaces {
            let backend = namespace.backend();
            let zeroed = backend.zero((0, backend.size()), deallocate);
            outcome = outcome.and(zeroed.map_err(write_error(namespace)));
        }
        if let Some(Err(error)) = self.pmr.as_ref().map(|pmr| pmr.erase()) {
            log::error!("the PMR cannot be erased: {error}");
            outcome = outcome.and(Err(Status::WRITE_FAULT));
        }
        outcome.and(self.flush_all())
    }

    /// Logs a command that has failed. Returns its status, which points to the log (NVMe Base 2.0,
    /// 5.16.1.2).
    pub(crate) fn failed(&self, sqid: u16, entry: &SubmissionEntry, status: Status) -> Status {
        log::debug!(
            "queue {sqid}, command {}: opcode {:#04x} fails: {status:?}",
            entry.cid,
            entry.opcode
        );
        let status = status.with_more(true);
        self.health.failed(sqid, entry, status);
        status
    }

    /// Brings a namespace to stable storage, and waits until it is there.
    pub(crate) fn flush(&self, namespace: &Namespace) -> io::Result<()> {
        if !namespace.is_file() {
            namespace.settle(None);
            return Ok(());
        }
        let ticket = namespace.syncs().begin();
        let outcome = namespace.backend().flush();
        let before = self.end_sync_of(namespace, ticket, outcome.is_ok());
        namespace.syncs().wait(before);
        outcome.and_then(|()| namespace.check_kept())
    }

    /// Flushes all namespaces, even if some fail. Returns the first failure.
    pub(crate) fn flush_all(&self) -> Result<(), Status> {
        let mut outcome = Ok(());
        for namespace in &self.namespaces {
            let flushed = self.flush(namespace);
            outcome = outcome.and(flushed.map_err(write_error(namespace)));
        }
        outcome
    }

    /// Brings the Persistent Memory Region to stable storage. With `may_lose_power`, a power loss
    /// affects later writes.
    pub(crate) fn persist(&self, may_lose_power: bool) {
        if let Some(pmr) = &self.pmr {
            pmr.sync(may_lose_power);
        }
    }

    /// Returns `true` if the Persistent Memory Region has failed.
    pub(crate) fn pmr_has_failed(&self) -> bool {
        let failure = self.pmr.as_ref().and_then(|pmr| pmr.failure());
        failure.is_some()
    }

    /// Returns the namespace before these, which has been synced.
    pub(crate) fn synced(&self, rest: &Range<usize>) -> Option<&Namespace> {
        self.namespaces.get(rest.start.checked_sub(1)?)
    }

    /// Ends a sync of the namespace before `rest`. It has succeeded if all syncs before the
    /// returned ticket have.
    pub(crate) fn end_sync(&self, rest: &Range<usize>, ticket: Ticket, is_ok: bool) -> Ticket {
        self.synced(rest).map_or(ticket, |namespace| {
            self.end_sync_of(namespace, ticket, is_ok)
        })
    }

    fn end_sync_of(&self, namespace: &Namespace, ticket: Ticket, is_ok: bool) -> Ticket {
        namespace.synced(ticket, is_ok);
        let (before, is_awaited) = namespace.syncs().end(ticket, is_ok);
        if is_awaited || !is_ok {
            (self.wake)();
        }
        before
    }

    /// Records a power loss. `pattern` selects the unflushed data that is lost.
    pub(crate) fn lose_power(&self, pattern: u64) {
        *self.power_loss.lock() = Some(pattern);
    }

    /// Executes a recorded power loss, if there is one. No command may be in progress.
    pub(crate) fn settle_power_loss(&self) {
        let Some(pattern) = self.power_loss.lock().take() else {
            return;
        };
        let mut rng = Rng::with_seed(pattern);
        for namespace in &self.namespaces {
            if let Err(error) = namespace.lose_power(&mut rng) {
                namespace.complain("written", &error);
            }
        }
        let lost = self.pmr.as_ref().map(|pmr| pmr.lose_power(&mut rng));
        if let Some(Err(error)) = lost {
            log::debug!("the PMR keeps its data in a power loss: {error}");
        }
    }

    /// Returns `true` if data that was written to any namespace may be lost.
    pub(crate) fn has_lost_data(&self) -> bool {
        let mut namespaces = self.namespaces.iter();
        namespaces.any(|namespace| namespace.check_kept().is_err())
    }
}

/// Returns the index of a namespace: NSIDs begin at 1.
fn index_of(nsid: u32) -> Option<usize> {
    usize::try_from(nsid.checked_sub(1)?).ok()
}
