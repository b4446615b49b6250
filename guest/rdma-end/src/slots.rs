//! Slots of two memories between which requests move data, and their expected content in the end.

use std::collections::{HashMap, VecDeque};

use crate::end::{End, done};
use crate::ends::MARGIN;
use crate::error::Result;
use crate::load::{DEPTH, Written};
use crate::message::{Command, Content, Span};
use crate::workload_error::WorkloadError;

/// Size of a slot in bytes.
pub(crate) const SIZE: u32 = 64 << 10;
/// Number of slots of the target memory: half of them are idle.
const TARGETS: u32 = 2 * DEPTH;
/// Number of slots of the source memory.
const SOURCES: u32 = TARGETS + 1;
/// Content of the target where nothing was written.
const UNTOUCHED: Content = Content::Value(0xa5);

/// The source and the target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Its number.
    pub(crate) id: u64,
    /// The slot that it reads.
    pub(crate) source: u32,
    /// The slot that it writes.
    pub(crate) target: u32,
}

/// The slots of both memories. No request writes to a slot of another one in progress, and each
/// slot gets another content each time.
#[derive(Debug)]
pub(crate) struct Slots {
    next: u64,
    idle: VecDeque<u32>,
    running: HashMap<u64, Request>,
    /// For each slot of the target.
    written: Vec<Written>,
}

impl Slots {
    /// Makes unused slots.
    pub(crate) fn new() -> Self {
        Self {
            next: 0,
            idle: (0..TARGETS).collect(),
            running: HashMap::new(),
            written: (0..TARGETS).map(|_| Written::default()).collect(),
        }
    }

    /// Returns the next request. It writes to the slot that has been idle for longest.
    pub(crate) fn next(&mut self) -> std::result::Result<Request, WorkloadError> {
        let target = self.idle.pop_front().ok_or(WorkloadError::AllInUse)?;
        let last = self.written(target)?.last;
        let source = last.map_or(target, |last| (last + 1) % SOURCES);
        let id = self.next;
        self.next += 1;
        let request = Request { id, source, target };
        self.running.insert(id, request);
        Ok(request)
    }

    /// Ends request `id`. A slot whose request failed is not used again.
    pub(crate) fn complete(
        &mut self,
        id: u64,
        has_succeeded: bool,
    ) -> std::result::Result<(), WorkloadError> {
        let ended = self.running.remove(&id);
        let Request { source, target, .. } = ended.ok_or(WorkloadError::NotInProgress { id })?;
        let written = self.written(target)?;
        if has_succeeded {
            written.last = Some(source);
            self.idle.push_back(target);
        } else {
            written.failed = Some(source);
        }
        Ok(())
    }

    /// Returns the number of requests that have not ended.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Returns the number of requests so far.
    pub(crate) fn posted(&self) -> u64 {
        self.next
    }

    /// Returns the expected content of each slot of the target.
    pub(crate) fn into_written(self) -> Vec<Written> {
        self.written
    }

    fn written(&mut self, target: u32) -> std::result::Result<&mut Written, WorkloadError> {
        let slot = usize::try_from(target).ok();
        let slot = slot.and_then(|slot| self.written.get_mut(slot));
        slot.ok_or(WorkloadError::AllInUse)
    }
}

/// Returns the bytes that each memory needs.
pub(crate) fn bytes() -> u32 {
    let margin = u32::try_from(MARGIN).unwrap_or(u32::MAX);
    SOURCES.saturating_mul(SIZE).saturating_add(2 * margin)
}

/// Returns the first `length` bytes of a slot.
pub(crate) fn span(slot: u32, length: u32) -> Span {
    let offset = MARGIN.saturating_add(u64::from(slot) * u64::from(SIZE));
    Span { offset, length }
}

/// Returns the content of a slot of the source.
pub(crate) fn content(seed: u64, slot: u32) -> Content {
    Content::Seed(seed.wrapping_add(slot.into()))
}

/// Fills each slot of `source` with its own content.
pub(crate) fn fill_source(source: &mut dyn End, seed: u64) -> Result<()> {
    for slot in 0..SOURCES {
        let (span, content) = (span(slot, SIZE), content(seed, slot));
        done(source, &Command::Put { span, content })?;
    }
    Ok(())
}

/// Fills all of `target` with a value that no request writes.
pub(crate) fn fill_target(target: &mut dyn End) -> Result<()> {
    let (length, content) = (bytes(), UNTOUCHED);
    let span = Span { offset: 0, length };
    done(target, &Command::Put { span, content })
}

/// Checks that each slot of `target` has the data of the last successful request. If a later one
/// has failed, each byte may also be that of the failed request. Nothing else may have changed.
pub(crate) fn expect_target(target: &mut dyn End, seed: u64, written: &[Written]) -> Result<()> {
    let of = |source: Option<u32>| source.map_or(UNTOUCHED, |source| content(seed, source));
    for (slot, Written { last, failed }) in (0..).zip(written) {
        let span = span(slot, SIZE);
        let contents = [of(*last), of(failed.or(*last))];
        done(target, &Command::Expect { span, contents })?;
    }
    let used = u32::try_from(written.len()).unwrap_or(SOURCES);
    expect_untouched(target, 0, MARGIN)?;
    expect_untouched(target, span(used, 0).offset, bytes().into())
}

