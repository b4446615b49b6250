//! Memory that adapters lend to each other, so that payload is copied once, by its receiver.
//!
//! The lender shows the files of its memory, each once, and names ranges of them from then on. It stays the judge of its memory: the receiver
//! copies if the word of the loan permits it, and the lender says afterwards whether that was worth anything. Where memory cannot be lent,
//! payload goes in packets.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use peerbar_dma::{
    BorrowedLoan, Lease, Lender, Loan, LoanWords, MOST_FILES_OF_A_LENDER, MOST_LENDERS,
    MemoryError, MemoryFile, Span, WaitBudget,
};
use peerbar_fabric::SendError;
use zerocopy::IntoBytes;

use super::packet::{LentPart, LentRange, MOST_RANGES, Packet, ShownLease, Verb};
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
/// How many loans one adapter has at most of what it reads, and for how long each.
const MOST_READS: usize = 512;
const READ_TIME: Duration = Duration::from_secs(30);
/// How long an adapter is lent nothing that has left a copy unfinished: it has delayed a change of this adapter's memory.
const HUNG: Duration = Duration::from_secs(60);
/// How often files are shown for one part of a transfer before it goes in packets: others may need the slot of each file meanwhile.
pub(super) const MOST_SHOWS: u8 = 8;

/// What this adapter lends, and what others lend to it.
#[derive(Default)]
pub(super) struct Lending {
    /// The files that were shown, with their numbers.
    files: Vec<(u32, Weak<MemoryFile>)>,
    /// The last number of a file or of words.
    pub(super) last_number: u32,
    viewers: HashMap<Gid, Viewer>,
    /// The words of what each adapter is lent.
    words: HashMap<Gid, NumberedWords>,
    /// The words of adapters that have gone, by which there may be loans still.
    former: Vec<(Gid, Arc<LoanWords>)>,
    /// Adapters that have left a copy unfinished, and until when they are lent nothing.
    hung: HashMap<Gid, Instant>,
    wait_budget: WaitBudget,
    lenders: HashMap<Gid, Lender>,
    /// What others read here, oldest first.
    reads: VecDeque<Read>,
    /// How often another adapter could not use what it was lent.
    pub(super) refusals: u64,
}

/// The words of loans, by the number that they are shown by.
#[derive(Clone)]
pub(super) struct NumberedWords {
    pub(super) number: u32,
    pub(super) words: Arc<LoanWords>,
}

/// A loan for a read.
struct Read {
    gid: Gid,
    loan: u64,
    until: Instant,
}

/// Another adapter, as one that this one lends to.
#[derive(Default)]
struct Viewer {
    /// Files that it was shown, and whether it has said that it has them. It keeps as many, in the same order.
    files: VecDeque<(u32, bool)>,
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
    /// It has been shown one of them just now, and will say so.
    Asked,
    /// It takes none now.
    Refused,
    /// Too much is under way to ask it.
    Busy,
}

impl Lending {
    /// The number of a file of this process. It is never given to another one: `None` once there is none left.
    fn number(&mut self, file: &Arc<MemoryFile>) -> Option<u32> {
        self.files.retain(|(_, known)| known.strong_count() > 0);
        let mut known = self.files.iter();
        let same = |(_, known): &&(u32, Weak<MemoryFile>)| known.as_ptr() == Arc::as_ptr(file);
        if let Some((number, _)) = known.find(same) {
            return Some(*number);
        }
        let number = self.next_number()?;
        self.files.push((number, Arc::downgrade(file)));
        Some(number)
    }

    fn next_number(&mut self) -> Option<u32> {
        self.last_number = self.last_number.checked_add(1)?;
        Some(self.last_number)
    }

    /// The ranges of a loan, as few as there can be. `None` if they are too many, or of more files than another adapter keeps.
    pub(super) fn ranges(&mut self, loan: &Loan) -> Option<Vec<LentRange>> {
        let mut ranges: Vec<LentRange> = Vec::new();
        let mut files: Vec<u32> = Vec::new();
        let mut known: Option<(*const MemoryFile, u32)> = None;
        for (span, len) in loan.memory() {
            let memory = Arc::as_ptr(&span.file);
            let same = known.filter(|(last, _)| *last == memory);
            let file = match same {
                Some((_, number)) => number,
                None => self.number(&span.file)?,
            };
            known = Some((memory, file));
            if !files.contains(&file) {
                files.push(file);
            }
            let offset = span.file.first().checked_add(span.offset)?;
            let bytes = u32::try_from(len).ok()?;
            match ranges.last_mut() {
                Some(last) if last.is_followed_by(file, offset) => last.extend(bytes)?,
                _ => ranges.push(LentRange::new(file, offset, bytes)),
            }
        }
        let is_possible = ranges.len() <= MOST_RANGES && files.len() <= MOST_FILES_OF_A_LENDER;
        is_possible.then_some(ranges)
    }

