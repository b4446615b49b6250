//! The doorbell registers: the last value written to each, and the owner of its queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use peerbar_dma::MemoryError;
use peerbar_nvme_spec::registers::Doorbell;

use crate::sync::MemoryFile;

/// The upper half of a doorbell is reserved (NVMe over PCIe 1.0, 3.1.2).
pub(crate) const VALUE: u32 = 0xffff;
/// Owner of a doorbell whose queue does not exist.
const NO_OWNER: u8 = u8::MAX;

/// The thread that owns a queue: 0 is the engine, which owns the admin queues, and the workers have
/// numbers from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(pub(crate) u8);

/// Doorbells in a page of BAR0. If the guest maps the page, it writes there without a notification.
pub(crate) struct DoorbellPage {
    /// A file as long as BAR0, with each doorbell at its offset in the BAR.
    file: Arc<MemoryFile>,
    tails: Vec<AtomicU8>,
    heads: Vec<AtomicU8>,
}

impl DoorbellPage {
    /// Makes the doorbells of `queues` queue pairs, the admin queues included, in a BAR of
    /// `bar_bytes`.
    pub(crate) fn new(queues: u16, bar_bytes: u64) -> Result<Self, MemoryError> {
        let no_owners = || (0..queues).map(|_| AtomicU8::new(NO_OWNER)).collect();
        Ok(Self {
            file: Arc::new(MemoryFile::create("peerbar-nvme-doorbells", bar_bytes)?),
            tails: no_owners(),
            heads: no_owners(),
        })
    }

    /// Returns the file that the guest may map.
    #[cfg(not(feature = "loom"))]
    pub(crate) fn file(&self) -> Arc<MemoryFile> {
        self.file.clone()
    }

    /// Under loom, the guest maps no file.
    #[cfg(feature = "loom")]
    pub(crate) fn file(&self) -> Arc<peerbar_dma::MemoryFile> {
        unreachable!("a model has no files")
    }

    /// Returns the value of a doorbell: the last one written since its queue was created.
    pub(crate) fn value(&self, doorbell: Doorbell) -> u32 {
        let offset = doorbell.offset(0);
        offset.map_or(0, |offset| self.file.load(offset).unwrap_or(0) & VALUE)
    }

    /// Rings a doorbell on behalf of the guest. Returns the owner of its queue, if the queue
    /// exists.
    pub(crate) fn ring(&self, doorbell: Doorbell, value: u32) -> Option<Owner> {
        let owner = self.owner(doorbell)?.load(Ordering::Acquire);
        (owner != NO_OWNER).then(|| {
            self.store(doorbell, value & VALUE);
            Owner(owner)
        })
    }

    /// Sets the owner of a queue that is created, or `None` for one that is deleted. Its doorbell
    /// starts from 0.
    pub(crate) fn set_owner(&self, doorbell: Doorbell, owner: Option<Owner>) {
        self.store(doorbell, 0);
        if let Some(slot) = self.owner(doorbell) {
            slot.store(owner.map_or(NO_OWNER, |owner| owner.0), Ordering::Release);
        }
    }

    fn store(&self, doorbell: Doorbell, value: u32) {
        let stored = doorbell
            .offset(0)
            .map(|offset| self.file.store(offset, value));
        if let Some(Err(error)) = stored {
            log::debug!("{doorbell:?}: {error}");
        }
    }

    fn owner(&self, doorbell: Doorbell) -> Option<&AtomicU8> {
        match doorbell {
            Doorbell::SubmissionTail(queue) => self.tails.get(usize::from(queue)),
            Doorbell::CompletionHead(queue) => self.heads.get(usize::from(queue)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_of_a_missing_queue_leaves_no_value() {
        let doorbells = DoorbellPage::new(3, 0x4000).unwrap();
        for doorbell in [
            Doorbell::CompletionHead(2),
            Doorbell::SubmissionTail(3),
            Doorbell::SubmissionTail(u16::MAX),
        ] {
            assert_eq!(doorbells.ring(doorbell, 7), None, "{doorbell:?}");
            assert_eq!(doorbells.value(doorbell), 0, "{doorbell:?}");
        }
    }

    #[test]
    fn last_value_counts_and_a_new_queue_starts_from_0() {
        let doorbells = DoorbellPage::new(3, 0x4000).unwrap();
        let doorbell = Doorbell::SubmissionTail(2);
        doorbells.set_owner(doorbell, Some(Owner(1)));
        assert_eq!(doorbells.ring(doorbell, 0x5_0007), Some(Owner(1)));
        assert_eq!(doorbells.value(doorbell), 7, "the upper half is reserved");
        doorbells.file().store(0x1010, 9).unwrap();
        assert_eq!(doorbells.value(doorbell), 9);
        doorbells.set_owner(doorbell, None);
        assert_eq!(doorbells.ring(doorbell, 3), None);
        doorbells.set_owner(doorbell, Some(Owner(0)));
        assert_eq!(doorbells.value(doorbell), 0);
    }
}
