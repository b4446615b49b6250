//! Doubles of shared types, made of loom's types. A double implements the functions that the models
//! use; the others are never called.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

pub(crate) use loom::sync::MutexGuard;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use loom::sync::{Condvar, LockResult};
use peerbar_dma::MemoryError;

/// A mutex with the interface of `parking_lot`.
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        unpoisoned(self.0.lock())
    }
}

fn unpoisoned<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// See `peerbar_host::eventfd::EventFd`.
pub(crate) struct EventFd {
    signalled: Mutex<bool>,
    changed: Condvar,
}

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            signalled: Mutex::new(false),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn signal(&self) {
        *self.signalled.lock() = true;
        self.changed.notify_one();
    }

    /// Time never passes in a model.
    pub(crate) fn wait(&self, _deadline: Option<Instant>) {
        let mut signalled = self.signalled.lock();
        while !*signalled {
            signalled = unpoisoned(self.changed.wait(signalled));
        }
        *signalled = false;
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        unreachable!("a model has no descriptors")
    }
}

/// The first page of doorbells (`peerbar_dma::MemoryFile`), with a word for each of two queue
/// pairs.
pub(crate) struct MemoryFile([AtomicU32; 4]);

impl MemoryFile {
    pub(crate) fn create(_name: &str, _bytes: u64) -> Result<Self, MemoryError> {
        Ok(Self(std::array::from_fn(|_| AtomicU32::new(0))))
    }

    pub(crate) fn load(&self, offset: u64) -> Result<u32, MemoryError> {
        Ok(self.word(offset).load(Ordering::Acquire))
    }

    pub(crate) fn store(&self, offset: u64, value: u32) -> Result<(), MemoryError> {
        self.word(offset).store(value, Ordering::Release);
        Ok(())
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        let index = usize::try_from(offset & 0xfff).unwrap_or(usize::MAX) / 4;
        self.0
            .get(index)
            .unwrap_or_else(|| unreachable!("{offset:#x}"))
    }
}
