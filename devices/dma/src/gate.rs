//! How sessions rely on what routes depend on, and how a change waits for them: each session has a turnstile of its own, so
//! passing it costs two atomic operations on memory that no other thread uses. `tests/models` tries it in every order of events.

use std::sync::PoisonError;

use crate::sync::{Arc, AtomicU8, AtomicU64, Condvar, Mutex, MutexGuard, Ordering};

/// States of a turnstile, which may be both.
const INSIDE: u8 = 1;
const LOCKED: u8 = 2;

/// What all sessions of a function are inside of while they use routes. It is closed for a change.
#[derive(Default)]
pub(crate) struct Gate {
    /// Held for as long as the gate is closed.
    turnstiles: Mutex<Vec<Arc<Turnstile>>>,
    /// How often it has been closed.
    generation: AtomicU64,
    /// A session has left for which the one who closes waits.
    left: (Mutex<()>, Condvar),
}

/// The way in for one session. A cache line of its own, and the one that processors fetch along with it.
#[derive(Default)]
#[repr(align(128))]
struct Turnstile(AtomicU8);

impl Turnstile {
    fn has_somebody_inside(&self) -> bool {
        self.0.load(Ordering::Acquire) & INSIDE != 0
    }
}

impl Gate {
    /// Closes the gate, once all who are inside have left; until what this returns is dropped nobody enters. Who is inside
    /// calls this never.
    pub(crate) fn close(&self) -> Closed<'_> {
        let turnstiles = lock(&self.turnstiles);
        for turnstile in turnstiles.iter() {
            turnstile.0.fetch_or(LOCKED, Ordering::Relaxed);
        }
        let (mutex, left) = &self.left;
        let mut guard = lock(mutex);
        while turnstiles.iter().any(|one| one.has_somebody_inside()) {
            guard = left.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.generation.fetch_add(1, Ordering::Relaxed);
        Closed(turnstiles)
    }

    fn tell_left(&self) {
        let (mutex, left) = &self.left;
        drop(lock(mutex));
        left.notify_one();
    }
}

/// A gate while it is closed.
pub(crate) struct Closed<'a>(MutexGuard<'a, Vec<Arc<Turnstile>>>);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        for turnstile in self.0.iter() {
            turnstile.0.fetch_and(!LOCKED, Ordering::Release);
        }
    }
}

/// One session's pass through a gate; it starts outside, and leaves when it is dropped.
pub(crate) struct Pass {
    gate: Arc<Gate>,
    turnstile: Arc<Turnstile>,
    inside: bool,
}

impl Pass {
    pub(crate) fn new(gate: Arc<Gate>) -> Self {
        let turnstile = Arc::<Turnstile>::default();
        lock(&gate.turnstiles).push(turnstile.clone());
        Self {
            gate,
            turnstile,
            inside: false,
        }
    }

    pub(crate) fn is_inside(&self) -> bool {
        self.inside
    }

    /// Goes inside, and waits for a change that is under way; how often the gate had been closed then.
    #[inline]
    pub(crate) fn enter(&mut self) -> u64 {
        let (from, to) = (0, INSIDE);
        let turnstile = &self.turnstile.0;
        let entered = turnstile.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed);
        if entered.is_err() {
            self.enter_after_change();
        }
        self.inside = true;
        self.gate.generation.load(Ordering::Relaxed)
    }

    #[cold]
    fn enter_after_change(&self) {
        // While this is held nobody closes the gate.
        let _open = lock(&self.gate.turnstiles);
        self.turnstile.0.store(INSIDE, Ordering::Relaxed);
    }

    /// Leaves, if it is inside.
    #[inline]
    pub(crate) fn leave(&mut self) {
        if std::mem::take(&mut self.inside) {
            let state = self.turnstile.0.fetch_and(!INSIDE, Ordering::Release);
            if state & LOCKED != 0 {
                self.gate.tell_left();
            }
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.leave();
        lock(&self.gate.turnstiles).retain(|other| !Arc::ptr_eq(other, &self.turnstile));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
