//! Memory that adapters lend to each other, so that payload is copied once, by its receiver.
//!
//! The lender shows the files of its memory, each once, and names ranges of them from then on. It stays the judge of its memory: the receiver
//! copies, and the lender says afterwards whether that was worth anything. Where memory cannot be lent, payload goes in packets.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use peerbar_dma::{Lender, Loan, MOST_LENDERS, MemoryFile, Span};
use peerbar_fabric::SendError;

use super::packet::{LentRange, MOST_RANGES, Packet, Verb};
use super::remote::Sent;
use super::turn::Turn;
use super::wire::Token;
use crate::objects::Gid;

/// How long payload goes in packets to an adapter that could not use what it was lent.
const REFUSED: Duration = Duration::from_secs(1);
/// How long it holds what the wire says of an adapter.
const PERMITTED: Duration = Duration::from_millis(100);
/// How many adapters there are at most of which it is known what they were shown. A guest names any number.
const MOST_VIEWERS: usize = 256;
/// How many loans one adapter has at most of what it reads.
const MOST_READS: usize = 64;

/// What this adapter lends, and what others lend to it.
#[derive(Default)]
pub(super) struct Lending {
    /// The files that were shown, with their numbers.
    files: Vec<(u32, Weak<MemoryFile>)>,
    last_file: u32,
    viewers: HashMap<Gid, Viewer>,
    lenders: HashMap<Gid, Lender>,
    /// What others read here, oldest first.
    reads: VecDeque<(Gid, u64)>,
}

/// Another adapter, as one that this one lends to.
#[derive(Default)]
struct Viewer {
    /// Files that it was shown, and whether it has said that it has them.
    files: HashMap<u32, bool>,
    refused_until: Option<Instant>,
    /// What the wire has said of it, and when.
    permitted: Option<(Instant, bool)>,
}

/// Whether another adapter has the files of a loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Known,
    /// It will say so.
    Pending,
    /// It takes none now.
    Refused,
}

impl Lending {
    /// The number of a file of this process. It is never given to another one.
    fn number(&mut self, file: &Arc<MemoryFile>) -> u32 {
        self.files.retain(|(_, known)| known.strong_count() > 0);
        let mut known = self.files.iter();
        let same = |(_, known): &&(u32, Weak<MemoryFile>)| known.as_ptr() == Arc::as_ptr(file);
        if let Some((number, _)) = known.find(same) {
            return *number;
        }
        self.last_file = self.last_file.wrapping_add(1);
        self.files.push((self.last_file, Arc::downgrade(file)));
        self.last_file
    }

    /// The ranges of a loan, as few as there can be. `None` if they are too many.
    pub(super) fn ranges(&mut self, loan: &Loan) -> Option<Vec<LentRange>> {
        let mut ranges: Vec<LentRange> = Vec::new();
        let mut known: Option<(*const MemoryFile, u32)> = None;
        for (span, len) in loan.memory() {
            let place = Arc::as_ptr(&span.file);
            let same = known.filter(|(last, _)| *last == place);
            let file = same.map_or_else(|| self.number(&span.file), |(_, number)| number);
            known = Some((place, file));
            let offset = span.file.first().checked_add(span.offset)?;
            let bytes = u32::try_from(len).ok()?;
            match ranges.last_mut() {
                Some(last) if last.is_followed_by(file, offset) => last.extend(bytes)?,
                _ => ranges.push(LentRange::new(file, offset, bytes)),
            }
        }
        (ranges.len() <= MOST_RANGES).then_some(ranges)
    }

    /// An adapter as one that this one lends to. If there are too many, all are forgotten, and shown everything again.
    fn viewer(&mut self, gid: Gid) -> &mut Viewer {
        if self.viewers.len() >= MOST_VIEWERS && !self.viewers.contains_key(&gid) {
            self.viewers.clear();
        }
        self.viewers.entry(gid).or_default()
    }

    #[cfg(test)]
    pub(super) fn viewer_count(&self) -> usize {
        self.viewers.len()
    }

