//! How a thread goes to sleep without missing anything.

use loom::sync::Arc;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;
use peerbar_nvme_spec::registers::Doorbell;

use crate::alarm::Alarm;
use crate::bell::Bell;
use crate::every_order;
use crate::guest_memory::{SHADOW, Session};

const PREEMPTIONS: usize = 3;

const TAIL: Doorbell = Doorbell::SubmissionTail(1);

/// An event index of long ago: the guest does not ring.
const BEHIND: u32 = 99;

/// Who waits and who has work, and the places where it is left.
struct Scene {
    alarm: Alarm,
    /// A doorbell, and what it says when it has been rung.
    value: AtomicU32,
    order: Mutex<Option<u32>>,
}

fn scene() -> Arc<Scene> {
    Arc::new(Scene {
        alarm: Alarm::new(Bell::new().unwrap()),
        value: AtomicU32::new(0),
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
        let mut session = Session::new([0, BEHIND]);
        let (guest, memory) = (scene.clone(), session.clone());
        let guest = thread::spawn(move || {
            let [value, event] = memory.words();
            value.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            // The guest rings if it goes beyond the event index by this very step.
            if event.load(Ordering::Relaxed) == 0 {
                guest.alarm.knock();
            }
        });
        while SHADOW.value(&mut session, TAIL) == Some(0) {
            let _ = scene.alarm.take_knock();
            scene.alarm.sleep(None, || {
                let told = SHADOW.call_at(&mut session, TAIL, 0);
                told && SHADOW.value(&mut session, TAIL) == Some(0)
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