    /// An adapter as one that this one lends to. If there are too many, all are forgotten, and shown everything again.
    fn viewer(&mut self, gid: Gid) -> &mut Viewer {
        if self.viewers.len() >= MOST_VIEWERS && !self.viewers.contains_key(&gid) {
            self.viewers.clear();
        }
        self.viewers.entry(gid).or_default()
    }

    /// The words of what an adapter is lent. `None` if it is lent nothing.
    pub(super) fn words(&mut self, gid: Gid, now: Instant) -> Option<NumberedWords> {
        self.note_hung(now);
        let is_hung = self.hung.contains_key(&gid) || self.hung.len() >= MOST_VIEWERS;
        if is_hung || !self.wait_budget.is_enough() {
            return None;
        }
        if let Some(words) = self.words.get(&gid) {
            return Some(words.clone());
        }
        if self.words.len() >= MOST_VIEWERS {
            self.forget_words(|_| true);
        }
        // It knows files by the former words.
        self.show_again(gid);
        let words = LoanWords::new(&self.wait_budget);
        let words = words.inspect_err(|error| log::warn!("nothing is lent to {gid}: {error}"));
        let words = NumberedWords {
            number: self.next_number()?,
            words: Arc::new(words.ok()?),
        };
        self.words.insert(gid, words.clone());
        Some(words)
    }

    /// Forgets words, but for what becomes of the loans by them.
    fn forget_words(&mut self, is_gone: impl Fn(&Gid) -> bool) {
        self.words.retain(|gid, it| {
            let is_gone = is_gone(gid);
            if is_gone {
                self.former.push((*gid, Arc::clone(&it.words)));
            }
            !is_gone
        });
    }

    /// Finds the adapters that have left a copy unfinished, also if they have gone.
    fn note_hung(&mut self, now: Instant) {
        let until = now + HUNG;
        let hung = &mut self.hung;
        hung.retain(|_, until| now < *until);
        let mut may_stay = |gid: Gid, words: &LoanWords| {
            let has_hung = words.has_hung();
            if has_hung {
                hung.insert(gid, until);
            }
            !has_hung
        };
        self.words.retain(|gid, it| may_stay(*gid, &it.words));
        self.former
            .retain(|(gid, it)| may_stay(*gid, it) && Arc::strong_count(it) > 1);
    }

    /// Whether an adapter is lent nothing as it has left a copy unfinished.
    fn has_hung(&mut self, gid: Gid, now: Instant) -> bool {
        let words = self.words.get(&gid);
        if words.is_some_and(|it| it.words.has_hung()) {
            self.note_hung(now);
        }
        self.hung.get(&gid).is_some_and(|until| now < *until)
    }

    /// An adapter may have lost what it was shown.
    pub(super) fn show_again(&mut self, gid: Gid) {
        self.viewer(gid).files.clear();
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
        self.refusals += 1;
        let all = self.refusals;
        log::info!(
            "{gid} does not use what it is lent: payload goes in packets for {REFUSED:?}, {all} such times in all"
        );
        let viewer = Viewer {
            files: VecDeque::new(),
            refused_until: Some(now + REFUSED),
            permitted: None,
        };
        *self.viewer(gid) = viewer;
    }

    /// What an adapter knows of a file. `None` if it was not shown.
    fn shown(&self, gid: Gid, file: u32) -> Option<Shown> {
        let mut files = self.viewers.get(&gid)?.files.iter();
        let (_, is_known) = files.find(|(number, _)| *number == file)?;
        Some(if *is_known {
            Shown::Known
        } else {
            Shown::Pending
        })
    }

    /// An adapter is being shown a file, and forgets its oldest one if it has too many.
    fn is_shown(&mut self, gid: Gid, file: u32) {
        let files = &mut self.viewer(gid).files;
        files.retain(|(number, _)| *number != file);
        if files.len() >= MOST_FILES_OF_A_LENDER {
            files.pop_front();
        }
        files.push_back((file, false));
    }

    /// An adapter has said that it has a file.
    fn is_known(&mut self, gid: Gid, file: u32) {
        let viewer = self.viewers.get_mut(&gid);
        let mut files = viewer.into_iter().flat_map(|viewer| &mut viewer.files);
        if let Some((_, is_known)) = files.find(|(number, _)| *number == file) {
            *is_known = true;
        }
    }

