//! The file in which a device shares its counters with other processes of the host.
//!
//! The device maps the file and counts in it, so a reader sees each DMA at once, without a lock and
//! without a request to the device; the last counts outlive the device. All numbers are
//! little-endian and aligned:
//!
//! | bytes | content |
//! | --- | --- |
//! | 7:0 | signature, "PBCOUNT" and a zero byte |
//! | 11:8 | version, 3 |
//! | 15:12 | identifier of the device's process |
//! | 19:16 | number of slots, [`SLOTS`] |
//! | 127:64 | [`AtsCounts`], as in their page |
//! | 135:128 | [`DeviceEvents::interrupts`] |
//! | 143:136 | [`DeviceEvents::injected_faults`] |
//! | 151:144 | 1 if the device counts its client's doorbells, or 0 |
//! | 256 + 8 * n | [`DeviceEvents::doorbells`] of queue n, 0 to 255 |
//! | 4096 + 7296 * n | slot n |
//!
//! A slot has three numbers for each [`DmaKind`], in the order of [`DmaKind::index`]: DMAs that
//! succeeded, their bytes, DMAs that failed. Each slot has one writer at a time, so that threads do
//! not share cache lines; [`SHARED_SLOT`] is for all other threads. The counters of the device are
//! the sums over all slots. They never decrease.
//!
//! [`Reader::read`] reads until two successive copies are the same. Because counters never
//! decrease, such a copy shows the file at one moment.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use thiserror::Error;
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use crate::ats::AtsCounts;
use crate::events::DeviceEvents;
use crate::kind::DmaKind;
use crate::page::Entry;

/// The start of the file.
pub const SIGNATURE: [u8; 8] = *b"PBCOUNT\0";

/// The version of the layout that this module describes.
pub const VERSION: u32 = 3;

/// Slots of a file: those of 64 workers, [`SHARED_SLOT`] and some more.
pub const SLOTS: usize = 72;

/// The slot in which several threads may count, by atomic additions.
pub const SHARED_SLOT: usize = 0;

/// Numbers of a kind in a slot: DMAs that succeeded, their bytes, DMAs that failed.
pub const NUMBERS: usize = 3;

/// Bytes of a slot: a multiple of the two cache lines that processors fetch together.
const SLOT_BYTES: usize = (DmaKind::COUNT * NUMBERS * 8).next_multiple_of(128);

/// Offset and length of the translation cache's counts.
const ATS_AT: usize = 64;
const ATS_BYTES: usize = 64;

/// Offsets of the counts of other events, of the flag that the doorbells' counts are valid, and of
/// these counts.
const INTERRUPTS_AT: usize = 128;
const INJECTED_FAULTS_AT: usize = 136;
const COUNTS_DOORBELLS_AT: usize = 144;
const DOORBELLS_AT: usize = 256;

const SLOTS_AT: usize = 4096;

/// Bytes of a file.
pub const FILE_BYTES: usize = SLOTS_AT + SLOTS * SLOT_BYTES;

/// Number of times that a constantly changing file is read before a copy is accepted as it is.
const ATTEMPTS: usize = 64;

/// The reason why counters cannot be read.
#[derive(Debug, Error)]
pub enum CounterFileError {
    /// The file cannot be opened or read.
    #[error("counter file: {0}")]
    Io(#[from] io::Error),
    /// The signature does not match.
    #[error("counter file without the signature PBCOUNT: not made by a device of peerbar")]
    Signature,
    /// The layout has another version.
    #[error(
        "counter file of version {0}, not {VERSION}: device and reader are from different builds"
    )]
    Version(u32),
}

/// Returns the start of a file of the process with that identifier.
pub fn header(process: u32) -> [u8; ATS_AT] {
    let mut header = [0; ATS_AT];
    let slots = u32::try_from(SLOTS).unwrap_or(u32::MAX);
    let fields = SIGNATURE.into_iter().chain(VERSION.to_le_bytes());
    let fields = fields
        .chain(process.to_le_bytes())
        .chain(slots.to_le_bytes());
    for (to, byte) in header.iter_mut().zip(fields) {
        *to = byte;
    }
    header
}

/// Returns the offset in the file of the numbers of a kind in that slot.
pub fn numbers_at(slot: usize, kind: DmaKind) -> usize {
    SLOTS_AT + slot * SLOT_BYTES + kind.index() * NUMBERS * 8
}

/// An event other than DMA that has a number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The device signals an interrupt.
    Interrupt,
    /// A rule injects a fault.
    InjectedFault,
    /// The client writes a doorbell of this queue.
    Doorbell(u16),
}