    /// Whether an adapter is to be lent memory now.
    fn is_refused(&self, gid: Gid, now: Instant) -> bool {
        let viewer = self.viewers.get(&gid);
        viewer.is_some_and(|viewer| viewer.refused_until.is_some_and(|until| now < until))
    }

    /// An adapter could not use what it was lent. It is shown everything again later.
    pub(super) fn refused(&mut self, gid: Gid, now: Instant) {
        let viewer = Viewer {
            files: HashMap::new(),
            refused_until: Some(now + REFUSED),
            permitted: None,
        };
        *self.viewer(gid) = viewer;
    }

    /// What an adapter knows of a file. `None` if it was not shown.
    fn shown(&self, gid: Gid, file: u32) -> Option<Shown> {
        let is_known = self.viewers.get(&gid)?.files.get(&file)?;
        Some(if *is_known {
            Shown::Known
        } else {
            Shown::Pending
        })
    }

    /// An adapter is being shown a file. Those that are no more are forgotten.
    fn is_shown(&mut self, gid: Gid, file: u32) {
        let live: Vec<u32> = self.files.iter().map(|(number, _)| *number).collect();
        let viewer = self.viewer(gid);
        viewer.files.retain(|number, _| live.contains(number));
        viewer.files.insert(file, false);
    }

    /// An adapter has said that it has a file.
    fn is_known(&mut self, gid: Gid, file: u32) {
        let viewer = self.viewers.get_mut(&gid);
        if let Some(known) = viewer.and_then(|viewer| viewer.files.get_mut(&file)) {
            *known = true;
        }
    }

    /// Takes a file that an adapter lends. False if too many lend already.
    fn take(&mut self, from: Gid, file: u32, fd: OwnedFd) -> bool {
        let is_full = self.lenders.len() >= MOST_LENDERS;
        if is_full && !self.lenders.contains_key(&from) {
            return false;
        }
        self.lenders.entry(from).or_default().take(file, fd);
        true
    }

    /// The memory that an adapter lends. `None` if any of it cannot be used here.
    pub(super) fn borrowed(
        &mut self,
        from: Gid,
        ranges: &[LentRange],
    ) -> Option<Vec<(Span, usize)>> {
        let lender = self.lenders.get_mut(&from)?;
        let span = |range: &LentRange| {
            let (file, offset, bytes) = range.parts();
            let span = lender.span(file, offset, bytes.into());
            let span = span.inspect_err(|error| log::debug!("memory of {from}: {error}"));
            Some((span.ok()?, bytes as usize))
        };
        ranges.iter().map(span).collect()
    }

    /// An adapter reads here under this loan. The loan that is to end, if it has too many.
    fn begin_read(&mut self, gid: Gid, loan: u64) -> Option<u64> {
        self.reads.push_back((gid, loan));
        let of_it = |(other, _): &(Gid, u64)| *other == gid;
        if self.reads.iter().filter(|read| of_it(read)).count() <= MOST_READS {
            return None;
        }
        let oldest = self.reads.iter().position(of_it)?;
        self.reads.remove(oldest).map(|(_, loan)| loan)
    }

    /// Whether an adapter has this loan, which it gives back.
    pub(super) fn end_read(&mut self, gid: Gid, loan: u64) -> bool {
        let place = self.reads.iter().position(|read| *read == (gid, loan));
        place.and_then(|place| self.reads.remove(place)).is_some()
    }

    /// An adapter is gone, or all are: the loans that end with it.
    fn forget(&mut self, gone: Option<Gid>) -> Vec<u64> {
        let is_gone = |gid: &Gid| gone.is_none_or(|gone| gone == *gid);
        self.viewers.retain(|gid, _| !is_gone(gid));
        self.lenders.retain(|gid, _| !is_gone(gid));
        let (ended, left): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.reads)
            .into_iter()
            .partition(|(gid, _)| is_gone(gid));
        self.reads = left;
        ended.into_iter().map(|(_, loan)| loan).collect()
    }
}

