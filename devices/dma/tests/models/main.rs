//! What sessions and changes of the fabric say to each other, in every order of events that the memory model allows.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
#![allow(
    dead_code,
    missing_docs,
    reason = "files of the library are included whole"
)]

/// What the included file shares its state by.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering};
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
}

#[path = "../../src/gate.rs"]
mod gate;

use gate::{Gate, Pass};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const PREEMPTIONS: usize = 3;

/// What sessions look at while they are inside, and only a change touches else. A meeting of the two fails the model.
#[derive(Default)]
struct Scene {
    gate: Arc<Gate>,
    fabric: UnsafeCell<u64>,
}

impl Scene {
    fn change(&self) {
        let _closed = self.gate.close();
        self.fabric.with_mut(|_| ());
    }

    /// Goes inside and out again: how often the fabric had changed.
    fn look(&self, pass: &mut Pass) -> u64 {
        let generation = pass.enter();
        self.fabric.with(|_| ());
        pass.leave();
        generation
    }
}

/// Tries a scene in every order of events that takes a thread off at most so many times where it could have gone on.
fn every_order(scene: impl Fn(Arc<Scene>) + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(move || scene(Arc::default()));
}

#[test]
fn a_change_meets_nobody_inside_and_is_known_to_all_who_come_after_it() {
    every_order(|scene| {
        let other = scene.clone();
        let change = thread::spawn(move || other.change());
        let mut pass = Pass::new(scene.gate.clone());
        let before = scene.look(&mut pass);
        let after = scene.look(&mut pass);
        change.join().unwrap();
        assert!(before <= after);
        assert_eq!(scene.look(&mut pass), 1);
    });
}

#[test]
fn two_changes_and_a_session_all_come_to_their_end() {
    every_order(|scene| {
        let mut pass = Pass::new(scene.gate.clone());
        let changes = [(); 2].map(|()| {
            let other = scene.clone();
            thread::spawn(move || other.change())
        });
        scene.look(&mut pass);
        for change in changes {
            change.join().unwrap();
        }
        assert_eq!(scene.look(&mut pass), 2);
    });
}

#[test]
fn a_change_waits_for_all_sessions_and_for_one_that_ends() {
    every_order(|scene| {
        let other = scene.clone();
        let session = thread::spawn(move || {
            let mut pass = Pass::new(other.gate.clone());
            other.look(&mut pass);
            pass.enter();
            other.fabric.with(|_| ());
        });
        let mut pass = Pass::new(scene.gate.clone());
        let other = scene.clone();
        let change = thread::spawn(move || other.change());
        scene.look(&mut pass);
        session.join().unwrap();
        change.join().unwrap();
        assert_eq!(scene.look(&mut pass), 1);
    });
}
