//! The head doorbell of one queue, which its worker owns (`src/doorbells.rs`).

use loom::sync::atomic::{AtomicU32, Ordering};
use peerbar_nvme_spec::registers::Doorbell;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(pub(crate) u8);

pub(crate) const WORKER: Owner = Owner(1);

pub(crate) struct Doorbells {
    head: AtomicU32,
}

impl Doorbells {
    pub(crate) fn new() -> Self {
        Self {
            head: AtomicU32::new(0),
        }
    }

    pub(crate) fn value(&self, _head: Doorbell) -> u32 {
        self.head.load(Ordering::Acquire)
    }

    pub(crate) fn ring(&self, _head: Doorbell, value: u32) -> Option<Owner> {
        self.head.store(value, Ordering::Release);
        Some(WORKER)
    }
}
