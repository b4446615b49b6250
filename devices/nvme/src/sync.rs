//! What threads share their state by. With the feature `loom` it is loom's, by which `models.rs` tries every order of events.

#[cfg(not(feature = "loom"))]
mod host {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use peerbar_dma::MemoryFile;

    pub(crate) use peerbar_eventfd::EventFd;
}

#[cfg(feature = "loom")]
mod model;

#[cfg(not(feature = "loom"))]
pub(crate) use host::*;
#[cfg(feature = "loom")]
pub(crate) use model::*;
