//! The page: its layout, and functions to write and read it.
//!
//! All numbers are little-endian. A header of 64 bytes:
//!
//! | bytes | content |
//! | --- | --- |
//! | 7:0 | signature, "PEERBAR" and a zero byte |
//! | 11:8 | version, 2 |
//! | 15:12 | how many entries follow |
//! | 19:16 | size of an entry in bytes, 32 |
//! | 63:20 | reserved, 0 |
//!
//! and then for each combination that has occurred an entry of 32 bytes:
//!
//! | bytes | content |
//! | --- | --- |
//! | 0 | [`Purpose`] |
//! | 1 | [`Route`] |
//! | 2 | [`Completer`] |
//! | 3 | [`Direction`] |
//! | 7:4 | reserved, 0 |
//! | 15:8 | DMAs that succeeded |
//! | 23:16 | bytes that they moved |
//! | 31:24 | DMAs that failed |
//!
//! Counters start with the device's process and never decrease.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::kind::DmaKind;
use crate::words::{Completer, Direction, Purpose, Route};

/// The start of the page.
pub const SIGNATURE: [u8; 8] = *b"PEERBAR\0";

/// The version of the layout that this module writes and reads.
pub const VERSION: u32 = 2;

/// The largest size of a page: the most that a command's two PRP entries describe, so that the
/// reader's own DMA needs no list.
pub const MAX_SIZE: usize = 8192;

/// The most entries of a page. There are more combinations than that, but a device does not meet
/// all of them: a route determines the possible owners of the memory.
pub const MAX_ENTRIES: usize = (MAX_SIZE - size_of::<RawHeader>()) / size_of::<RawEntry>();

/// Size of an entry in bytes, a field of the header.
const ENTRY_SIZE: u32 = 32;

/// One combination that has occurred, and its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The purpose of the DMAs.
    pub purpose: Purpose,
    /// Their route.
    pub route: Route,
    /// The owner of the memory that they accessed.
    pub completer: Completer,
    /// The direction of their data.
    pub direction: Direction,
    /// DMAs that succeeded.
    pub requests: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// DMAs that failed.
    pub failures: u64,
}

impl Entry {
    /// Returns an entry of that kind with counts of 0.
    pub fn none(kind: DmaKind) -> Self {
        Self {
            purpose: kind.purpose,
            route: kind.route,
            completer: kind.completer,
            direction: kind.direction,
            requests: 0,
            bytes: 0,
            failures: 0,
        }
    }

    /// Returns the kind, which distinguishes it from other entries.
    pub fn kind(&self) -> DmaKind {
        DmaKind {
            purpose: self.purpose,
            route: self.route,
            completer: self.completer,
            direction: self.direction,
        }
    }

    /// Returns the kind for a device behind QEMU's virtio-iommu. That IOMMU does not pass on
    /// mappings that Linux marks as MMIO (`VIRTIO_IOMMU_MAP_F_MMIO`). Linux does so for a BAR in a
    /// dma-buf, and never for RAM. So memory that a device has reached without a mapping belongs to
    /// another device.
    pub fn kind_behind_virtio(&self) -> DmaKind {
        let mut kind = self.kind();
        if kind.completer == Completer::Unknown {
            kind.completer = Completer::PeerBar;
        }
        kind
    }

    /// Returns `true` if it has any count.
    pub(crate) fn occurred(&self) -> bool {
        self.requests != 0 || self.failures != 0
    }

    fn add(&mut self, other: &Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.failures = self.failures.saturating_add(other.failures);
    }
}

