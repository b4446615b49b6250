//! A disk in memory that fails on request, and remembers the content of its stable storage.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use peerbar_nvme::Disk;

/// Bytes of a disk.
pub(super) const DISK: usize = 32 << 10;

const EIO: i32 = 5;
const EMFILE: i32 = 24;
const ENOSPC: i32 = 28;

/// The failure of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// With this errno, without an effect.
    Errno(i32),
    /// Halfway.
    Short,
}

impl Kind {
    pub(super) fn of(byte: u8) -> Self {
        match byte & 3 {
            0 => Self::Errno(EIO),
            1 => Self::Errno(ENOSPC),
            2 => Self::Errno(EMFILE),
            _ => Self::Short,
        }
    }
}

struct State {
    bytes: Vec<u8>,
    /// `true` if something was written since the last flush.
    is_dirty: bool,
    /// The number of operations before one fails, and its failure.
    plan: Option<(u8, Kind)>,
    fired: u64,
    has_failed_to_flush: bool,
}

/// A disk that the test and the controller share.
pub(super) struct Shared(Mutex<State>);

impl Default for Shared {
    fn default() -> Self {
        Self(Mutex::new(State {
            bytes: vec![0; DISK],
            is_dirty: false,
            plan: None,
            fired: 0,
            has_failed_to_flush: false,
        }))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no earlier failure")
    }

    /// Sets everything to zero, without a plan to fail.
    pub(super) fn clear(&self) {
        let mut state = self.lock();
        state.bytes.fill(0);
        state.is_dirty = false;
        state.plan = None;
        state.has_failed_to_flush = false;
    }

    pub(super) fn fail_after(&self, operations: u8, kind: Kind) {
        self.lock().plan = Some((operations, kind));
    }

    /// Cancels the plan to fail.
    pub(super) fn fail_never(&self) {
        self.lock().plan = None;
    }

    /// Returns the number of failed operations.
    pub(super) fn fired(&self) -> u64 {
        self.lock().fired
    }

    pub(super) fn has_failed_to_flush(&self) -> bool {
        self.lock().has_failed_to_flush
    }

    pub(super) fn is_durable(&self) -> bool {
        !self.lock().is_dirty
    }

    pub(super) fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        self.lock().bytes[range].to_vec()
    }

    pub(super) fn holds(&self, bytes: &[u8]) -> bool {
        self.lock().bytes == bytes
    }
}

impl State {
    /// Returns the failure of this operation, or `None` if it succeeds.
    fn next(&mut self) -> Option<Kind> {
        let (left, kind) = self.plan?;
        match left.checked_sub(1) {
            Some(left) => {
                self.plan = Some((left, kind));
                None
            }
            None => {
                self.plan = None;
                self.fired += 1;
                Some(kind)
            }
        }
    }

    /// Returns how many of `len` bytes an operation transfers, and its result.
    fn outcome(&mut self, len: usize, short: io::ErrorKind) -> (usize, io::Result<()>) {
        match self.next() {
            None => (len, Ok(())),
            Some(Kind::Errno(errno)) => (0, Err(io::Error::from_raw_os_error(errno))),
            Some(Kind::Short) => (len / 2, Err(short.into())),
        }
    }
}

/// The controller's view of the disk.
pub(super) struct FaultyDisk(pub(super) Arc<Shared>);

impl Disk for FaultyDisk {
    fn size(&self) -> u64 {
        DISK as u64
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let mut state = self.0.lock();
        let (done, outcome) = state.outcome(data.len(), io::ErrorKind::UnexpectedEof);
        data[..done].copy_from_slice(&state.bytes[offset as usize..][..done]);
        outcome
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock();
        let (done, outcome) = state.outcome(data.len(), io::ErrorKind::WriteZero);
        state.is_dirty = true;
        state.bytes[offset as usize..][..done].copy_from_slice(&data[..done]);
        outcome
    }

    fn zero(&self, (offset, len): (u64, u64)) -> io::Result<()> {
        let mut state = self.0.lock();
        let (done, outcome) = state.outcome(len as usize, io::ErrorKind::Other);
        state.is_dirty = true;
        state.bytes[offset as usize..][..done].fill(0);
        outcome
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        let (_, outcome) = state.outcome(0, io::ErrorKind::Other);
        match outcome {
            Ok(()) => state.is_dirty = false,
            Err(_) => state.has_failed_to_flush = true,
        }
        outcome
    }
}
