//! The DMA sanitizer: finds actions in the records that no device, or no driver, should do.
//!
//! It judges DMAs that were refused and DMAs that were performed: an errant DMA that succeeds is
//! also a finding. But it never guesses. A DMA by an address that was unmapped and mapped again for
//! another purpose, before the command began, looks like a correct one; so does one past the end of
//! a mapping that meets a neighbouring mapping older than the command. A mapping counts as left
//! behind only if its only use was for the data of one command, and that command has long been
//! complete when the device is turned off or the record ends. So queues, lists, and reused buffers
//! do not count.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use peerbar_dma_log::{Direction, Origin, Purpose, Route};
use peerbar_pci::Iova;

use crate::event::{Dma, DmaOutcome, Event, FileSpan, Mapping, Record};
use crate::file::Flight;
use crate::history::{Command, Followed, History, MappingLife, Moment, is_teardown};

/// Time before the end by which a command must have been complete for its mapping to count as left
/// behind, in nanoseconds: its driver needs time for the interrupt and the unmap.
const GRACE: u64 = 1_000_000_000;

/// The largest mapping that a driver makes for one command's data; a larger one serves many
/// commands.
const LARGEST: u64 = 16 << 20;

const PAGE: u64 = 4096;

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    /// A DMA to an address that had been unmapped.
    AfterUnmap,
    /// A DMA to an address that was mapped for another command only after the DMA's command had
    /// begun.
    Remapped,
    /// A DMA that ran over the end of a mapping.
    PastEnd,
    /// A DMA to an address that no driver has mapped since the record began.
    NeverMapped,
    /// A write through a read-only mapping.
    WriteReadOnly,
    /// A mapping that still exists long after the only command that used it.
    LeftBehind,
    /// A page that is mapped for two devices at once, and that one of them may write.
    Shared,
}

impl FindingKind {
    /// Every kind and its word.
    pub const WORDS: [(Self, &'static str); 7] = [
        (Self::AfterUnmap, "after-unmap"),
        (Self::Remapped, "remapped"),
        (Self::PastEnd, "past-end"),
        (Self::NeverMapped, "never-mapped"),
        (Self::WriteReadOnly, "write-read-only"),
        (Self::LeftBehind, "left-behind"),
        (Self::Shared, "shared"),
    ];
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Self::WORDS.into_iter().find(|(kind, _)| kind == self);
        f.write_str(known.map_or("", |(_, word)| word))
    }
}

/// An error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its kind.
    pub kind: FindingKind,
    /// The origin of the command.
    pub origin: Origin,
    /// The command, if its beginning was recorded.
    pub command: Option<Command>,
    /// The time: that of the DMA; for a mapping that was left behind, the end of the record; for a
    /// shared page, the time of the second mapping.
    pub at: Moment,
    /// First address.
    pub address: Iova,
    /// Length in bytes.
    pub len: u64,
    /// The mapping concerned, and a time: when it was unmapped; for [`FindingKind::Remapped`],
    /// [`FindingKind::PastEnd`], [`FindingKind::WriteReadOnly`] and [`FindingKind::Shared`], when
    /// it was mapped; for a mapping that was left behind, when its command was complete.
    pub mapping: Option<(Mapping, Moment)>,
    /// For [`FindingKind::Shared`], the first device, by its index in the argument of [`shared`],
    /// and the command for which its mapping was made.
    pub other: Option<(usize, Option<Command>)>,
}

/// Watches one device's records.
#[derive(Debug, Default)]
pub struct Sanitizer {
    history: History,
    findings: Vec<Finding>,
    /// The end of the last good segment of each origin's DMA, and its mapping.
    ends: HashMap<Origin, (Iova, usize)>,
}

impl Sanitizer {
    /// Returns the errors in a record, and its history.
    pub fn of(flight: &Flight) -> (Vec<Finding>, History) {
        let mut sanitizer = Self {
            history: History::before(flight),
            ..Self::default()
        };
        flight
            .records
            .iter()
            .for_each(|record| sanitizer.watch(record));
        let last = flight.records.last().map(Moment::from);
        if let Some(last) = last.filter(|_| flight.header.ended) {
            sanitizer.find_left_behind(last);
        }
        (sanitizer.findings, sanitizer.history)
    }

    /// Adds the next record.
    pub fn watch(&mut self, record: &Record) {
        if is_teardown(&record.event) {
            self.find_left_behind(record.into());
        }
        if let Event::Begin { origin, .. } = record.event {
            self.ends.remove(&origin);
        }
        if let Some(followed) = self.history.step(record) {
            self.check(&followed);
        }
    }