/// The reason why bytes are not such a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DmaLogError {
    /// There are fewer bytes than the page or its header needs.
    #[error("DMA log cut short: {actual} bytes of {expected}")]
    Truncated {
        /// Bytes needed.
        expected: usize,
        /// Bytes available.
        actual: usize,
    },
    /// The signature does not match: this is not a peerbar device.
    #[error("DMA log without the signature PEERBAR: not a device of peerbar")]
    Signature,
    /// The page has another version.
    #[error("DMA log of version {0}, not {VERSION}: device and reader are from different builds")]
    Version(u32),
    /// Entries have another size.
    #[error("DMA log entries of {0} bytes, not {ENTRY_SIZE}")]
    EntrySize(u32),
    /// There are more entries than combinations.
    #[error("DMA log of {0} entries, more than {MAX_ENTRIES}")]
    TooManyEntries(u32),
    /// A word of an entry has an unknown number.
    #[error("DMA log entry {entry}: {word} {value} is unknown")]
    UnknownWord {
        /// The entry, counted from 0.
        entry: usize,
        /// The word.
        word: &'static str,
        /// The number.
        value: u8,
    },
    /// Two entries are of the same combination.
    #[error("DMA log entry {entry} repeats an earlier one")]
    Repeated {
        /// The later of the two, counted from 0.
        entry: usize,
    },
}

/// The header in memory.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    signature: [u8; 8],
    version: U32,
    entry_count: U32,
    entry_size: U32,
    _reserved_20: [u8; 44],
}

/// An entry in memory.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    purpose: u8,
    route: u8,
    completer: u8,
    direction: u8,
    _reserved_4: [u8; 4],
    requests: U64,
    bytes: U64,
    failures: U64,
}

impl From<&Entry> for RawEntry {
    fn from(entry: &Entry) -> Self {
        Self {
            purpose: entry.purpose as u8,
            route: entry.route as u8,
            completer: entry.completer as u8,
            direction: entry.direction as u8,
            _reserved_4: [0; 4],
            requests: entry.requests.into(),
            bytes: entry.bytes.into(),
            failures: entry.failures.into(),
        }
    }
}

impl RawEntry {
    /// Decodes these bytes, the `number`th entry of a page.
    fn decode(&self, number: usize) -> Result<Entry, DmaLogError> {
        let unknown = |word, value| DmaLogError::UnknownWord {
            entry: number,
            word,
            value,
        };
        Ok(Entry {
            purpose: Purpose::from_repr(self.purpose)
                .ok_or_else(|| unknown("purpose", self.purpose))?,
            route: Route::from_repr(self.route).ok_or_else(|| unknown("route", self.route))?,
            completer: Completer::from_repr(self.completer)
                .ok_or_else(|| unknown("completer", self.completer))?,
            direction: Direction::from_repr(self.direction)
                .ok_or_else(|| unknown("direction", self.direction))?,
            requests: self.requests.get(),
            bytes: self.bytes.get(),
            failures: self.failures.get(),
        })
    }
}

/// Returns a page of the first [`MAX_ENTRIES`] of `entries`. Adds up entries of the same
/// combination, and leaves out those with counts of 0.
pub fn encode(entries: impl IntoIterator<Item = Entry>) -> Vec<u8> {
    let mut combinations: BTreeMap<DmaKind, Entry> = BTreeMap::new();
    for entry in entries {
        if entry.occurred() {
            combinations
                .entry(entry.kind())
                .and_modify(|sum| sum.add(&entry))
                .or_insert(entry);
        }
    }
    let mut entry_count = U32::ZERO;
    let mut body = Vec::new();
    for entry in combinations.values().take(MAX_ENTRIES) {
        entry_count += 1;
        body.extend_from_slice(RawEntry::from(entry).as_bytes());
    }
    let header = RawHeader {
        signature: SIGNATURE,
        version: VERSION.into(),
        entry_count,
        entry_size: ENTRY_SIZE.into(),
        _reserved_20: [0; 44],
    };
    [header.as_bytes(), &body].concat()
}

