//! The file: a header, the table of the current state, and the ring of events.
//!
//! All numbers are little-endian. The header takes 4096 bytes:
//!
//! | bytes | content |
//! | --- | --- |
//! | 7:0 | signature, "PBFLIGHT" |
//! | 11:8 | version, 3 |
//! | 15:12 | bytes of a record, 64 |
//! | 23:16 | slots of the table |
//! | 31:24 | slots of the ring |
//! | 39:32 | records begun so far; the newest has this sequence number |
//! | 47:40 | 1 once the device has ended in order, else 0 |
//! | 55:48 | CLOCK_MONOTONIC at the start, in ns |
//! | 63:56 | CLOCK_REALTIME at the start, in ns since 1970 |
//! | 67:64 | process of the device |
//! | 71:68 | [`Level`]: 0 maps, 1 all |
//! | 79:72 | mappings and windows for which the table had no slot |
//! | 191:128 | name of the device, UTF-8, filled up with zeros |
//! | 4095:192 | texts of the fault rules, ASCII, one a line, in the order of their numbers; filled up with zeros |
//!
//! Then comes the table, then the ring; both consist of records (`encode.rs`). A slot of the table
//! is free if it is all zeros. Otherwise it is a copy of the record that made the entry, with the
//! range reduced to the part that remains. Record number n is in slot (n - 1) modulo the ring's
//! size. The process that writes the file holds a lock on it (flock(2)) until it ends.

use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub(crate) const SIGNATURE: [u8; 8] = *b"PBFLIGHT";
pub(crate) const VERSION: u32 = 3;
pub(crate) const HEADER_BYTES: u64 = 4096;
pub(crate) const RECORD_BYTES: u64 = 64;
/// Slots of the table: enough for all mappings that a client may have (vfio-user, VERSION,
/// `max_dma_maps`), and for windows.
pub(crate) const TABLE_SLOTS: u64 = 1 << 16;
/// The largest table and ring that are read.
const SLOTS_LIMIT: u64 = 1 << 26;

/// Offsets in the header of the numbers that change.
pub(crate) const BEGUN_AT: usize = 32;
pub(crate) const ENDED_AT: usize = 40;
pub(crate) const UNTRACKED_AT: usize = 72;
/// Offset in the header of the texts of fault rules.
pub(crate) const RULES_AT: u64 = 192;

/// The level of detail of the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Mappings, windows, resets, and every DMA that failed or was lost.
    #[default]
    Maps,
    /// Also every DMA and every command.
    All,
}

impl Level {
    /// Returns the slots of the ring: 4 MiB of mappings, or 64 MiB of everything.
    pub(crate) fn ring_slots(self) -> u64 {
        match self {
            Self::Maps => 1 << 16,
            Self::All => 1 << 20,
        }
    }
}

/// The header of a flight record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Name of the device.
    pub name: String,
    /// The level of detail.
    pub level: Level,
    /// The device's process.
    pub process: u32,
    /// CLOCK_MONOTONIC at the start, in nanoseconds.
    pub monotonic: u64,
    /// CLOCK_REALTIME at the start, in nanoseconds since 1970.
    pub realtime: u64,
    /// Number of records begun so far.
    pub begun: u64,
    /// The device has ended in order.
    pub ended: bool,
    /// Number of mappings and windows for which the table had no slot.
    pub untracked: u64,
    /// The texts of its fault rules, from number 1 on. The last ones are missing if there was no
    /// room for them.
    pub rules: Vec<String>,
    /// Slots of the ring.
    pub ring_slots: u64,
    pub(crate) table_slots: u64,
}

