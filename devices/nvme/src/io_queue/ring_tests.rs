//! Tests of `submission.rs` and `completion.rs`.

use peerbar_dma::{DmaError, Requester, Tag};
use peerbar_nvme_spec::completion::{CompletionEntry, Status};
use peerbar_nvme_spec::feature::InterruptCoalescing;
use peerbar_pci::Iova;
use zerocopy::FromZeros;

use super::completion::CompletionQueue;
use super::fixture::{self, TwoWords, completion_queue, flush, stage, submission_queue};
use super::interrupt::QueueInterrupts;
use super::permit::{Generation, Permit};
use super::submission::{Batch, SubmissionQueue};

fn interrupts() -> QueueInterrupts {
    fixture::interrupts(InterruptCoalescing::new()).0
}

/// A submission queue and a completion queue with enough entries.
fn pair() -> (SubmissionQueue, CompletionQueue) {
    let interrupts = interrupts();
    let submission = submission_queue(&interrupts, 1, (0x1000, 4));
    (submission, completion_queue(&interrupts, 1, (0x9000, 64)))
}

/// Fetches up to `most` commands. Returns their address and number.
fn fetch(
    (submission, completion): &mut (SubmissionQueue, CompletionQueue),
    most: usize,
) -> Option<(u64, usize)> {
    let mut fetched = None;
    let mut batch = Batch::new(8);
    let read = |_: Tag, address: Iova, bytes: &mut [u8]| -> Result<(), DmaError> {
        fetched = Some((address.0, bytes.len() / 64));
        Ok(())
    };
    submission
        .fetch(completion, &mut batch, most, read)
        .unwrap();
    assert_eq!(batch.len(), fetched.map_or(0, |(_, count)| count));
    batch
        .take()
        .for_each(|command| completion.release(command.permit));
    fetched
}

fn set_tail(pair: &mut (SubmissionQueue, CompletionQueue), value: u32) -> bool {
    pair.0.set_tail(value, &mut TwoWords::default())
}

#[test]
fn fetch_takes_entries_in_order_and_around_the_end() {
    let mut pair = pair();
    assert_eq!(
        (fetch(&mut pair, 8), pair.0.next_address().0),
        (None, 0x1000)
    );
    assert!(set_tail(&mut pair, 3));
    assert_eq!(fetch(&mut pair, 2), Some((0x1000, 2)));
    assert_eq!(fetch(&mut pair, 8), Some((0x1080, 1)));
    assert_eq!(pair.0.next_address().0, 0x10c0);
    assert_eq!(fetch(&mut pair, 8), None);
    assert!(set_tail(&mut pair, 2));
    assert_eq!(fetch(&mut pair, 8), Some((0x10c0, 1)), "up to the end");
    assert_eq!(pair.0.end(0.into()).sqhd.get(), 0);
    assert_eq!(fetch(&mut pair, 8), Some((0x1000, 2)));
}

#[test]
fn fetch_reserves_and_stops_at_a_full_completion_queue() {
    let interrupts = interrupts();
    let mut submission = submission_queue(&interrupts, 1, (0x1000, 8));
    let mut completion = completion_queue(&interrupts, 1, (0x9000, 3));
    submission.set_tail(5, &mut TwoWords::default());
    let mut batch = Batch::new(8);
    let read = |_: Tag, _, _: &mut [u8]| -> Result<(), DmaError> { Ok(()) };
    submission
        .fetch(&mut completion, &mut batch, 8, read)
        .unwrap();
    assert_eq!((batch.len(), completion.free_entries()), (2, 0));
    assert_eq!(submission.outstanding, 2);
    assert!(completion.reserve().is_none());
    for command in batch.take() {
        completion.release(command.permit);
    }
    assert_eq!(completion.free_entries(), 2);
}

#[test]
fn failed_fetch_gives_its_permits_back() {
    let mut pair = pair();
    set_tail(&mut pair, 3);
    let (submission, completion) = &mut pair;
    let mut batch = Batch::new(8);
    let requester = Requester::new(); // Without bus mastering.
    let read = |tag: Tag, address, bytes: &mut [u8]| requester.read(tag, address, bytes);
    assert!(submission.fetch(completion, &mut batch, 8, read).is_err());
    assert_eq!((batch.len(), submission.outstanding), (0, 0));
    assert_eq!(completion.free_entries(), 63);
    assert_eq!(fetch(&mut pair, 8), Some((0x1000, 3)));
}

#[test]
fn invalid_tail_is_reported_once_and_changes_nothing() {
    let mut pair = pair();
    assert!(set_tail(&mut pair, 2));
    assert!(!set_tail(&mut pair, 4));
    assert!(set_tail(&mut pair, 4));
    assert!(!set_tail(&mut pair, u32::MAX));
    assert_eq!(fetch(&mut pair, 8), Some((0x1000, 2)));
}

/// A completion queue of `entries` entries whose head doorbell is a word.
struct Fixture {
    queue: CompletionQueue,
    interrupts: QueueInterrupts,
}