    /// Takes a file that an adapter lends, and the words of its loans, each with its number; with the words what the adapter is alive by. False
    /// if too many lend already.
    fn take(
        &mut self,
        from: Gid,
        (number, file, lease): (u32, OwnedFd, Option<Lease>),
        words: (u32, (OwnedFd, OwnedFd)),
    ) -> bool {
        let is_full = self.lenders.len() >= MOST_LENDERS;
        if is_full && !self.lenders.contains_key(&from) {
            log::warn!(
                "memory of {from} is not used, its payload comes in packets: {MOST_LENDERS} adapters lend here already"
            );
            return false;
        }
        let lender = self.lenders.entry(from).or_default();
        let taken = lender.take_words(words.0, words.1);
        let taken: Result<(), MemoryError> = taken.and_then(|()| lender.take(number, file, lease));
        taken
            .inspect_err(|error| log::debug!("memory of {from}: {error}"))
            .is_ok()
    }

    /// The memory that an adapter lends, and its loan. `None` if any of it cannot be used here.
    pub(super) fn borrowed(
        &mut self,
        from: Gid,
        lent: &LentPart,
    ) -> Option<(BorrowedLoan, Vec<(Span, usize)>)> {
        let lender = self.lenders.get_mut(&from)?;
        let (words, id) = lent.word;
        let loan = lender.loan(words, id)?;
        let span = |range: &LentRange| {
            let (file, offset, bytes) = range.parts();
            let span = lender.span(file, offset, bytes.into());
            let span = span.inspect_err(|error| log::debug!("memory of {from}: {error}"));
            Some((span.ok()?, bytes as usize))
        };
        let spans: Option<Vec<_>> = lent.ranges.iter().map(span).collect();
        Some((loan, spans?))
    }

    /// An adapter is to read here under this loan. False if it has too many.
    pub(super) fn begin_read(&mut self, gid: Gid, loan: u64, now: Instant) -> bool {
        let of_it = self.reads.iter().filter(|read| read.gid == gid);
        let has_room = of_it.count() < MOST_READS;
        if has_room {
            let until = now + READ_TIME;
            self.reads.push_back(Read { gid, loan, until });
        }
        has_room
    }

    /// When the oldest loan of a read ends, if the borrower does not give it back.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.reads.front().map(|read| read.until)
    }

    /// A loan that its borrower has not given back in time.
    fn next_old(&mut self, now: Instant) -> Option<u64> {
        let old = self.reads.front().filter(|read| read.until <= now)?.loan;
        self.reads.pop_front();
        Some(old)
    }

    /// Whether an adapter has this loan, which it gives back.
    pub(super) fn end_read(&mut self, gid: Gid, loan: u64) -> bool {
        let is_it = |read: &Read| (read.gid, read.loan) == (gid, loan);
        let index = self.reads.iter().position(is_it);
        index.and_then(|index| self.reads.remove(index)).is_some()
    }

    /// An adapter is gone, or all are: the loans that end with it.
    fn forget(&mut self, gone: Option<Gid>) -> Vec<u64> {
        let is_gone = |gid: &Gid| gone.is_none_or(|gone| gone == *gid);
        self.viewers.retain(|gid, _| !is_gone(gid));
        self.lenders.retain(|gid, _| !is_gone(gid));
        self.forget_words(is_gone);
        let (ended, left): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.reads)
            .into_iter()
            .partition(|read| is_gone(&read.gid));
        self.reads = left;
        ended.into_iter().map(|read| read.loan).collect()
    }
}