/// Returns the offset in the file of the number of an event.
pub fn event_at(event: DeviceEvent) -> usize {
    match event {
        DeviceEvent::Interrupt => INTERRUPTS_AT,
        DeviceEvent::InjectedFault => INJECTED_FAULTS_AT,
        DeviceEvent::Doorbell(queue) => {
            DOORBELLS_AT + usize::from(queue.min(DeviceEvents::LAST_QUEUE)) * 8
        }
    }
}

/// Returns the offset in the file at which a device writes 1 if it counts its client's doorbells.
pub fn counts_doorbells_at() -> usize {
    COUNTS_DOORBELLS_AT
}

/// Returns the offset in the file of each number of the translation cache, and the number.
pub fn ats_numbers(counts: &AtsCounts) -> impl Iterator<Item = (usize, u64)> {
    (ATS_AT..).step_by(8).zip(counts.words())
}

/// The counters of a device at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceCounters {
    /// The identifier of the device's process.
    pub process: u32,
    /// The DMA, one entry for each kind that has occurred, in the order of [`DmaKind::index`].
    pub entries: Vec<Entry>,
    /// The statistics of the address translation cache.
    pub ats: AtsCounts,
    /// The counts of other events.
    pub events: DeviceEvents,
}

/// A device's counter file, read while the device counts in it or after it has ended.
#[derive(Debug)]
pub struct Reader {
    file: File,
}

impl Reader {
    /// Opens the file at `path` and checks that it has this version.
    pub fn open(path: &Path) -> Result<Self, CounterFileError> {
        let reader = Self {
            file: File::open(path)?,
        };
        let mut header = [0; 12];
        reader.file.read_exact_at(&mut header, 0)?;
        let (signature, version) = header.split_at(SIGNATURE.len());
        if signature != SIGNATURE {
            return Err(CounterFileError::Signature);
        }
        match u32::from_le_bytes(version.try_into().unwrap_or_default()) {
            VERSION => Ok(reader),
            other => Err(CounterFileError::Version(other)),
        }
    }

    /// Returns the current counters.
    pub fn read(&self) -> Result<DeviceCounters, CounterFileError> {
        let mut copy = self.copy()?;
        for _ in 1..ATTEMPTS {
            let again = self.copy()?;
            if again == copy {
                break;
            }
            copy = again;
        }
        Ok(decode(&copy))
    }

    fn copy(&self) -> Result<Vec<u8>, CounterFileError> {
        let mut copy = vec![0; FILE_BYTES];
        self.file.read_exact_at(&mut copy, 0)?;
        Ok(copy)
    }
}

/// Returns the counters in a copy of a whole file.
fn decode(copy: &[u8]) -> DeviceCounters {
    let numbers = <[U64]>::ref_from_bytes(copy).unwrap_or_default();
    let number = |at: usize| numbers.get(at / 8).map_or(0, |number| number.get());
    let sum = |kind, which: usize| {
        (0..SLOTS).fold(0, |sum: u64, slot| {
            sum.wrapping_add(number(numbers_at(slot, kind) + which * 8))
        })
    };
    let entries = DmaKind::all().map(|kind| Entry {
        requests: sum(kind, 0),
        bytes: sum(kind, 1),
        failures: sum(kind, 2),
        ..Entry::none(kind)
    });
    let mut ats = [0; ATS_BYTES / 8];
    for (index, word) in ats.iter_mut().enumerate() {
        *word = number(ATS_AT + index * 8);
    }
    DeviceCounters {
        // The upper half of the number that starts at byte 8.
        process: u32::try_from(number(8) >> 32).unwrap_or_default(),
        entries: entries.filter(Entry::occurred).collect(),
        ats: AtsCounts::from_words(ats),
        events: events(number),
    }
}

