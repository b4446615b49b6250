//! What the [gate](crate::gate) is made of. The models (`tests/models`) put other types of the same names in its place, with which every
//! order of events is tried.

pub(crate) use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
