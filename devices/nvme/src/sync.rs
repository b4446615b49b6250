//! What threads share their state by, and reach the guest's memory by. The models (`tests/models`) put other types of the same names in its place, with
//! which every order of events is tried.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};

pub(crate) use peerbar_dma::Session;

pub(crate) use crate::bell::Bell;
