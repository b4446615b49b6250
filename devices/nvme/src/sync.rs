//! The types with which threads share state. With the feature `loom` they are loom's, so that
//! `models.rs` can try every order of events.

#[cfg(not(feature = "loom"))]
mod host {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use peerbar_dma::MemoryFile;

    pub(crate) use peerbar_host::eventfd::EventFd;
}

#[cfg(feature = "loom")]
mod model;

#[cfg(not(feature = "loom"))]
pub(crate) use host::*;
#[cfg(feature = "loom")]
pub(crate) use model::*;