/// Parses the page at the start of `page`. Ignores bytes after the page, so a reader may pass a
/// whole buffer of [`MAX_SIZE`].
pub fn parse(page: &[u8]) -> Result<Vec<Entry>, DmaLogError> {
    let truncated = |expected| DmaLogError::Truncated {
        expected,
        actual: page.len(),
    };
    let (header, rest) =
        RawHeader::ref_from_prefix(page).map_err(|_| truncated(size_of::<RawHeader>()))?;
    let count = header.check()?;
    let (raw, _) = <[RawEntry]>::ref_from_prefix_with_elems(rest, count)
        .map_err(|_| truncated(size_of::<RawHeader>() + count * size_of::<RawEntry>()))?;
    let mut seen = BTreeSet::new();
    let mut entries = Vec::with_capacity(count);
    for (number, raw) in raw.iter().enumerate() {
        let entry = raw.decode(number)?;
        if !seen.insert(entry.kind()) {
            return Err(DmaLogError::Repeated { entry: number });
        }
        entries.push(entry);
    }
    Ok(entries)
}

impl RawHeader {
    /// Returns the number of entries that follow, if the header is valid.
    fn check(&self) -> Result<usize, DmaLogError> {
        if self.signature != SIGNATURE {
            return Err(DmaLogError::Signature);
        }
        if self.version.get() != VERSION {
            return Err(DmaLogError::Version(self.version.get()));
        }
        if self.entry_size.get() != ENTRY_SIZE {
            return Err(DmaLogError::EntrySize(self.entry_size.get()));
        }
        let count = self.entry_count.get();
        usize::try_from(count)
            .ok()
            .filter(|count| *count <= MAX_ENTRIES)
            .ok_or(DmaLogError::TooManyEntries(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FETCH: Entry = Entry {
        purpose: Purpose::Command,
        route: Route::OwnBar,
        completer: Completer::OwnMemory,
        direction: Direction::Read,
        requests: 3,
        bytes: 192,
        failures: 0,
    };

    const REFUSED: Entry = Entry {
        purpose: Purpose::Payload,
        route: Route::Refused,
        completer: Completer::None,
        direction: Direction::Write,
        requests: 0,
        bytes: 0,
        failures: u64::MAX,
    };

    /// Returns every kind, each with different counts.
    fn all() -> Vec<Entry> {
        let entries = (1..).zip(DmaKind::all()).map(|(requests, kind)| Entry {
            requests,
            bytes: requests * 4096,
            failures: requests % 3,
            ..Entry::none(kind)
        });
        entries.collect()
    }

    /// Returns a page of two entries with one byte changed.
    fn spoilt(at: usize, value: u8) -> Vec<u8> {
        let mut page = encode([FETCH, REFUSED]);
        page[at] = value;
        page
    }

    #[test]
    fn a_page_is_laid_out_as_documented() {
        let page = encode([REFUSED, FETCH]);
        let mut expected = vec![0; 64 + 2 * 32];
        expected[0..8].copy_from_slice(b"PEERBAR\0");
        expected[8] = 2;
        expected[12] = 2;
        expected[16] = 32;
        expected[64..68].copy_from_slice(&[0, 0, 0, 0]);
        expected[72] = 3;
        expected[80] = 192;
        expected[96..100].copy_from_slice(&[4, 4, 3, 1]);
        expected[120..128].copy_from_slice(&[0xff; 8]);
        assert_eq!(page, expected);
    }

    #[test]
    fn every_combination_survives_the_way_there_and_back() {
        let all = all();
        assert_eq!(all.len(), 300);
        let halves = all.split_at(150);
        for entries in [halves.0, halves.1] {
            let page = encode(entries.to_vec());
            assert_eq!(page.len(), 64 + 150 * 32);
            assert_eq!(parse(&page), Ok(entries.to_vec()));
        }
    }

    #[test]
    fn page_of_more_combinations_than_fit_has_the_first() {
        let page = encode(all());
        assert_eq!(page.len(), MAX_SIZE);
        assert_eq!(parse(&page).unwrap(), all()[..MAX_ENTRIES]);
    }

    #[test]
    fn an_empty_page_is_a_header() {
        assert_eq!(encode([]).len(), 64);
        assert_eq!(parse(&encode([])), Ok(Vec::new()));
    }

    #[test]
    fn entries_of_one_combination_are_added_up() {
        let page = encode([FETCH, REFUSED, FETCH, REFUSED]);
        let twice = Entry {
            requests: 6,
            bytes: 384,
            ..FETCH
        };
        assert_eq!(parse(&page), Ok(vec![twice, REFUSED]));
    }

    #[test]
    fn what_never_occurred_is_left_out() {
        let never = Entry {
            requests: 0,
            bytes: 0,
            failures: 0,
            ..FETCH
        };
        assert_eq!(encode([never]), encode([]));
    }

    #[test]
    fn bytes_after_the_page_are_ignored() {
        let mut page = encode([FETCH]);
        page.resize(MAX_SIZE, 0xa5);
        assert_eq!(parse(&page), Ok(vec![FETCH]));
    }

    #[test]
    fn a_page_cut_short_anywhere_is_refused() {
        let page = encode([FETCH, REFUSED]);
        for length in 0..page.len() {
            let expected = if length < 64 { 64 } else { 128 };
            assert_eq!(
                parse(&page[..length]),
                Err(DmaLogError::Truncated {
                    expected,
                    actual: length
                })
            );
        }
    }

    #[test]
    fn a_foreign_header_is_refused() {
        assert_eq!(parse(&[0; 4096]), Err(DmaLogError::Signature));
        assert_eq!(parse(&spoilt(0, b'p')), Err(DmaLogError::Signature));
        assert_eq!(parse(&spoilt(8, 1)), Err(DmaLogError::Version(1)));
        assert_eq!(parse(&spoilt(16, 0)), Err(DmaLogError::EntrySize(0)));
        assert_eq!(
            parse(&spoilt(19, 0x80)),
            Err(DmaLogError::EntrySize(0x8000_0020))
        );
    }

    #[test]
    fn a_count_that_lies_is_refused() {
        assert_eq!(
            parse(&spoilt(13, 2)),
            Err(DmaLogError::TooManyEntries(0x202))
        );
        assert_eq!(
            parse(&spoilt(15, 0xff)),
            Err(DmaLogError::TooManyEntries(0xff00_0002))
        );
        let beyond = DmaLogError::Truncated {
            expected: 64 + 3 * 32,
            actual: 64 + 2 * 32,
        };
        assert_eq!(parse(&spoilt(12, 3)), Err(beyond));
    }

    #[test]
    fn words_without_a_meaning_are_refused() {
        for (at, word, first_unknown) in [
            (96, "purpose", 6),
            (97, "route", 5),
            (98, "completer", 5),
            (99, "direction", 2),
        ] {
            for value in [first_unknown, 0xff] {
                let error = DmaLogError::UnknownWord {
                    entry: 1,
                    word,
                    value,
                };
                assert_eq!(parse(&spoilt(at, value)), Err(error));
            }
        }
    }

    #[test]
    fn an_entry_that_repeats_another_is_refused() {
        let mut page = encode([FETCH, REFUSED]);
        page.copy_within(64..68, 96);
        assert_eq!(parse(&page), Err(DmaLogError::Repeated { entry: 1 }));
    }

    #[test]
    fn errors_name_the_value() {
        let truncated = DmaLogError::Truncated {
            expected: 64,
            actual: 3,
        };
        assert_eq!(truncated.to_string(), "DMA log cut short: 3 bytes of 64");
        let unknown = DmaLogError::UnknownWord {
            entry: 1,
            word: "route",
            value: 9,
        };
        assert_eq!(unknown.to_string(), "DMA log entry 1: route 9 is unknown");
        assert_eq!(
            DmaLogError::TooManyEntries(255).to_string(),
            "DMA log of 255 entries, more than 254"
        );
        assert_eq!(
            DmaLogError::EntrySize(4).to_string(),
            "DMA log entries of 4 bytes, not 32"
        );
    }
}
