//! Models of readers and writers, in every order of events that the memory model allows.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::{BigReaderLock, ReaderSlot};

const PREEMPTIONS: usize = 3;

/// The data that readers use under the lock and only a writer changes. The model fails if the two
/// meet.
#[derive(Default)]
struct Scene {
    lock: BigReaderLock,
    routes: UnsafeCell<u64>,
}

impl Scene {
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

/// Runs a scene in every order of events with at most [`PREEMPTIONS`] switches away from a thread
/// that could continue.
fn every_order(scene: impl Fn(Arc<Scene>) + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(move || scene(Arc::default()));
}

#[test]
fn writer_meets_no_reader_and_is_known_to_all_later_ones() {
    every_order(|scene| {
        let other = scene.clone();
        let writer = thread::spawn(move || other.write());
        let mut slot = scene.lock.reader();
        let before = scene.read(&mut slot);
        let after = scene.read(&mut slot);
        writer.join().unwrap();
        assert!(before <= after);
        assert_eq!(scene.read(&mut slot), 1);
    });
}

#[test]
fn two_writers_and_a_reader_all_end() {
    every_order(|scene| {
        let mut slot = scene.lock.reader();
        let writers = [(); 2].map(|()| {
            let other = scene.clone();
            thread::spawn(move || other.write())
        });
        scene.read(&mut slot);
        for writer in writers {
            writer.join().unwrap();
        }
        assert_eq!(scene.read(&mut slot), 2);
    });
}

#[test]
fn writer_waits_for_all_readers_and_for_one_that_is_dropped() {
    every_order(|scene| {
        let other = scene.clone();
        let reader = thread::spawn(move || {
            let mut slot = other.lock.reader();
            other.read(&mut slot);
            slot.lock();
            other.routes.with(|_| ());
        });
        let mut slot = scene.lock.reader();
        let other = scene.clone();
        let writer = thread::spawn(move || other.write());
        scene.read(&mut slot);
        reader.join().unwrap();
        writer.join().unwrap();
        assert_eq!(scene.read(&mut slot), 1);
    });
}
