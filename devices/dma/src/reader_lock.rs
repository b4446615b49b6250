//! A big-reader lock. Each reader has its own slot, so reading costs two atomic operations on
//! memory that no other thread uses, while a writer visits all slots. [`models`] tries it in every
//! order of events.

#[cfg(all(test, feature = "loom"))]
mod models;
mod sync;

use sync::{Arc, AtomicU8, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock, wait};

/// Bits of a slot's state. Both may be set.
const READING: u8 = 1;
const LOCKED: u8 = 2;

/// The lock under which sessions use routes. A change of the routes locks it for writing.
#[derive(Default)]
pub(crate) struct BigReaderLock(Arc<Shared>);

/// The state that writers and readers share.
#[derive(Default)]
struct Shared {
    /// Held by a writer for as long as it has the lock.
    slots: Mutex<Vec<Arc<SlotState>>>,
    /// The number of times that it has been locked for writing.
    generation: AtomicU64,
    /// Signalled when a reader leaves while a writer waits.
    left: (Mutex<()>, Condvar),
}

/// The state of one reader, in its own pair of cache lines: processors fetch the second along with
/// the first.
#[derive(Default)]
#[repr(align(128))]
struct SlotState(AtomicU8);

impl SlotState {
    fn is_reading(&self) -> bool {
        self.0.load(Ordering::Acquire) & READING != 0
    }
}

impl BigReaderLock {
    /// Locks for writing: waits until all readers have left. No reader enters before the guard is
    /// dropped. A thread that holds a slot locked must not call this.
    pub(crate) fn write(&self) -> WriteGuard<'_> {
        let slots = lock(&self.0.slots);
        for slot in slots.iter() {
            slot.0.fetch_or(LOCKED, Ordering::Relaxed);
        }
        let (mutex, left) = &self.0.left;
        let mut guard = lock(mutex);
        while slots.iter().any(|slot| slot.is_reading()) {
            guard = wait(left, guard);
        }
        drop(guard);
        self.0.generation.fetch_add(1, Ordering::Relaxed);
        WriteGuard(slots)
    }

    /// Makes a slot for a reader.
    pub(crate) fn reader(&self) -> ReaderSlot {
        let state = Arc::<SlotState>::default();
        lock(&self.0.slots).push(state.clone());
        ReaderSlot {
            lock: self.0.clone(),
            state,
            locked: false,
        }
    }
}

impl Shared {
    fn notify_left(&self) {
        let (mutex, left) = &self.left;
        drop(lock(mutex));
        left.notify_one();
    }
}

/// The lock, held for writing.
pub(crate) struct WriteGuard<'a>(MutexGuard<'a, Vec<Arc<SlotState>>>);

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        for slot in self.0.iter() {
            slot.0.fetch_and(!LOCKED, Ordering::Release);
        }
    }
}

/// One reader's slot. It starts unlocked, and is unlocked when it is dropped.
pub(crate) struct ReaderSlot {
    lock: Arc<Shared>,
    state: Arc<SlotState>,
    locked: bool,
}

impl ReaderSlot {
    pub(crate) fn is_locked(&self) -> bool {
        self.locked
    }

    /// Locks for reading, after the writer in progress. Returns the number of earlier writers.
    #[inline]
    pub(crate) fn lock(&mut self) -> u64 {
        let state = &self.state.0;
        let locked = state.compare_exchange(0, READING, Ordering::Acquire, Ordering::Relaxed);
        if locked.is_err() {
            self.lock_after_writer();
        }
        self.locked = true;
        self.lock.generation.load(Ordering::Relaxed)
    }

    #[cold]
    fn lock_after_writer(&self) {
        // No writer runs while this is held.
        let _no_writer = lock(&self.lock.slots);
        self.state.0.store(READING, Ordering::Relaxed);
    }

    /// Unlocks, if it is locked.
    #[inline]
    pub(crate) fn unlock(&mut self) {
        if std::mem::take(&mut self.locked) {
            let state = self.state.0.fetch_and(!READING, Ordering::Release);
            if state & LOCKED != 0 {
                self.lock.notify_left();
            }
        }
    }
}

impl Drop for ReaderSlot {
    fn drop(&mut self) {
        self.unlock();
        lock(&self.lock.slots).retain(|other| !Arc::ptr_eq(other, &self.state));
    }
}