/// Returns the events. `number` returns the number at an offset of the file.
fn events(number: impl Fn(usize) -> u64) -> DeviceEvents {
    let count = |event| number(event_at(event));
    let queues = 0..=DeviceEvents::LAST_QUEUE;
    let doorbells = queues.map(|queue| (queue, count(DeviceEvent::Doorbell(queue))));
    let counts_doorbells = number(COUNTS_DOORBELLS_AT) != 0;
    DeviceEvents {
        interrupts: count(DeviceEvent::Interrupt),
        injected_faults: count(DeviceEvent::InjectedFault),
        doorbells: counts_doorbells.then(|| doorbells.filter(|(_, count)| *count > 0).collect()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::words::{Completer, Direction, Purpose, Route};

    const KIND: DmaKind = DmaKind {
        purpose: Purpose::Payload,
        route: Route::Peer,
        completer: Completer::PeerBar,
        direction: Direction::Write,
    };

    /// A file of process 77 in a new folder.
    struct CounterFolder {
        folder: std::path::PathBuf,
        bytes: Vec<u8>,
    }

    impl CounterFolder {
        fn new(name: &str) -> Self {
            let name = format!("peerbar-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir_all(&folder).unwrap();
            let mut bytes = vec![0; FILE_BYTES];
            bytes[..64].copy_from_slice(&header(77));
            Self { folder, bytes }
        }

        fn set(&mut self, at: usize, number: u64) {
            self.bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }

        fn reader(&self) -> Result<Reader, CounterFileError> {
            let path = self.folder.join("device.counters");
            fs::write(&path, &self.bytes).unwrap();
            Reader::open(&path)
        }
    }

    impl Drop for CounterFolder {
        fn drop(&mut self) {
            // A remaining folder does no harm.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    #[test]
    fn header_has_documented_layout() {
        let mut expected = [0; 64];
        expected[0..8].copy_from_slice(b"PBCOUNT\0");
        expected[8] = 3;
        expected[12] = 77;
        expected[16] = 72;
        assert_eq!(header(77), expected);
        assert_eq!(
            (FILE_BYTES, numbers_at(1, KIND)),
            (4096 + 72 * 7296, 4096 + 7296 + 215 * 24)
        );
    }

    #[test]
    fn read_sums_all_slots() {
        let mut folder = CounterFolder::new("slots");
        for (slot, number) in [(0, 1), (1, 10), (SLOTS - 1, 100)] {
            let at = numbers_at(slot, KIND);
            folder.set(at, number);
            folder.set(at + 8, number * 512);
            folder.set(at + 16, number * 2);
        }
        let counters = folder.reader().unwrap().read().unwrap();
        let entry = Entry {
            requests: 111,
            bytes: 111 * 512,
            failures: 222,
            ..Entry::none(KIND)
        };
        assert_eq!((counters.process, counters.entries), (77, vec![entry]));
        assert_eq!(counters.ats, AtsCounts::default());
    }

    #[test]
    fn read_has_every_kind_in_order() {
        let mut folder = CounterFolder::new("kinds");
        for (number, kind) in (1..).zip(DmaKind::all()) {
            folder.set(numbers_at(3, kind) + 16, number);
        }
        let counters = folder.reader().unwrap().read().unwrap();
        let read: Vec<_> = counters
            .entries
            .iter()
            .map(|e| (e.kind(), e.failures))
            .collect();
        assert_eq!(read, DmaKind::all().zip(1..).collect::<Vec<_>>());
    }

    #[test]
    fn read_has_what_translation_cache_did() {
        let mut folder = CounterFolder::new("ats");
        let ats = AtsCounts {
            enabled: true,
            hits: 2,
            asked: 3,
            refused: 4,
            invalidated: 5,
            evicted: 6,
            cached: 7,
        };
        for (at, number) in ats_numbers(&ats) {
            folder.set(at, number);
        }
        assert_eq!(folder.reader().unwrap().read().unwrap().ats, ats);
    }

    #[test]
    fn read_has_each_event_and_only_doorbells_that_are_counted() {
        let mut folder = CounterFolder::new("events");
        for (at, number) in [(128, 5), (136, 6), (256, 7), (272, 8), (2296, 9)] {
            folder.set(at, number);
        }
        let uncounted = DeviceEvents {
            interrupts: 5,
            injected_faults: 6,
            doorbells: None,
        };
        assert_eq!(folder.reader().unwrap().read().unwrap().events, uncounted);
        folder.set(144, 1);
        let doorbells = Some([(0, 7), (2, 8), (255, 9)].into());
        let counted = DeviceEvents {
            doorbells,
            ..uncounted
        };
        assert_eq!(folder.reader().unwrap().read().unwrap().events, counted);
        let last = event_at(DeviceEvent::Doorbell(u16::MAX));
        assert_eq!((last, counts_doorbells_at()), (2296, 144));
    }

    #[test]
    fn foreign_and_short_files_are_refused() {
        let mut folder = CounterFolder::new("foreign");
        folder.bytes[8] = 2;
        assert!(matches!(folder.reader(), Err(CounterFileError::Version(2))));
        folder.bytes[0] = b'p';
        assert!(matches!(folder.reader(), Err(CounterFileError::Signature)));
        folder.bytes.truncate(11);
        assert!(matches!(folder.reader(), Err(CounterFileError::Io(_))));
        folder.bytes = header(77).to_vec();
        let cut = folder.reader().unwrap().read();
        assert!(matches!(cut, Err(CounterFileError::Io(_))));
    }
}
