//! Fixtures for the tests of queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use peerbar_dma::{DmaError, Tag};
use peerbar_nvme_spec::completion::{CompletionEntry, Status};
use peerbar_nvme_spec::feature::InterruptCoalescing;
use peerbar_pci::{InterruptMode, Interrupts, Iova};
use zerocopy::FromZeros;

use super::completion::CompletionQueue;
use super::doorbell::GuestWords;
use super::interrupt::{Coalescing, QueueInterrupts};
use super::ring::Ring;
use super::submission::SubmissionQueue;
use crate::doorbell_page::DoorbellPage;
use crate::intx::Intx;
use crate::notifier::Notifier;
use crate::registers::Registers;

/// The vector of all queues.
pub(crate) const VECTOR: u16 = 1;

/// Interrupts that count messages.
#[derive(Default)]
pub(crate) struct Sent(AtomicUsize);

impl Sent {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Interrupts for Sent {
    fn mode(&self) -> InterruptMode {
        InterruptMode::MsiX
    }

    fn raise(&self, _vector: u16) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn set_pin(&self, _asserted: bool) {}
}

/// Two pages of guest memory. Only the word of queue 1's doorbell is used in each.
#[derive(Default)]
pub(crate) struct TwoWords {
    pub(crate) value: u32,
    pub(crate) event: u32,
}

impl TwoWords {
    pub(crate) fn word(&mut self, address: Iova) -> &mut u32 {
        if address < Iova(0x1000) {
            &mut self.value
        } else {
            &mut self.event
        }
    }
}

impl GuestWords for TwoWords {
    fn load(&mut self, address: Iova) -> Option<u32> {
        Some(*self.word(address))
    }

    fn store(&mut self, address: Iova, value: u32) -> bool {
        *self.word(address) = value;
        true
    }
}

/// Returns the interrupts of a worker, and the messages that it sends.
pub(crate) fn interrupts(settings: InterruptCoalescing) -> (QueueInterrupts, Arc<Sent>) {
    let sent = Arc::new(Sent::default());
    let page = DoorbellPage::new(3, 0x4000).unwrap();
    let notifier = Notifier::new(
        Registers::new(None, None),
        page,
        Intx::new(3),
        1,
        sent.clone(),
    );
    let coalescing = Coalescing::new(2);
    coalescing.set(settings, &[false; 2]);
    let notifier = Arc::new(notifier.unwrap());
    let interrupts = QueueInterrupts::new(notifier, Arc::new(coalescing));
    (interrupts, sent)
}

pub(crate) fn completion_queue(
    interrupts: &QueueInterrupts,
    id: u16,
    (base, entries): (u64, u32),
) -> CompletionQueue {
    let notifier = &interrupts.notifier;
    notifier.intx.open(id, entries, Some(VECTOR));
    let base = Iova(base);
    let ring = Ring { base, entries };
    CompletionQueue::new(id, Some(VECTOR), ring, notifier.doorbells.clone())
}

pub(crate) fn submission_queue(
    interrupts: &QueueInterrupts,
    id: u16,
    (base, entries): (u64, u32),
) -> SubmissionQueue {
    let base = Iova(base);
    SubmissionQueue::new(
        id,
        Ring { base, entries },
        interrupts.notifier.doorbells.clone(),
    )
}

/// Stages an empty completion. Returns `true` if the queue must be flushed.
pub(crate) fn stage(queue: &mut CompletionQueue) -> bool {
    let permit = queue.reserve().unwrap();
    queue.stage(permit, CompletionEntry::new_zeroed(), Status::SUCCESS)
}

/// Flushes the staged entries. Returns their address and bytes.
pub(crate) fn flush(
    queue: &mut CompletionQueue,
    interrupts: &QueueInterrupts,
) -> Option<(u64, Vec<u8>)> {
    let mut written = None;
    let write = |_: Tag, address: Iova, bytes: &[u8]| -> Result<(), DmaError> {
        written = Some((address.0, bytes.to_vec()));
        Ok(())
    };
    queue.flush(interrupts, write).unwrap();
    written
}