    /// Returns the findings so far.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    fn check(&mut self, followed: &Followed) {
        let Followed { dma, at, life, .. } = followed;
        let kind = match (dma.outcome, life) {
            (DmaOutcome::Done, Some(number)) => {
                let end = dma.address.wrapping_add(dma.len);
                self.ends.insert(dma.origin, (end, *number));
                self.wrongly_done(followed, *number)
            }
            // A mapping may be unknown if it is older than the oldest remaining record and has been
            // unmapped since.
            (DmaOutcome::Done, None) if dma.route == Route::GuestRam => {
                let is_known = self.history.around(dma.address).was.is_some();
                Some(self.errant(dma)).filter(|kind| is_known || *kind != FindingKind::NeverMapped)
            }
            (DmaOutcome::Forbidden | DmaOutcome::ClientRefused(_), Some(number))
                if dma.direction == Direction::Write && !self.is_writable(*number) =>
            {
                Some(FindingKind::WriteReadOnly)
            }
            (DmaOutcome::ClientRefused(_), None) | (DmaOutcome::Wraps, _) => Some(self.errant(dma)),
            _ => None,
        };
        if let Some(kind) = kind {
            let finding = Finding {
                kind,
                origin: dma.origin,
                command: followed.command,
                at: *at,
                address: dma.address,
                len: dma.len,
                mapping: self.concerned(kind, followed),
                other: None,
            };
            self.findings.push(finding);
        }
    }

    /// Returns the error of a DMA that was performed and met a mapping. Only copies by the device
    /// itself are judged by the mapping; requests to the client, and those to a peer's window, are
    /// not.
    fn wrongly_done(&self, followed: &Followed, number: usize) -> Option<FindingKind> {
        let dma = &followed.dma;
        let itself = dma.route == Route::GuestRam;
        if itself && dma.direction == Direction::Write && !self.is_writable(number) {
            Some(FindingKind::WriteReadOnly)
        } else if itself && self.history.left_at(dma.address) < Some(dma.len) {
            Some(FindingKind::PastEnd)
        } else {
            self.is_remapped(followed).then_some(FindingKind::Remapped)
        }
    }

    /// Returns `true` if a command's data met a mapping that is newer than the command.
    fn is_remapped(&self, followed: &Followed) -> bool {
        let life = followed
            .life
            .and_then(|number| self.history.mapping(number));
        let Some((life, command)) = life.zip(followed.command) else {
            return false;
        };
        followed.dma.purpose == Purpose::Payload && life.mapped > command.begun
    }

    fn is_writable(&self, number: usize) -> bool {
        let life = self.history.mapping(number);
        life.is_some_and(|life| life.mapping.writable)
    }

    /// Returns the kind of a DMA that met no mapping.
    fn errant(&self, dma: &Dma) -> FindingKind {
        let ran_over = self.ends.get(&dma.origin);
        if ran_over.is_some_and(|(end, _)| *end == dma.address) {
            FindingKind::PastEnd
        } else if self.was_mapped(dma.address) {
            FindingKind::AfterUnmap
        } else {
            FindingKind::NeverMapped
        }
    }

    /// Returns `true` if a driver had mapped an address that is now unmapped.
    fn was_mapped(&self, address: Iova) -> bool {
        let was = self.history.around(address).was;
        let life = was.and_then(|unmapped| self.history.mapping(unmapped.life));
        life.is_some_and(|life| !life.is_of_machine)
    }

    fn concerned(&self, kind: FindingKind, followed: &Followed) -> Option<(Mapping, Moment)> {
        let (number, moment) = match kind {
            FindingKind::PastEnd => (self.ends.get(&followed.dma.origin)?.1, None),
            FindingKind::AfterUnmap => {
                let unmapped = self.history.around(followed.dma.address).was?;
                (unmapped.life, Some(unmapped.unmapped))
            }
            _ => (followed.life?, None),
        };
        let life = self.history.mapping(number)?;
        Some((life.mapping, moment.unwrap_or(life.mapped)))
    }

    fn find_left_behind(&mut self, now: Moment) {
        let left = self.history.current().filter_map(|(mapping, life)| {
            let until = life.used_until?;
            let command = life.first_user.filter(|_| life.users == 1)?;
            let long_ago = now.nanos.saturating_sub(until.nanos) > GRACE;
            (is_for_payload(life) && long_ago).then_some(Finding {
                kind: FindingKind::LeftBehind,
                origin: command.origin,
                command: Some(command),
                at: now,
                address: mapping.range.first(),
                len: mapping.range.size(),
                mapping: Some((life.mapping, until)),
                other: None,
            })
        });
        for finding in left.collect::<Vec<_>>() {
            let same =
                |other: &Finding| (other.kind, other.mapping) == (finding.kind, finding.mapping);
            if !self.findings.iter().any(same) {
                self.findings.push(finding);
            }
        }
    }
}

/// Returns `true` if a mapping is one that a driver makes for a command's data.
fn is_for_payload(life: &MappingLife) -> bool {
    life.only_payload && life.users > 0 && life.mapping.range.size() <= LARGEST
}

/// A page of guest RAM and a mapping of it for a device.
struct PageUse<'a> {
    device: usize,
    life: &'a MappingLife,
    span: FileSpan,
}

impl PageUse<'_> {
    /// Returns the identity of the page.
    fn page(&self) -> (u64, u64, u64) {
        let FileSpan {
            device,
            inode,
            offset,
        } = self.span;
        (device, inode, offset / PAGE)
    }

    /// Returns `true` if the device still had its page after this many nanoseconds.
    fn outlasts(&self, nanos: u64) -> bool {
        let unmapped = self.life.unmapped;
        unmapped.is_none_or(|unmapped| unmapped.nanos > nanos)
    }
}

