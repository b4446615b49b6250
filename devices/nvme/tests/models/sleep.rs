//! How a thread goes to sleep without missing anything.

use loom::sync::Arc;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

use crate::alarm::Alarm;
use crate::bell::Bell;
use crate::every_order;

const PREEMPTIONS: usize = 3;

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

fn scene() -> Arc<Scene> {
    Arc::new(Scene {
        alarm: Alarm::new(Bell::new().unwrap()),
        value: AtomicU32::new(0),
        shadow: AtomicU32::new(0),
        event: AtomicU32::new(BEHIND),
        order: Mutex::new(None),
    })
}

#[test]
fn a_doorbell_that_is_looked_at_before_sleeping_is_never_missed() {
    every_order(PREEMPTIONS, || {
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
    every_order(PREEMPTIONS, || {
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
    every_order(PREEMPTIONS, || {
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
    every_order(PREEMPTIONS, || {
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

#[test]
fn a_knock_hides_no_other() {
    every_order(PREEMPTIONS - 1, || {
        let scene = scene();
        let knockers = [1, 2].map(|bit| {
            let scene = scene.clone();
            thread::spawn(move || {
                scene.value.fetch_or(bit, Ordering::Relaxed);
                scene.alarm.knock();
            })
        });
        let mut seen = 0;
        while seen != 3 {
            if scene.alarm.take_knock() {
                seen = scene.value.load(Ordering::Relaxed);
            } else {
                scene.alarm.sleep(None, || true);
            }
        }
        for knocker in knockers {
            knocker.join().unwrap();
        }
    });
}
