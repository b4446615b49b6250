//! How a thread goes to sleep without missing anything, in every order of events that the memory model allows.
#![allow(clippy::unwrap_used, reason = "tests")]

use loom::sync::Arc;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

/// What the alarm is made of here.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, Ordering, fence};
    use loom::sync::{Condvar, Mutex};
    use std::time::Instant;

    /// A bell that does what the kernel's does.
    pub(crate) struct Bell {
        rung: Mutex<bool>,
        heard: Condvar,
    }

    impl Bell {
        pub(crate) fn new() -> Self {
            Self {
                rung: Mutex::new(false),
                heard: Condvar::new(),
            }
        }

        pub(crate) fn ring(&self) {
            *self.rung.lock().unwrap() = true;
            self.heard.notify_one();
        }

        /// Time never passes here.
        pub(crate) fn wait(&self, _until: Option<Instant>) {
            let mut rung = self.rung.lock().unwrap();
            while !*rung {
                rung = self.heard.wait(rung).unwrap();
            }
            *rung = false;
        }
    }
}

#[path = "../../src/alarm.rs"]
mod alarm;

use alarm::Alarm;

/// An event index of long ago: the guest does not ring.
const BEHIND: u32 = 99;

/// Who waits and who has work, and the places where it is left.
struct Scene {
    alarm: Alarm,
    /// A doorbell, and what it says when it has been rung.
    value: AtomicU32,
    /// In the guest's memory: the doorbell's value, and up to which value the guest need not ring.
    shadow: AtomicU32,
    event: AtomicU32,
    order: Mutex<Option<u32>>,
}

/// Tries a scene in every order of events that takes a thread off at most three times where it could have gone on.
fn every_order(scene: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(scene);
}

fn scene() -> Arc<Scene> {
    Arc::new(Scene {
        alarm: Alarm::new(sync::Bell::new()),
        value: AtomicU32::new(0),
        shadow: AtomicU32::new(0),
        event: AtomicU32::new(BEHIND),
        order: Mutex::new(None),
    })
}

#[test]
fn a_doorbell_that_is_looked_at_before_sleeping_is_never_missed() {
    every_order(|| {
        let scene = scene();
        let guest = scene.clone();
        let guest = thread::spawn(move || {
            guest.value.store(1, Ordering::Release);
            guest.alarm.wake();
        });
        let idle = || scene.value.load(Ordering::Acquire) == 0;
        while idle() {
            scene.alarm.sleep(None, idle);
        }
        guest.join().unwrap();
    });
}

#[test]
fn a_knock_for_an_order_is_never_missed() {
    every_order(|| {
        let scene = scene();
        let engine = scene.clone();
        let engine = thread::spawn(move || {
            *engine.order.lock().unwrap() = Some(1);
            engine.alarm.knock();
        });
        loop {
            if scene.alarm.take_knock() && scene.order.lock().unwrap().take() == Some(1) {
                break;
            }
            scene.alarm.sleep(None, || true);
        }
        engine.join().unwrap();
    });
}

#[test]
fn what_the_kernel_has_done_before_it_rings_is_never_missed() {
    every_order(|| {
        let scene = scene();
        let kernel = scene.clone();
        let kernel = thread::spawn(move || {
            kernel.value.store(1, Ordering::Release);
            kernel.alarm.bell().ring();
        });
        while scene.value.load(Ordering::Acquire) == 0 {
            scene.alarm.sleep(None, || true);
        }
        kernel.join().unwrap();
    });
}

#[test]
fn a_shadow_doorbell_is_seen_or_rung() {
    every_order(|| {
        let scene = scene();
        let guest = scene.clone();
        let guest = thread::spawn(move || {
            guest.shadow.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            // The guest rings if it goes beyond the event index by this very step.
            if guest.event.load(Ordering::Relaxed) == 0 {
                guest.alarm.knock();
            }
        });
        let idle = || scene.shadow.load(Ordering::Relaxed) == 0;
        while idle() {
            let _ = scene.alarm.take_knock();
            scene.alarm.sleep(None, || {
                scene.event.store(0, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                idle()
            });
        }
        guest.join().unwrap();
    });
}
