//! The reading side.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use zerocopy::FromBytes;

use crate::encode::Raw;
use crate::event::Record;
use crate::layout::{FlightError, HEADER_BYTES, Header, RECORD_BYTES};

/// Bytes of a table or ring that are read at once: a multiple of a record.
const STEP: u64 = 1 << 20;

/// The contents of a flight record at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flight {
    /// The header.
    pub header: Header,
    /// The state at that moment: mappings and windows, in no order.
    pub now: Vec<Record>,
    /// The events, the oldest first.
    pub records: Vec<Record>,
    /// Number of older records that have been overwritten.
    pub overwritten: u64,
    /// Number of records that are incomplete: they were being written when they were read, or when
    /// their device was killed.
    pub torn: u64,
}

impl Flight {
    /// Reads a whole file. For a file that may be large or is still being written, see [`FlightFile`].
    pub fn parse(bytes: &[u8]) -> Result<Self, FlightError> {
        Self::read(Header::parse(bytes)?, bytes.len() as u64, |at, buffer| {
            let start = usize::try_from(at).map_err(|_| ErrorKind::UnexpectedEof)?;
            let end = start.saturating_add(buffer.len());
            let part = bytes.get(start..end).ok_or(ErrorKind::UnexpectedEof)?;
            buffer.copy_from_slice(part);
            Ok(())
        })
    }

    fn read(
        header: Header,
        length: u64,
        read: impl Fn(u64, &mut [u8]) -> io::Result<()>,
    ) -> Result<Self, FlightError> {
        if length < header.file_bytes() {
            return Err(FlightError::Truncated {
                expected: header.file_bytes(),
                actual: length,
            });
        }
        let mut torn = 0u64;
        let mut now = Vec::new();
        for_each(HEADER_BYTES, header.table_slots, &read, |raw| {
            match raw.decode() {
                Some(record) => now.push(record),
                None => torn += u64::from(!raw.is_free()),
            }
        })?;
        let written = header.begun.min(header.ring_slots);
        let mut records = Vec::new();
        let mut slot = 0;
        for_each(header.ring_at(), written, &read, |raw| {
            let record = raw.decode();
            let is_in_its_slot =
                |record: &Record| (record.sequence - 1) % header.ring_slots == slot;
            records.extend(record.filter(is_in_its_slot));
            slot += 1;
        })?;
        let overwritten = header.begun - written;
        // They may include records that were begun after the header was read, in the slots of older
        // ones.
        records.retain(|record| record.sequence > overwritten);
        records.sort_unstable_by_key(|record| record.sequence);
        torn += written.saturating_sub(records.len() as u64);
        Ok(Self {
            header,
            now,
            records,
            overwritten,
            torn,
        })
    }
}

/// A flight record that may still be written.
#[derive(Debug)]
pub struct FlightFile {
    file: File,
}

impl FlightFile {
    /// Opens the record at `path`, a regular file. Neither waits nor follows a link, because a
    /// guest may write to the folder.
    pub fn open(path: &Path) -> Result<Self, FlightError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?;
        let file = File::from(file);
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file").into());
        }
        let flight = Self { file };
        flight.header()?;
        Ok(flight)
    }

    /// Returns `true` if the device's process still exists.
    pub fn is_live(&self) -> Result<bool, FlightError> {
        match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {
                rustix::fs::flock(&self.file, FlockOperation::Unlock).map_err(io::Error::from)?;
                Ok(false)
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// Returns the current contents.
    pub fn read(&self) -> Result<Flight, FlightError> {
        let length = self.file.metadata().map_err(FlightError::from)?.len();
        Flight::read(self.header()?, length, |at, buffer| {
            self.file.read_exact_at(buffer, at)
        })
    }

    /// Returns the records since record number `since`, up to the first one that is still being
    /// written.
    pub fn tail(&self, since: u64) -> Result<Tail, FlightError> {
        let header = self.header()?;
        let oldest = header.begun.saturating_sub(header.ring_slots);
        let mut lost = oldest.saturating_sub(since);
        let mut next = since.max(oldest);
        let mut records = Vec::new();
        while next < header.begun {
            let mut raw = [0; 64];
            let at = header.ring_at() + next % header.ring_slots * RECORD_BYTES;
            self.file.read_exact_at(&mut raw, at)?;
            let record = Raw::read_from_bytes(&raw).ok().and_then(|raw| raw.decode());
            match record {
                Some(record) if record.sequence == next + 1 => records.push(record),
                _ if self.is_live()? => break,
                _ => lost += 1,
            }
            next += 1;
        }
        Ok(Tail {
            records,
            next,
            lost,
        })
    }

    fn header(&self) -> Result<Header, FlightError> {
        let mut bytes = vec![0; usize::try_from(HEADER_BYTES).unwrap_or(0)];
        let read = self.file.read_exact_at(&mut bytes, 0);
        read.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => FlightError::Signature,
            _ => error.into(),
        })?;
        Header::parse(&bytes)
    }
}

/// New records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The records, the oldest first.
    pub records: Vec<Record>,
    /// The number to pass next time.
    pub next: u64,
    /// Number of records that were overwritten before they could be read, or that will never be
    /// complete.
    pub lost: u64,
}

/// Reads `slots` records from `at` on.
fn for_each(
    at: u64,
    slots: u64,
    read: &impl Fn(u64, &mut [u8]) -> io::Result<()>,
    mut each: impl FnMut(&Raw),
) -> Result<(), FlightError> {
    let end = at + slots * RECORD_BYTES;
    for start in (at..end).step_by(usize::try_from(STEP).unwrap_or(usize::MAX)) {
        let length = usize::try_from((end - start).min(STEP)).unwrap_or(0);
        let mut bytes = vec![0; length];
        read(start, &mut bytes)?;
        let raws = <[Raw]>::ref_from_bytes(&bytes).unwrap_or_default();
        raws.iter().for_each(&mut each);
    }
    Ok(())
}