/// The reason why a file is not a readable flight record.
#[derive(Debug, Error)]
pub enum FlightError {
    /// The file does not have the signature.
    #[error("not a flight record: it does not start with PBFLIGHT")]
    Signature,
    /// The file has another version.
    #[error("flight record of version {0}, not {VERSION}: use the peerbar that it was made with")]
    Version(u32),
    /// A number in its header is invalid.
    #[error("invalid flight record: {what} = {value}")]
    Number {
        /// The name of the number.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The file ends too early.
    #[error("flight record of {actual} bytes, not {expected}: it was cut short")]
    Truncated {
        /// The expected length.
        expected: u64,
        /// The actual length.
        actual: u64,
    },
    /// The name of the device is not text.
    #[error("flight record of a device whose name is not UTF-8")]
    Name,
    /// The file cannot be read.
    #[error("flight record cannot be read")]
    Io(#[from] std::io::Error),
}

/// The header as it is in the file.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawHeader {
    signature: [u8; 8],
    version: U32,
    record_bytes: U32,
    table_slots: U64,
    ring_slots: U64,
    begun: U64,
    ended: U64,
    monotonic: U64,
    realtime: U64,
    process: U32,
    level: U32,
    untracked: U64,
    reserved: [u8; 48],
    name: [u8; 64],
}

const _: () = assert!(size_of::<RawHeader>() as u64 == RULES_AT);
const _: () = assert!(std::mem::offset_of!(RawHeader, begun) == BEGUN_AT);
const _: () = assert!(std::mem::offset_of!(RawHeader, ended) == ENDED_AT);
const _: () = assert!(std::mem::offset_of!(RawHeader, untracked) == UNTRACKED_AT);

impl Header {
    /// Returns the length of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.ring_at() + self.ring_slots * RECORD_BYTES
    }

    /// Returns the offset of the ring.
    pub(crate) fn ring_at(&self) -> u64 {
        HEADER_BYTES + self.table_slots * RECORD_BYTES
    }

    /// Returns the header as it is in the file. A long name is cut.
    pub(crate) fn to_raw(&self) -> RawHeader {
        let mut name = [0; 64];
        for (at, letter) in self.name.char_indices() {
            if let Some(bytes) = name.get_mut(at..at + letter.len_utf8()) {
                letter.encode_utf8(bytes);
            }
        }
        RawHeader {
            signature: SIGNATURE,
            version: VERSION.into(),
            record_bytes: U32::new(64),
            table_slots: self.table_slots.into(),
            ring_slots: self.ring_slots.into(),
            begun: self.begun.into(),
            ended: u64::from(self.ended).into(),
            monotonic: self.monotonic.into(),
            realtime: self.realtime.into(),
            process: self.process.into(),
            level: U32::new(u32::from(self.level == Level::All)),
            untracked: self.untracked.into(),
            reserved: [0; 48],
            name,
        }
    }

    /// Reads a header from the start of `bytes`.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, FlightError> {
        let (raw, rest) =
            RawHeader::ref_from_prefix(bytes).map_err(|_| FlightError::Truncated {
                expected: HEADER_BYTES,
                actual: bytes.len() as u64,
            })?;
        if raw.signature != SIGNATURE {
            return Err(FlightError::Signature);
        }
        if raw.version.get() != VERSION {
            return Err(FlightError::Version(raw.version.get()));
        }
        let possible = |what, value, yes| match yes {
            true => Ok(value),
            false => Err(FlightError::Number { what, value }),
        };
        let bytes = u64::from(raw.record_bytes.get());
        possible("record size", bytes, bytes == RECORD_BYTES)?;
        let slots = |what, value| possible(what, value, (1..=SLOTS_LIMIT).contains(&value));
        let level = u64::from(raw.level.get());
        let name = raw.name.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(Self {
            name: String::from_utf8(name.to_vec()).map_err(|_| FlightError::Name)?,
            level: match possible("level", level, level < 2)? {
                0 => Level::Maps,
                _ => Level::All,
            },
            process: raw.process.get(),
            monotonic: raw.monotonic.get(),
            realtime: raw.realtime.get(),
            begun: raw.begun.get(),
            ended: raw.ended.get() == 1,
            untracked: raw.untracked.get(),
            rules: rules(rest),
            table_slots: slots("table slots", raw.table_slots.get())?,
            ring_slots: slots("ring slots", raw.ring_slots.get())?,
        })
    }
}

/// Returns the texts of fault rules in the bytes that follow the header's numbers and name.
fn rules(bytes: &[u8]) -> Vec<String> {
    let limit = usize::try_from(HEADER_BYTES - RULES_AT).unwrap_or(0);
    let text = bytes.get(..limit).unwrap_or_default();
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    // The last one may be half written.
    let whole = lines.filter_map(|line| line.strip_suffix(b"\n"));
    whole.map(|line| line.escape_ascii().to_string()).collect()
}
