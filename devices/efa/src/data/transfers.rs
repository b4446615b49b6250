//! Moves payload: from memory to memory by one copy if both are mapped here, and otherwise through
//! a buffer.

use std::sync::Arc;

use peerbar_dma::{
    BusMastering, CopyError, Direction, DmaError, Origin, Purpose, Requester, Session, Span, Tag,
};
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_pci::Iova;

use crate::entry::write_word_last;
use crate::objects::BusSegment;
use crate::work::packet::Refusal;

/// Size of the buffer for bytes that are not mapped here.
const BOUNCE: usize = 64 << 10;

/// The statuses of a transfer whose source or whose destination fails.
#[derive(Clone, Copy)]
pub(super) struct Failure {
    pub(super) source: CompletionStatus,
    pub(super) destination: CompletionStatus,
}

/// The data of a message or an RDMA write.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'a> {
    /// In memory that this adapter reaches.
    Segments(&'a [BusSegment]),
    /// In this process.
    Bytes(&'a [u8]),
}

impl Payload<'_> {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Segments(segments) => total(segments),
            Self::Bytes(data) => data.len(),
        }
    }
}

/// The worker's way to memory.
pub(super) struct Transfers {
    pub(super) session: Session,
    /// Bus mastering when the present turn began. Without it the adapter issues no request (PCIe
    /// Base 6.0, 7.5.1.1.3).
    bus: BusMastering,
    buffer: Vec<u8>,
    /// Number of bytes that have gone through the buffer.
    pub(super) bounced: u64,
    /// Bytes that were copied from or to slots in this turn.
    pub(super) staged: u64,
}

impl Transfers {
    pub(super) fn new(requester: Arc<Requester>) -> Self {
        Self {
            session: Session::new(requester),
            bus: BusMastering::default(),
            buffer: vec![0; BOUNCE],
            bounced: 0,
            staged: 0,
        }
    }

    /// Begins a turn. Returns `true` if bus mastering is on again.
    pub(super) fn begin_turn(&mut self) -> bool {
        self.staged = 0;
        self.bus.follow(self.session.requester())
    }

    /// Returns `true` if bus mastering was on when the present turn began.
    pub(super) fn is_bus_master(&self) -> bool {
        self.bus.is_on()
    }

    /// Returns `true` if completions and events are kept until bus mastering is on: it is off, or
    /// has changed in the present turn. Entries after a kept one are kept as well.
    pub(super) fn keeps_entries(&self) -> bool {
        !self.bus.is_on() || self.bus.has_changed(self.session.requester())
    }

    /// Writes an entry whose phase is in its first word.
    pub(super) fn write_entry(
        &mut self,
        origin: Origin,
        address: u64,
        entry: &[u8],
    ) -> Result<(), DmaError> {
        let tag = Tag::new(Purpose::Completion, origin);
        write_word_last(entry, 0, |offset, part| {
            let address = Iova(address.wrapping_add(offset));
            self.session.write_entries(tag, address, part, part.len())
        })
    }

    /// Copies from segments to segments of the same length.
    pub(super) fn copy(
        &mut self,
        tag: Tag,
        from: &[BusSegment],
        to: &[BusSegment],
        failure: Failure,
    ) -> Result<(), CompletionStatus> {
        let from_pinned = self.session.pin(tag, Direction::Read, ranges(from));
        if let Some(from) = from_pinned {
            if let Some(to) = self.session.pin(tag, Direction::Write, ranges(to)) {
                return from.copy_to(to).map_err(|error| match error {
                    CopyError::Source(_) => failure.source,
                    CopyError::Destination(_) | CopyError::Lengths { .. } => failure.destination,
                });
            }
        }
        self.bounce(tag, from, to, failure)
    }

    /// Copies payload to segments of the same length.
    pub(super) fn put(
        &mut self,
        tag: Tag,
        payload: Payload<'_>,
        to: &[BusSegment],
        failure: Failure,
    ) -> Result<(), CompletionStatus> {
        match payload {
            Payload::Segments(from) => self.copy(tag, from, to, failure),
            Payload::Bytes(data) => self.write(tag, data, to, failure.destination),
        }
    }

    /// Copies memory into a slot, which has room for it. The status says that the memory cannot be
    /// read.
    pub(super) fn put_into(
        &mut self,
        tag: Tag,
        from: &[BusSegment],
        slot: &Span,
        status: CompletionStatus,
    ) -> Result<(), Refusal> {
        let copied = match self.session.pin(tag, Direction::Read, ranges(from)) {
            Some(pinned) => pinned.copy_into(slot).map_err(|error| match error {
                CopyError::Source(_) => status.into(),
                CopyError::Destination(_) | CopyError::Lengths { .. } => Refusal::NotStaged,
            }),
            None => self
                .read(tag, from, status)
                .map_err(Refusal::from)
                .and_then(|data| {
                    let written = slot.file.write(slot.offset, &data);
                    written.map_err(|_| Refusal::NotStaged)?;
                    self.bounced += data.len() as u64;
                    Ok(())
                }),
        };
        self.session.release();
        self.staged += total(from) as u64;
        copied
    }

