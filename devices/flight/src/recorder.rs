//! The writing side.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use rustix::time::ClockId;
use thiserror::Error;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};
use zerocopy::IntoBytes;

use crate::encode::Raw;
use crate::event::{Dma, Event, Outcome, Record};
use crate::layout::{
    BEGUN_AT, ENDED_AT, HEADER_BYTES, Header, Level, RECORD_BYTES, TABLE_SLOTS, UNTRACKED_AT,
};
use crate::live_table::LiveTable;

/// Why nothing can be recorded.
#[derive(Debug, Error)]
#[error("flight record: cannot {action}")]
pub struct RecordError {
    /// What was tried.
    action: &'static str,
    /// Why it failed.
    source: io::Error,
}

/// A device's flight recorder; shared by all its threads.
///
/// The file must not be cut short while the device runs: its process would be killed (SIGBUS).
pub struct Recorder {
    region: MmapRegion,
    header: Header,
    table: Mutex<LiveTable>,
    /// Held for the lock on it.
    _file: File,
}

impl Recorder {
    /// Makes the file at `path`, in place of one that is there, and records what happens to the device `name` in it. The
    /// file is sparse: it takes storage for what is recorded.
    pub fn create(path: &Path, name: &str, level: Level) -> Result<Self, RecordError> {
        let step = |action| move |source| RecordError { action, source };
        // A device that still writes to the old file keeps it.
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(step("replace the file")(error));
            }
            _ => {}
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(path);
        let file = file.map_err(step("make the file"))?;
        let lock = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        lock.map_err(|error| step("lock the file")(error.into()))?;
        let header = Header {
            name: name.to_owned(),
            level,
            process: std::process::id(),
            monotonic: now(ClockId::Monotonic),
            realtime: now(ClockId::Realtime),
            begun: 0,
            ended: false,
            untracked: 0,
            ring_slots: level.ring_slots(),
            table_slots: TABLE_SLOTS,
        };
        let region = map(&file, header.file_bytes()).map_err(step("map the file"))?;
        let recorder = Self {
            region,
            table: Mutex::new(LiveTable::new(header.table_slots)),
            header,
            _file: file,
        };
        let slice = recorder.region.as_volatile_slice();
        let written = slice.write_slice(recorder.header.to_raw().as_bytes(), 0);
        written.map_err(|error| step("write the file")(io::Error::other(error)))?;
        Ok(recorder)
    }

    /// Whether every DMA and every command is wanted, not only those that fail.
    pub fn wants_all(&self) -> bool {
        self.header.level == Level::All
    }

    /// The time for [`Recorder::dma`], if it is wanted.
    pub fn clock(&self) -> u64 {
        if self.wants_all() {
            now(ClockId::Monotonic)
        } else {
            0
        }
    }

    /// Records a segment of a DMA that began at `started` ([`Recorder::clock`]), if it is wanted.
    pub fn dma(&self, dma: Dma, started: u64) {
        if self.wants_all() || dma.outcome != Outcome::Done {
            let nanos = now(ClockId::Monotonic);
            let took = match started {
                0 => 0,
                started => nanos.saturating_sub(started),
            };
            self.append(nanos, Event::Dma(Dma { took, ..dma }));
        }
    }

    /// Records an event. Those that change what is mapped or where windows are must come one after the other.
    pub fn record(&self, event: Event) {
        let wanted = match event {
            Event::Begin { .. } | Event::End { .. } => self.wants_all(),
            _ => true,
        };
        if !wanted {
            return;
        }
        let nanos = now(ClockId::Monotonic);
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

    /// Adds a record to the ring; its number.
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

    /// Writes a record. One that is read half written is recognised by its check sum.
    fn put(&self, at: u64, bytes: &[u8]) {
        let slice = usize::try_from(at)
            .ok()
            .and_then(|at| self.region.get_slice(at, bytes.len()).ok());
        if let Some(slice) = slice {
            slice.copy_from(bytes);
        }
    }

    fn set(&self, at: usize, value: u64) {
        if let Some(counter) = self.counter(at) {
            counter.store(value.to_le(), Ordering::Relaxed);
        }
    }

    fn counter(&self, at: usize) -> Option<&AtomicU64> {
        self.region.get_atomic_ref(at).ok()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.set(ENDED_AT, 1);
    }
}

fn map(file: &File, bytes: u64) -> io::Result<MmapRegion> {
    file.set_len(bytes)?;
    let length = usize::try_from(bytes).map_err(|_| ErrorKind::FileTooLarge)?;
    MmapRegion::from_file(FileOffset::new(file.try_clone()?, 0), length).map_err(io::Error::other)
}

/// A clock in nanoseconds.
fn now(clock: ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos)
}
