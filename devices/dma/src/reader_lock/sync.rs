//! The lock's primitives. With the feature `loom` they try every order of events.

#[cfg(feature = "loom")]
pub(super) use loom::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicU8, AtomicU64, Ordering},
};
#[cfg(not(feature = "loom"))]
pub(super) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "loom"))]
pub(super) use std::sync::{
    Arc,
    atomic::{AtomicU8, AtomicU64, Ordering},
};

#[cfg(not(feature = "loom"))]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

#[cfg(not(feature = "loom"))]
pub(super) fn wait<'a, T>(condvar: &Condvar, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(&mut guard);
    guard
}

#[cfg(feature = "loom")]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(feature = "loom")]
pub(super) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar
        .wait(guard)
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