/// The results of [`shared`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedPages {
    /// One finding for each command of the second device, with the number of that device.
    pub findings: Vec<(usize, Finding)>,
    /// Number of pages of mappings that were not compared, because of the limit.
    pub uncompared: u64,
}

/// Finds pages that were mapped for the data of commands of two devices at once, and that one of
/// them could write. The devices must share a clock. Compares at most `most` pages of mappings,
/// because a guest may map without end.
pub fn shared(histories: &[&History], most: u64) -> SharedPages {
    let has_some = |history: &&&History| history.mappings.iter().any(is_comparable);
    if histories.iter().filter(has_some).count() < 2 {
        return SharedPages::default();
    }
    let (mut uses, uncompared) = page_uses(histories, most);
    uses.sort_unstable_by_key(|page_use| (page_use.page(), page_use.life.mapped.nanos));
    let pages = uses.chunk_by(|one, other| one.page() == other.page());
    // The first finding of each command.
    let mut found: BTreeMap<(usize, Moment), Finding> = BTreeMap::new();
    for (device, finding) in pages.flat_map(collisions) {
        let since = finding.command.map_or(finding.at, |command| command.begun);
        let first = found.entry((device, since)).or_insert(finding.clone());
        if (finding.at, finding.address) < (first.at, first.address) {
            *first = finding;
        }
    }
    let findings = found.into_iter();
    let mut findings: Vec<_> = findings
        .map(|((device, _), finding)| (device, finding))
        .collect();
    findings.sort_by_key(|(device, finding)| (*device, finding.at, finding.address));
    SharedPages {
        findings,
        uncompared,
    }
}

/// Returns `true` if a mapping is for a command's data, and of memory that another device may have.
fn is_comparable(life: &MappingLife) -> bool {
    is_for_payload(life) && life.mapping.backing.file().is_some()
}

/// Returns the pages of all mappings that fit into `most`, and the number of pages of the others.
fn page_uses<'a>(histories: &[&'a History], most: u64) -> (Vec<PageUse<'a>>, u64) {
    let mut uses = Vec::new();
    let (mut left, mut beyond) = (most, 0_u64);
    for (device, history) in histories.iter().enumerate() {
        for life in history.mappings.iter().filter(|life| is_comparable(life)) {
            let count = life.mapping.range.size().div_ceil(PAGE);
            match left.checked_sub(count) {
                Some(rest) => left = rest,
                None => {
                    beyond = beyond.saturating_add(count);
                    continue;
                }
            }
            let pages = pages_of(&life.mapping);
            uses.extend(pages.map(|span| PageUse { device, life, span }));
        }
    }
    (uses, beyond)
}

/// Returns the points at which a page gets a second device. `uses` are the uses of the page in the
/// order of their begin.
fn collisions<'a>(uses: &'a [PageUse<'a>]) -> impl Iterator<Item = (usize, Finding)> {
    // The longest use of each device, separately for those that may write and the others.
    let mut longest: BTreeMap<(usize, bool), &PageUse<'_>> = BTreeMap::new();
    uses.iter().filter_map(move |second| {
        let begin = second.life.mapped.nanos;
        let mut earlier = longest.values();
        let first = earlier.find(|first| first.outlasts(begin) && collide(first, second));
        let found = first.map(|first| (second.device, sharing(first, second)));
        let end = second.life.unmapped.map_or(u64::MAX, |at| at.nanos);
        let known = longest
            .entry((second.device, second.life.mapping.writable))
            .or_insert(second);
        if !known.outlasts(end) {
            *known = second;
        }
        found
    })
}

/// Returns the locations of a mapping's pages in their file.
fn pages_of(mapping: &Mapping) -> impl Iterator<Item = FileSpan> {
    let file = mapping.backing.file();
    let size = mapping.range.size();
    file.into_iter().flat_map(move |span| {
        let pages = size.div_ceil(PAGE);
        (0..pages).map(move |page| FileSpan {
            offset: span.offset.saturating_add(page * PAGE),
            ..span
        })
    })
}

/// Returns `true` if two simultaneous uses of a page are of two devices, and one may write.
fn collide(first: &PageUse<'_>, second: &PageUse<'_>) -> bool {
    first.device != second.device && (first.life.mapping.writable || second.life.mapping.writable)
}

fn sharing(first: &PageUse<'_>, second: &PageUse<'_>) -> Finding {
    let start = second.life.mapping.backing.file();
    let skip = start.map_or(0, |start| second.span.offset.saturating_sub(start.offset));
    let command = second.life.first_user;
    Finding {
        kind: FindingKind::Shared,
        origin: command.map_or(Origin::Device, |command| command.origin),
        command,
        at: second.life.mapped,
        address: second.life.mapping.range.first().saturating_add(skip),
        len: PAGE,
        mapping: Some((first.life.mapping, first.life.mapped)),
        other: Some((first.device, first.life.first_user)),
    }
}