impl Turn<'_> {
    /// Whether memory is lent to that adapter at present. The wire is not asked each time: that waits for the link's thread.
    pub(super) fn lends_to(&mut self, gid: Gid) -> bool {
        let Some(wire) = self.state.wire.get() else {
            return false;
        };
        let viewer = self.state.lending.viewer(gid);
        let known = viewer
            .permitted
            .filter(|(at, _)| self.now.saturating_duration_since(*at) < PERMITTED);
        let (_, is_permitted) = known.unwrap_or_else(|| (self.now, wire.lends(gid)));
        if known.is_none() {
            viewer.permitted = Some((self.now, is_permitted));
        }
        let lending = &mut self.state.lending;
        is_permitted && !lending.is_refused(gid, self.now) && !lending.has_hung(gid, self.now)
    }

    /// Has another adapter know the files of a loan.
    pub(super) fn show(&mut self, gid: Gid, loan: &Loan, words: &NumberedWords) -> Shown {
        let mut all = Shown::Known;
        let mut last: Option<&Arc<MemoryFile>> = None;
        for (span, _) in loan.memory() {
            if last.is_some_and(|last| Arc::ptr_eq(last, &span.file)) {
                continue;
            }
            last = Some(&span.file);
            match self.show_file(gid, &span.file, words) {
                Shown::Known => {}
                Shown::Pending if all == Shown::Asked => {}
                shown @ (Shown::Pending | Shown::Asked) => all = shown,
                shown @ (Shown::Refused | Shown::Busy) => return shown,
            }
        }
        all
    }

    fn show_file(&mut self, gid: Gid, file: &Arc<MemoryFile>, words: &NumberedWords) -> Shown {
        let Some(number) = self.state.lending.number(file) else {
            return Shown::Refused;
        };
        match self.state.lending.shown(gid, number) {
            Some(shown) => return shown,
            None if !self.lends_to(gid) => return Shown::Refused,
            None => {}
        }
        let lease = file.lease().map(Lease::word);
        let of_lease = lease.map(|(words, ..)| words);
        let shown = [
            file.file().as_fd(),
            words.words.file().as_fd(),
            words.words.liveness(),
        ];
        let descriptors = shown
            .into_iter()
            .chain(of_lease.map(AsFd::as_fd))
            .map(|fd| Ok(Arc::new(fd.try_clone_to_owned()?)));
        let descriptors: io::Result<Vec<Arc<OwnedFd>>> = descriptors.collect();
        let Ok(descriptors) = descriptors else {
            return Shown::Refused;
        };
        let token = Token(self.state.next_id());
        let mut packet = Packet::of_adapter(Verb::Show, number.into(), 0);
        packet.part.key = words.number;
        let lease = lease.map(|(_, offset, generation)| ShownLease::new(offset, generation));
        let packet = packet.encode(lease.as_ref().map_or(&[], IntoBytes::as_bytes));
        let wire = self.state.wire.get().ok_or(SendError::Lost);
        match wire.and_then(|wire| wire.request(gid, &packet, descriptors, token)) {
            Ok(()) => {}
            Err(SendError::Busy) => return Shown::Busy,
            Err(SendError::Lost | SendError::TooLong) => return Shown::Refused,
        }
        let shown = Sent::File { gid, file: number };
        self.state.sent.insert(token, shown);
        self.state.lending.is_shown(gid, number);
        Shown::Asked
    }

    /// Another adapter has been shown a file: what has waited for that goes on.
    pub(super) fn file_is_shown(&mut self, gid: Gid, file: u32, is_taken: bool) {
        if is_taken {
            self.state.lending.is_known(gid, file);
        } else {
            self.state.lending.refused(gid, self.now);
        }
        let waiting = std::mem::take(&mut self.state.deferred).into_iter();
        let (again, others): (Vec<_>, Vec<_>) = waiting.partition(|it| it.arrival.from == gid);
        self.state.deferred = others;
        for deferred in again {
            self.take_deferred(deferred);
        }
    }

    /// Another adapter lends a file, by the words of these numbers, and under this lease if there is one; whether all are taken.
    pub(super) fn take_file(
        &mut self,
        from: Gid,
        (file, words, lease): (u32, u32, Option<ShownLease>),
        descriptors: Vec<OwnedFd>,
    ) -> bool {
        let is_lending = self.state.wire.get().is_some_and(|wire| wire.lends(from));
        let mut fds = descriptors.into_iter().filter(|_| is_lending);
        let [Some(file_fd), Some(words_fd), Some(liveness)] = [(); 3].map(|()| fds.next()) else {
            return false;
        };
        let passed_on = |lease: ShownLease| {
            let (offset, generation) = lease.parts();
            let passed_on = Lease::passed_on(fds.next()?, offset, generation);
            passed_on
                .inspect_err(|error| log::debug!("lease of {from}: {error}"))
                .ok()
        };
        let lease = match lease.map(passed_on) {
            Some(None) => return false,
            Some(lease) => lease,
            None => None,
        };
        let lending = &mut self.state.lending;
        let words = (words, (words_fd, liveness));
        lending.take(from, (file, file_fd, lease), words)
    }

    /// Ends the loans for reads that their borrowers have not given back in time.
    pub(super) fn end_old_reads(&mut self) {
        let old = std::iter::from_fn(|| self.state.lending.next_old(self.now));
        Loan::drop_all(old.filter_map(|loan| self.objects.take_loan(loan)));
    }

    /// An adapter is gone, or all are.
    pub(super) fn forget_adapter(&mut self, gone: Option<Gid>) {
        let ended = self.state.lending.forget(gone).into_iter();
        Loan::drop_all(ended.filter_map(|loan| self.objects.take_loan(loan)));
        let is_gone = |gid: Gid| gone.is_none_or(|gone| gone == gid);
        self.state.deferred.retain(|it| !is_gone(it.arrival.from));
    }
}
