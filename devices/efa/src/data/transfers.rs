//! Moves payload: from memory to memory by one copy if both are mapped here, and otherwise through
//! a buffer.

use std::sync::Arc;

use peerbar_dma::{CopyError, Direction, Requester, Session, Span, Tag};
use thiserror::Error;

use crate::objects::BusSegment;

/// Size of the buffer for bytes that are not mapped here.
const BOUNCE: usize = 64 << 10;

/// The side of a transfer that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum TransferError {
    #[error("the source cannot be read")]
    Source,
    #[error("the destination cannot be written")]
    Destination,
}

/// The side of a copy between memory and a slot that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StagingError {
    /// The memory of the adapter's own function.
    Memory,
    /// The slot, which the process that shares it has taken away.
    Slot,
}

/// Returns the side of a copy that failed.
fn side(error: CopyError) -> TransferError {
    match error {
        CopyError::Source(_) => TransferError::Source,
        CopyError::Destination(_) | CopyError::Lengths { .. } => TransferError::Destination,
    }
}

/// One thread's way to move payload.
pub(super) struct Transfers {
    pub(super) session: Session,
    buffer: Vec<u8>,
    /// Number of bytes that have gone through the buffer.
    pub(super) bounced: u64,
}

impl Transfers {
    pub(super) fn new(requester: Arc<Requester>) -> Self {
        Self {
            session: Session::new(requester),
            buffer: vec![0; BOUNCE],
            bounced: 0,
        }
    }

    /// Copies from segments to segments of the same length.
    pub(super) fn copy(
        &mut self,
        tag: Tag,
        from: &[BusSegment],
        to: &[BusSegment],
    ) -> Result<(), TransferError> {
        let from_pinned = self.session.pin(tag, Direction::Read, ranges(from));
        if let Some(from) = from_pinned {
            if let Some(to) = self.session.pin(tag, Direction::Write, ranges(to)) {
                return from.copy_to(to).map_err(side);
            }
        }
        self.bounce(tag, from, to)
    }

    /// Copies memory into a slot, which has room for it.
    pub(super) fn put_into(
        &mut self,
        tag: Tag,
        from: &[BusSegment],
        slot: &Span,
    ) -> Result<(), StagingError> {
        if let Some(pinned) = self.session.pin(tag, Direction::Read, ranges(from)) {
            return pinned.copy_into(slot).map_err(|error| match error {
                CopyError::Source(_) => StagingError::Memory,
                CopyError::Destination(_) | CopyError::Lengths { .. } => StagingError::Slot,
            });
        }
        let data = self.read(tag, from).map_err(|_| StagingError::Memory)?;
        let written = slot.file.write(slot.offset, &data);
        written.map_err(|_| StagingError::Slot)?;
        self.bounced += data.len() as u64;
        Ok(())
    }

    /// Copies the beginning of a slot into memory, as much as there is room for.
    pub(super) fn take_from(
        &mut self,
        tag: Tag,
        slot: &Span,
        to: &[BusSegment],
    ) -> Result<(), StagingError> {
        if let Some(pinned) = self.session.pin(tag, Direction::Write, ranges(to)) {
            return pinned.copy_from(slot).map_err(|error| match error {
                CopyError::Destination(_) => StagingError::Memory,
                CopyError::Source(_) | CopyError::Lengths { .. } => StagingError::Slot,
            });
        }
        let mut data = vec![0; total(to)];
        let read = slot.file.read(slot.offset, &mut data);
        read.map_err(|_| StagingError::Slot)?;
        self.write(tag, &data, to)
            .map_err(|_| StagingError::Memory)?;
        self.bounced += data.len() as u64;
        Ok(())
    }

    /// Copies through the buffer. Nothing is pinned and no route is kept while this runs, since
    /// other processes may be asked.
    fn bounce(
        &mut self,
        tag: Tag,
        from: &[BusSegment],
        to: &[BusSegment],
    ) -> Result<(), TransferError> {
        self.session.release();
        let requester = self.session.requester();
        let bytes = total(from);
        if bytes != total(to) {
            log::error!("{bytes} bytes do not fit {} bytes", total(to));
            return Err(TransferError::Destination);
        }
        let mut moved = 0;
        while moved < bytes {
            let part = (bytes - moved).min(self.buffer.len());
            let data = self.buffer.get_mut(..part).unwrap_or_default();
            let (from, to) = (cut(from, moved, part), cut(to, moved, part));
            requester
                .gather(tag, ranges(&from), data)
                .map_err(|_| TransferError::Source)?;
            requester
                .scatter(tag, ranges(&to), data)
                .map_err(|_| TransferError::Destination)?;
            moved += part;
            self.bounced += part as u64;
        }
        Ok(())
    }

    /// Writes these bytes to segments of the same length.
    pub(super) fn write(
        &mut self,
        tag: Tag,
        data: &[u8],
        to: &[BusSegment],
    ) -> Result<(), TransferError> {
        self.session.release();
        let requester = self.session.requester();
        requester
            .scatter(tag, ranges(to), data)
            .map_err(|_| TransferError::Destination)
    }

    /// Reads as many bytes as the segments have.
    pub(super) fn read(&mut self, tag: Tag, from: &[BusSegment]) -> Result<Vec<u8>, TransferError> {
        self.session.release();
        let requester = self.session.requester();
        let mut data = vec![0; total(from)];
        requester
            .gather(tag, ranges(from), &mut data)
            .map_err(|_| TransferError::Source)?;
        Ok(data)
    }
}

fn ranges(segments: &[BusSegment]) -> impl Iterator<Item = (u64, usize)> {
    segments
        .iter()
        .map(|segment| (segment.address, segment.bytes))
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
