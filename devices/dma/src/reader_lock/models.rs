//! Models of readers and writers, in every order of events that the memory model allows.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::{BigReaderLock, ReaderSlot};

const PREEMPTIONS: usize = 3;

/// The data that readers use under the lock and only a writer changes. The model fails if the two
/// meet.
#[derive(Default)]
struct Fixture {
    lock: BigReaderLock,
    routes: UnsafeCell<u64>,
}

impl Fixture {
    fn write(&self) {
        let _guard = self.lock.write();
        self.routes.with_mut(|_| ());
    }

    /// Locks and unlocks. Returns the number of earlier writers.
    fn read(&self, slot: &mut ReaderSlot) -> u64 {
        let generation = slot.lock();
        self.routes.with(|_| ());
        slot.unlock();
        generation
    }
}

/// Runs `test` in every order of events with at most [`PREEMPTIONS`] switches away from a thread
/// that could continue.
fn every_order(test: impl Fn(Arc<Fixture>) + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(move || test(Arc::default()));
}

#[test]
fn writer_meets_no_reader_and_is_known_to_all_later_ones() {
    every_order(|fixture| {
        let other = fixture.clone();
        let writer = thread::spawn(move || other.write());
        let mut slot = fixture.lock.reader();
        let before = fixture.read(&mut slot);
        let after = fixture.read(&mut slot);
        writer.join().unwrap();
        assert!(before <= after);
        assert_eq!(fixture.read(&mut slot), 1);
    });
}

#[test]
fn two_writers_and_a_reader_all_end() {
    every_order(|fixture| {
        let mut slot = fixture.lock.reader();
        let writers = [(); 2].map(|()| {
            let other = fixture.clone();
            thread::spawn(move || other.write())
        });
        fixture.read(&mut slot);
        for writer in writers {
            writer.join().unwrap();
        }
        assert_eq!(fixture.read(&mut slot), 2);
    });
}

#[test]
fn writer_waits_for_all_readers_and_for_one_that_is_dropped() {
    every_order(|fixture| {
        let other = fixture.clone();
        let reader = thread::spawn(move || {
            let mut slot = other.lock.reader();
            other.read(&mut slot);
            slot.lock();
            other.routes.with(|_| ());
        });
        let mut slot = fixture.lock.reader();
        let other = fixture.clone();
        let writer = thread::spawn(move || other.write());
        fixture.read(&mut slot);
        reader.join().unwrap();
        writer.join().unwrap();
        assert_eq!(fixture.read(&mut slot), 1);
    });
}