    /// Copies the beginning of a slot into memory, as much as there is room for. The status says
    /// that the memory cannot be written.
    pub(super) fn take_from(
        &mut self,
        tag: Tag,
        slot: &Span,
        to: &[BusSegment],
        status: CompletionStatus,
    ) -> Result<(), Refusal> {
        let copied = match self.session.pin(tag, Direction::Write, ranges(to)) {
            Some(pinned) => pinned.copy_from(slot).map_err(|error| match error {
                CopyError::Destination(_) => status.into(),
                CopyError::Source(_) | CopyError::Lengths { .. } => Refusal::NotStaged,
            }),
            None => {
                let mut data = vec![0; total(to)];
                let read = slot.file.read(slot.offset, &mut data);
                read.map_err(|_| Refusal::NotStaged).and_then(|()| {
                    self.write(tag, &data, to, status)?;
                    self.bounced += data.len() as u64;
                    Ok(())
                })
            }
        };
        self.session.release();
        self.staged += total(to) as u64;
        copied
    }

    /// Copies through the buffer. Nothing is pinned and no route is kept while this runs, since
    /// other processes may be asked.
    fn bounce(
        &mut self,
        tag: Tag,
        from: &[BusSegment],
        to: &[BusSegment],
        failure: Failure,
    ) -> Result<(), CompletionStatus> {
        self.session.release();
        let requester = self.session.requester();
        let bytes = total(from);
        if bytes != total(to) {
            log::error!("{bytes} bytes do not fit {} bytes", total(to));
            return Err(failure.destination);
        }
        let mut moved = 0;
        while moved < bytes {
            let part = (bytes - moved).min(self.buffer.len());
            let data = self.buffer.get_mut(..part).unwrap_or_default();
            let (from, to) = (cut(from, moved, part), cut(to, moved, part));
            requester
                .gather(tag, ranges(&from), data)
                .map_err(|_| failure.source)?;
            requester
                .scatter(tag, ranges(&to), data)
                .map_err(|_| failure.destination)?;
            moved += part;
            self.bounced += part as u64;
        }
        Ok(())
    }

    /// Writes these bytes to segments of the same length. The status is that of a failure.
    pub(super) fn write(
        &mut self,
        tag: Tag,
        data: &[u8],
        to: &[BusSegment],
        status: CompletionStatus,
    ) -> Result<(), CompletionStatus> {
        self.session.release();
        let requester = self.session.requester();
        requester.scatter(tag, ranges(to), data).map_err(|_| status)
    }

    /// Reads as many bytes as the segments have. The status is that of a failure.
    pub(super) fn read(
        &mut self,
        tag: Tag,
        from: &[BusSegment],
        status: CompletionStatus,
    ) -> Result<Vec<u8>, CompletionStatus> {
        self.session.release();
        let requester = self.session.requester();
        let mut data = vec![0; total(from)];
        requester
            .gather(tag, ranges(from), &mut data)
            .map_err(|_| status)?;
        Ok(data)
    }
}

fn ranges(segments: &[BusSegment]) -> impl Iterator<Item = (Iova, usize)> {
    segments
        .iter()
        .map(|segment| (Iova(segment.address), segment.bytes))
}

/// Returns the length of all of the segments.
pub(super) fn total(segments: &[BusSegment]) -> usize {
    segments
        .iter()
        .fold(0usize, |sum, it| sum.saturating_add(it.bytes))
}

/// Returns the part of the segments that begins after `skip` bytes and has at most `len` bytes.
pub(super) fn cut(segments: &[BusSegment], mut skip: usize, mut len: usize) -> Vec<BusSegment> {
    let mut part = Vec::new();
    for segment in segments {
        let skipped = skip.min(segment.bytes);
        let bytes = len.min(segment.bytes - skipped);
        if bytes > 0 {
            part.push(BusSegment {
                address: segment.address.wrapping_add(skipped as u64),
                bytes,
            });
        }
        skip -= skipped;
        len -= bytes;
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_of_segments_starts_and_ends_anywhere() {
        let segments = [(0x1000, 4), (0x2000, 0), (0x3000, 4)];
        let segments = segments.map(|(address, bytes)| BusSegment { address, bytes });
        let all: Vec<u64> = segments
            .iter()
            .flat_map(|it| it.address..it.address + it.bytes as u64)
            .collect();
        for skip in 0..10 {
            for len in 0..10 {
                let part = cut(&segments, skip, len);
                let bytes: Vec<u64> = part
                    .iter()
                    .flat_map(|it| it.address..it.address + it.bytes as u64)
                    .collect();
                let wanted: Vec<u64> = all.iter().copied().skip(skip).take(len).collect();
                assert_eq!(bytes, wanted, "{skip} {len}");
                assert_eq!(total(&part), wanted.len());
            }
        }
    }
}
