//! The writing side.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use peerbar_dma_log::Route;
use rustix::time::ClockId;
use vm_memory::VolatileMemory;
use zerocopy::IntoBytes;

use crate::encode::Raw;
use crate::event::{Dma, DmaOutcome, Event, Record};
use crate::layout::{
    BEGUN_AT, ENDED_AT, HEADER_BYTES, Header, Level, RECORD_BYTES, RULES_AT, TABLE_SLOTS,
    UNTRACKED_AT,
};
use crate::live_table::LiveTable;
use crate::mapped_file::{MappedFile, MappedFileError, create_mapped};

/// A device's flight recorder, shared by all its threads.
pub struct Recorder {
    file: MappedFile,
    header: Header,
    table: Mutex<LiveTable>,
    /// Offset of the next fault rule's text.
    rules_end: Mutex<u64>,
}

impl Recorder {
    /// Makes the file at `path`, in place of an existing one, and records the events of the device
    /// `name` in it.
    pub fn create(path: &Path, name: &str, level: Level) -> Result<Self, MappedFileError> {
        let header = Header {
            name: name.to_owned(),
            level,
            process: std::process::id(),
            monotonic: monotonic_ns(),
            realtime: now(ClockId::Realtime),
            begun: 0,
            ended: false,
            untracked: 0,
            rules: Vec::new(),
            ring_slots: level.ring_slots(),
            table_slots: TABLE_SLOTS,
        };
        let raw = header.to_raw();
        let file = create_mapped("flight record", path, header.file_bytes(), raw.as_bytes())?;
        Ok(Self {
            file,
            table: Mutex::new(LiveTable::new(header.table_slots)),
            rules_end: Mutex::new(RULES_AT),
            header,
        })
    }

    /// Returns `true` if every DMA and every command is recorded, not only those that fail.
    pub fn wants_all(&self) -> bool {
        self.header.level == Level::All
    }

    /// Returns the time for [`Recorder::dma`], if it is needed.
    pub fn clock(&self) -> u64 {
        if self.wants_all() { monotonic_ns() } else { 0 }
    }

    /// Records a segment of a DMA that began at `started` ([`Recorder::clock`]), if the level
    /// requires it. A segment that reached no memory is always recorded, even if the device sees a
    /// success.
    pub fn dma(&self, dma: Dma, started: u64) {
        let went_nowhere = dma.outcome != DmaOutcome::Done || dma.route == Route::Refused;
        if self.wants_all() || went_nowhere {
            let nanos = monotonic_ns();
            let took = match started {
                0 => 0,
                started => nanos.saturating_sub(started),
            };
            self.append(nanos, Event::Dma(Dma { took, ..dma }));
        }
    }

    /// Records an event. Events that change mappings or windows must be recorded one after the
    /// other.
    pub fn record(&self, event: Event) {
        let wanted = match event {
            Event::Begin { .. }
            | Event::End { .. }
            | Event::Doorbell(_)
            | Event::RegisterWrite(_)
            | Event::Interrupt { .. } => self.wants_all(),
            _ => true,
        };
        if !wanted {
            return;
        }
        let nanos = monotonic_ns();
        let sequence = self.append(nanos, event);
        let changes_table = matches!(
            event,
            Event::Map(_)
                | Event::Unmap { .. }
                | Event::Window(_)
                | Event::PeerWindow(_)
                | Event::PeerLeaves(_)
        );
        if changes_table {
            self.change_table(sequence, nanos, &event);
        }
    }

    /// Records the text of the fault rule with the next number, if there is room for it.
    pub fn rule(&self, text: &str) {
        let mut end = self.rules_end.lock();
        let line = format!("{text}\n");
        let next = end.saturating_add(line.len() as u64);
        if next <= HEADER_BYTES {
            self.put(*end, line.as_bytes());
            *end = next;
        } else {
            // Otherwise a later text would be taken for this one.
            *end = HEADER_BYTES;
        }
    }

    fn change_table(&self, sequence: u64, nanos: u64, event: &Event) {
        let mut table = self.table.lock();
        for (slot, event) in table.apply(event) {
            let at = HEADER_BYTES + slot * RECORD_BYTES;
            let raw = event.map(|event| Record {
                sequence,
                nanos,
                event,
            });
            match raw {
                Some(record) => self.put(at, Raw::new(&record).as_bytes()),
                None => self.put(at, &[0; 64]),
            }
        }
        self.set(UNTRACKED_AT, table.untracked);
    }

    /// Adds a record to the ring. Returns its number.
    fn append(&self, nanos: u64, event: Event) -> u64 {
        let begun = self.counter(BEGUN_AT);
        let before = begun.map_or(0, |begun| begun.fetch_add(1, Ordering::Relaxed));
        let sequence = before.wrapping_add(1);
        let slot = before % self.header.ring_slots;
        let record = Record {
            sequence,
            nanos,
            event,
        };
        let at = self.header.ring_at() + slot * RECORD_BYTES;
        self.put(at, Raw::new(&record).as_bytes());
        sequence
    }

    /// Writes a record. A reader recognises an incomplete record by its checksum.
    fn put(&self, at: u64, bytes: &[u8]) {
        let slice = usize::try_from(at)
            .ok()
            .and_then(|at| self.file.region.get_slice(at, bytes.len()).ok());
        if let Some(slice) = slice {
            slice.copy_from(bytes);
        }
    }

    /// Notes that the device has ended in order, as the drop does.
    pub fn end(&self) {
        self.set(ENDED_AT, 1);
    }

    fn set(&self, at: usize, value: u64) {
        if let Some(counter) = self.counter(at) {
            counter.store(value.to_le(), Ordering::Relaxed);
        }
    }

    fn counter(&self, at: usize) -> Option<&AtomicU64> {
        self.file.region.get_atomic_ref(at).ok()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the time of a record: CLOCK_MONOTONIC in nanoseconds (clock_gettime(2)), which is the
/// same for all processes of the machine.
pub fn monotonic_ns() -> u64 {
    now(ClockId::Monotonic)
}

/// Returns a clock's time in nanoseconds.
fn now(clock: ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos)
}
