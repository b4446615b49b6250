//! The ledger of a function: its counters and its flight record of DMA, doorbells, interrupts and
//! commands.

use std::sync::OnceLock;

use peerbar_dma_log::Origin;
use peerbar_dma_log::counter_file::DeviceEvent;
use peerbar_flight::{DoorbellEvent, Event, IgnoredWrite, Operation, Recorder, RegisterWrite};

use crate::counters::Counters;
use crate::error::DmaError;
use crate::recording;
use crate::segment_result::{DmaSegment, SegmentResult};
use crate::tag::Tag;

/// The counters of a function, and its flight recorder if it has one.
#[derive(Default)]
pub struct Ledger {
    counters: Counters,
    recorder: OnceLock<Recorder>,
}

impl Ledger {
    /// Returns the counts of all DMA so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the flight recorder.
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.get()
    }

    /// Records everything from now on, for the life of the function. Ignores a second recorder.
    pub fn record_in(&self, recorder: Recorder) {
        if self.recorder.set(recorder).is_err() {
            log::error!("a function has one flight recorder");
        }
    }

    /// Notes that the function has ended in order. Threads may still hold the ledger.
    pub fn end_record(&self) {
        if let Some(recorder) = self.recorder.get() {
            recorder.end();
        }
    }

    /// Notes a new value of a queue's doorbell.
    pub fn doorbell(&self, event: impl FnOnce() -> DoorbellEvent) {
        self.note(|| Event::Doorbell(event()));
    }

    /// Notes that a peer has written to the function's registers.
    pub fn register_written(&self, event: impl FnOnce() -> RegisterWrite) {
        self.note(|| Event::RegisterWrite(event()));
    }

    /// Notes and logs a write of the client to registers that has no meaning there.
    pub fn ignored_write(&self, bar: u8, offset: u64, len: usize) {
        log::warn!(
            "a write of {len} bytes at {offset:#x} of BAR {bar} is ignored: it means nothing there"
        );
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.note(|| Event::IgnoredWrite(IgnoredWrite { bar, offset, len }));
    }

    /// Declares that the function counts its client's doorbells. Must precede
    /// [`Requester::count_in`](crate::Requester::count_in).
    pub fn count_doorbells(&self) {
        self.counters.count_doorbells();
    }

    /// Counts that the client has written a queue's doorbell.
    pub fn doorbell_of_client(&self, queue: u16) {
        self.counters.happened(DeviceEvent::Doorbell(queue));
    }

    /// Notes that the client is about to be signalled, to interrupt the guest by an MSI-X vector,
    /// or 0 for the INTx pin.
    pub fn interrupt(&self, vector: u16) {
        self.counters.happened(DeviceEvent::Interrupt);
        self.note(|| Event::Interrupt { vector });
    }

    /// Notes that a command begins: an operation, or the opcode of one without flags.
    pub fn begin(&self, origin: Origin, operation: impl Into<Operation>) {
        self.note(|| Event::Begin {
            origin,
            operation: operation.into(),
        });
    }

    /// Notes that a command is complete, before its driver is notified. `status` is 0 if it succeeded.
    pub fn end(&self, origin: Origin, status: u16) {
        self.note(|| Event::End { origin, status });
    }

    /// Returns the start time of a recorded segment: now.
    pub(crate) fn started(&self) -> u64 {
        self.recorder.get().map_or(0, Recorder::clock)
    }

    pub(crate) fn note(&self, event: impl FnOnce() -> Event) {
        if let Some(recorder) = self.recorder.get() {
            recorder.record(event());
        }
    }

    /// Counts and records the result of a segment, and returns it as the outcome of its request.
    pub(crate) fn account(
        &self,
        tag: Tag,
        segment: DmaSegment,
        result: &SegmentResult,
    ) -> Result<(), DmaError> {
        let entry = result.kind(tag, segment.direction);
        match result.outcome {
            Ok(()) => self.counters.succeeded(entry, segment.len as u64),
            Err(_) => self.counters.failed(entry),
        }
        self.record(tag, segment, result);
        result.outcome.map_err(|cause| {
            let error = DmaError {
                origin: tag.origin,
                address: segment.address,
                len: segment.len,
                cause,
            };
            log::debug!("{error}: {cause}");
            error
        })
    }

    /// Records the result of a segment, if there is a recorder.
    pub(crate) fn record(&self, tag: Tag, segment: DmaSegment, result: &SegmentResult) {
        if let Some(recorder) = self.recorder.get() {
            recorder.dma(recording::dma(tag, segment, result), segment.started);
        }
    }
}