/// Checks that each slot of `source` still has its content.
pub(crate) fn expect_source(source: &mut dyn End, seed: u64) -> Result<()> {
    for slot in 0..SOURCES {
        let wanted = Command::expect(span(slot, SIZE), content(seed, slot));
        done(source, &wanted)?;
    }
    Ok(())
}

/// Checks that nothing has changed where messages of `length` bytes went to the first `slots` slots
/// of `target`, except those bytes.
pub(crate) fn expect_beside(target: &mut dyn End, slots: u32, length: u32) -> Result<()> {
    expect_untouched(target, 0, MARGIN)?;
    for slot in 0..slots {
        let end = span(slot.saturating_add(1), 0).offset;
        let rest = span(slot, 0).offset.saturating_add(length.into());
        expect_untouched(target, rest, end)?;
    }
    expect_untouched(target, span(slots, 0).offset, bytes().into())
}

/// Checks that the memory from `start` to `end` is unchanged.
fn expect_untouched(target: &mut dyn End, start: u64, end: u64) -> Result<()> {
    let span = Span {
        offset: start,
        length: u32::try_from(end.saturating_sub(start)).unwrap_or(u32::MAX),
    };
    done(target, &Command::expect(span, UNTOUCHED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeEnd;

    const SEED: u64 = 7;

    /// Executes a request, or a part of it.
    fn write(target: &mut FakeEnd, request: Request, length: u32) {
        let span = span(request.target, length);
        let content = content(SEED, request.source);
        done(target, &Command::Put { span, content }).unwrap();
    }

    fn change(target: &mut FakeEnd, offset: u64, value: u8) {
        let span = Span { offset, length: 1 };
        let content = Content::Value(value);
        done(target, &Command::Put { span, content }).unwrap();
    }

    /// Slots whose targets were all written twice, and a request in progress.
    fn used() -> (Slots, FakeEnd, Request) {
        let mut slots = Slots::new();
        let mut target = FakeEnd::pair(bytes().into()).0;
        fill_target(&mut target).unwrap();
        for _ in 0..2 * TARGETS {
            let request = slots.next().unwrap();
            write(&mut target, request, SIZE);
            slots.complete(request.id, true).unwrap();
        }
        let last = slots.next().unwrap();
        assert_eq!(slots.running(), 1);
        (slots, target, last)
    }

    #[test]
    fn target_has_what_was_acknowledged_and_nothing_else() {
        let (mut slots, mut target, last) = used();
        slots.complete(last.id, true).unwrap();
        let written = slots.into_written();
        // It was acknowledged, and the slot has the data of the request before it.
        let error = expect_target(&mut target, SEED, &written).unwrap_err();
        assert!(error.to_string().contains("byte 0 of 65536"), "{error}");
        write(&mut target, last, SIZE);
        expect_target(&mut target, SEED, &written).unwrap();
        let (first, end) = (MARGIN, u64::from(bytes()));
        for changed in [0, first - 1, first + 9, span(TARGETS, 0).offset, end - 1] {
            let mut seen = target.memory(changed);
            seen ^= 1;
            change(&mut target, changed, seen);
            let checked = expect_target(&mut target, SEED, &written);
            assert!(checked.is_err(), "byte {changed}");
            change(&mut target, changed, seen ^ 1);
        }
        expect_target(&mut target, SEED, &written).unwrap();
        // The content of a request to another slot.
        let astray = Request { target: 5, ..last };
        for source in 0..2 {
            write(&mut target, Request { source, ..astray }, SIZE);
            assert!(expect_target(&mut target, SEED, &written).is_err());
        }
    }

    #[test]
    fn failed_request_may_have_written_its_bytes_alone() {
        let (mut slots, mut target, last) = used();
        slots.complete(last.id, false).unwrap();
        let written = slots.into_written();
        expect_target(&mut target, SEED, &written).unwrap();
        write(&mut target, last, 1000);
        expect_target(&mut target, SEED, &written).unwrap();
        let at = span(last.target, 0).offset;
        let other = !target.memory(at);
        change(&mut target, at, other);
        assert!(expect_target(&mut target, SEED, &written).is_err());
    }

    #[test]
    fn slot_of_a_failed_request_is_used_no_more() {
        let (mut slots, _, last) = used();
        slots.complete(last.id, false).unwrap();
        assert!(slots.complete(last.id, false).is_err(), "it has ended");
        for _ in 1..TARGETS {
            assert_ne!(slots.next().unwrap().target, last.target);
        }
        assert!(slots.next().is_err(), "all slots are in use");
    }

    #[test]
    fn byte_beside_a_message_is_found() {
        let mut target = FakeEnd::pair(bytes().into()).0;
        fill_target(&mut target).unwrap();
        let length = 100;
        let inside = [span(0, 0).offset, span(1, 0).offset + 99];
        for at in inside {
            change(&mut target, at, 0);
        }
        expect_beside(&mut target, 2, length).unwrap();
        let end = u64::from(bytes()) - 1;
        for at in [MARGIN - 1, MARGIN + 100, span(2, 0).offset, end] {
            change(&mut target, at, 0);
            assert!(expect_beside(&mut target, 2, length).is_err(), "byte {at}");
            change(&mut target, at, 0xa5);
        }
    }
}