impl Fixture {
    fn new(entries: u32) -> Self {
        let interrupts = interrupts();
        Self {
            queue: completion_queue(&interrupts, 1, (0x2000, entries)),
            interrupts,
        }
    }

    /// Stages and flushes an entry. Returns its address and phase.
    fn push(&mut self) -> (u64, bool) {
        stage(&mut self.queue);
        let (address, bytes) = flush(&mut self.queue, &self.interrupts).unwrap();
        (address, bytes[14] & 1 == 1)
    }

    /// Rings the head doorbell. Returns `true` if the queue accepts the value.
    fn set_head(&mut self, value: u32) -> bool {
        let notifier = self.interrupts.notifier.clone();
        let register = peerbar_nvme_spec::registers::Doorbell::CompletionHead(1);
        let owner = Some(crate::doorbell_page::Owner(1));
        notifier.doorbells.set_owner(register, owner);
        notifier.ring(register, value);
        let memory = &mut TwoWords::default();
        self.queue.take_head(&self.interrupts, memory);
        let (_, invalid) = notifier.take_doorbell_errors();
        !invalid
    }
}

#[test]
fn phase_turns_at_the_end_and_a_full_queue_is_not_overtaken() {
    let mut fixture = Fixture::new(3);
    assert_eq!(fixture.push(), (0x2000, true));
    assert_eq!(fixture.queue.free_entries(), 1);
    assert_eq!(fixture.push(), (0x2010, true));
    assert_eq!(fixture.queue.free_entries(), 0);
    assert!(fixture.set_head(2));
    assert_eq!(fixture.queue.free_entries(), 2);
    assert_eq!(fixture.push(), (0x2020, true));
    assert_eq!(fixture.push(), (0x2000, false));
}

#[test]
fn entries_are_flushed_together_but_not_around_the_end() {
    let mut fixture = Fixture::new(3);
    assert!(!stage(&mut fixture.queue));
    assert!(!stage(&mut fixture.queue));
    assert_eq!(fixture.queue.unread(), 0, "the guest cannot see them yet");
    let flushed = |fixture: &mut Fixture| flush(&mut fixture.queue, &fixture.interrupts);
    let (address, bytes) = flushed(&mut fixture).unwrap();
    assert_eq!((address, bytes.len()), (0x2000, 32));
    assert_eq!((flushed(&mut fixture), fixture.queue.unread()), (None, 2));
    assert!(fixture.set_head(2));
    assert!(stage(&mut fixture.queue), "the last slot");
    let (address, bytes) = flushed(&mut fixture).unwrap();
    assert_eq!((address, bytes.len()), (0x2020, 16));
}

#[test]
fn entries_that_were_kept_are_flushed_around_the_end() {
    let mut fixture = Fixture::new(4);
    fixture.push();
    fixture.push();
    assert!(fixture.set_head(2));
    for _ in 0..3 {
        stage(&mut fixture.queue);
    }
    let mut written = Vec::new();
    let mut write = |_: Tag, address: Iova, bytes: &[u8]| -> Result<(), DmaError> {
        written.push((address.0, bytes.len(), bytes[14] & 1));
        Ok(())
    };
    let flushed = fixture.queue.flush(&fixture.interrupts, &mut write);
    assert_eq!(flushed, Ok(()));
    assert_eq!(written, [(0x2020, 32, 1), (0x2000, 16, 0)]);
    assert_eq!(
        (fixture.queue.unread(), fixture.queue.free_entries()),
        (3, 0)
    );
}

#[test]
fn head_beyond_what_is_flushed_is_refused() {
    let mut fixture = Fixture::new(4);
    fixture.push();
    stage(&mut fixture.queue);
    assert!(!fixture.set_head(2));
    assert!(!fixture.set_head(4));
    assert!(fixture.set_head(1));
    assert!(!fixture.set_head(0));
}

#[test]
fn expired_permit_stages_nothing() {
    let mut fixture = Fixture::new(4);
    let generation = Generation::default();
    fixture.queue.join(&generation);
    let permit = fixture.queue.reserve().unwrap();
    generation.advance();
    let entry = CompletionEntry::new_zeroed();
    assert!(!fixture.queue.stage(permit, entry, Status::SUCCESS));
    assert_eq!(flush(&mut fixture.queue, &fixture.interrupts), None);
    let late = Permit::new(&generation);
    generation.advance();
    drop(late);
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "a command was dropped without a completion")]
fn unused_permit_when_dropped_panics() {
    drop(Permit::new(&Generation::default()));
}

#[test]
fn arm_frees_entries_taken_during_the_call() {
    let mut fixture = Fixture::new(4);
    for _ in 0..3 {
        fixture.push();
    }
    let shadow = super::doorbell::ShadowBuffer {
        values: Iova(0),
        events: Iova(0x1000),
    };
    let mut memory = TwoWords::default();
    fixture.queue.doorbell.move_to(shadow, &mut memory);
    memory.value = 2;
    fixture.queue.arm(&fixture.interrupts, &mut memory).unwrap();
    assert_eq!((fixture.queue.free_entries(), memory.event), (2, 2));
}