impl Turn<'_> {
    /// Whether memory is lent to that adapter at present. The wire is not asked each time: that waits for the link's thread.
    pub(super) fn lends_to(&mut self, gid: Gid) -> bool {
        let Some(wire) = self.parts.wire.get() else {
            return false;
        };
        let viewer = self.parts.lending.viewer(gid);
        let known = viewer
            .permitted
            .filter(|(at, _)| self.now.saturating_duration_since(*at) < PERMITTED);
        let (_, is_permitted) = known.unwrap_or_else(|| (self.now, wire.lends(gid)));
        if known.is_none() {
            viewer.permitted = Some((self.now, is_permitted));
        }
        is_permitted && !self.parts.lending.is_refused(gid, self.now)
    }

    /// Has another adapter know the files of a loan.
    pub(super) fn show(&mut self, gid: Gid, loan: &Loan) -> Shown {
        let mut all = Shown::Known;
        let mut last: Option<&Arc<MemoryFile>> = None;
        for (span, _) in loan.memory() {
            if last.is_some_and(|last| Arc::ptr_eq(last, &span.file)) {
                continue;
            }
            last = Some(&span.file);
            match self.show_file(gid, &span.file) {
                Shown::Known => {}
                Shown::Pending => all = Shown::Pending,
                Shown::Refused => return Shown::Refused,
            }
        }
        all
    }

    fn show_file(&mut self, gid: Gid, file: &Arc<MemoryFile>) -> Shown {
        let number = self.parts.lending.number(file);
        match self.parts.lending.shown(gid, number) {
            Some(shown) => return shown,
            None if !self.lends_to(gid) => return Shown::Refused,
            None => {}
        }
        let Ok(fd) = file.file().try_clone() else {
            return Shown::Refused;
        };
        let token = Token(self.parts.next_id());
        let packet = Packet::of_adapter(Verb::Show, number.into(), 0).encode(&[]);
        let descriptors = vec![Arc::new(OwnedFd::from(fd))];
        let wire = self.parts.wire.get().ok_or(SendError::Lost);
        match wire.and_then(|wire| wire.request(gid, &packet, descriptors, token)) {
            Ok(()) => {}
            Err(SendError::Busy) => return Shown::Pending,
            Err(SendError::Lost | SendError::TooLong) => return Shown::Refused,
        }
        let shown = Sent::File { gid, file: number };
        self.parts.sent.insert(token, shown);
        self.parts.lending.is_shown(gid, number);
        Shown::Pending
    }

    /// Another adapter has been shown a file: what has waited for that goes on.
    pub(super) fn file_is_shown(&mut self, gid: Gid, file: u32, is_taken: bool) {
        if is_taken {
            self.parts.lending.is_known(gid, file);
        } else {
            self.parts.lending.refused(gid, self.now);
        }
        let waiting = std::mem::take(&mut self.parts.deferred).into_iter();
        let (again, others): (Vec<_>, Vec<_>) = waiting.partition(|arrival| arrival.from == gid);
        self.parts.deferred = others;
        for arrival in again {
            self.take_arrival(arrival);
        }
    }

    /// Another adapter lends a file; whether it is taken.
    pub(super) fn take_file(&mut self, from: Gid, file: u32, descriptors: Vec<OwnedFd>) -> bool {
        let is_lending = self.parts.wire.get().is_some_and(|wire| wire.lends(from));
        let fd = descriptors.into_iter().next().filter(|_| is_lending);
        fd.is_some_and(|fd| self.parts.lending.take(from, file, fd))
    }

    /// An adapter begins to read under this loan.
    pub(super) fn begin_read(&mut self, gid: Gid, loan: u64) {
        if let Some(oldest) = self.parts.lending.begin_read(gid, loan) {
            drop(self.objects.take_loan(oldest));
        }
    }

    /// An adapter is gone, or all are.
    pub(super) fn forget_adapter(&mut self, gone: Option<Gid>) {
        for loan in self.parts.lending.forget(gone) {
            drop(self.objects.take_loan(loan));
        }
        let is_gone = |gid: Gid| gone.is_none_or(|gone| gone == gid);
        self.parts.deferred.retain(|it| !is_gone(it.from));
    }
}
