//! Models of a thread that blocks without missing work.

use loom::sync::Arc;
use loom::thread;
use peerbar_nvme_spec::registers::Doorbell;
use peerbar_pci::Iova;

use super::every_order;
use crate::doorbell_page::DoorbellPage;
use crate::event_count::EventCount;
use crate::io_queue::doorbell::{GuestWords, QueueDoorbell, ShadowBuffer};
use crate::sync::{AtomicU32, EventFd, Mutex, Ordering, fence};

const PREEMPTIONS: usize = 3;

const TAIL: Doorbell = Doorbell::SubmissionTail(1);

/// An outdated event index: the guest does not ring.
const BEHIND: u32 = 99;

/// A shadow buffer with one doorbell in use.
const SHADOW: ShadowBuffer = ShadowBuffer {
    values: Iova(0),
    events: Iova(0x1000),
};

/// The words of that doorbell: its value and its event index.
struct ShadowWords(Arc<[AtomicU32; 2]>);

impl ShadowWords {
    fn word(&self, address: Iova) -> &AtomicU32 {
        &self.0[usize::from(address >= SHADOW.events)]
    }
}

impl GuestWords for ShadowWords {
    fn load(&mut self, address: Iova) -> Option<u32> {
        Some(self.word(address).load(Ordering::Acquire))
    }

    fn store(&mut self, address: Iova, value: u32) -> bool {
        self.word(address).store(value, Ordering::Release);
        true
    }
}

/// The event count of a thread, and the sources of its work.
struct Fixture {
    count: EventCount,
    /// A doorbell.
    value: AtomicU32,
    request: Mutex<Option<u32>>,
}

fn fixture() -> Arc<Fixture> {
    Arc::new(Fixture {
        count: EventCount::new(EventFd::new().unwrap()),
        value: AtomicU32::new(0),
        request: Mutex::new(None),
    })
}

#[test]
fn doorbell_read_before_blocking_is_never_missed() {
    every_order(PREEMPTIONS, || {
        let fixture = fixture();
        let guest = fixture.clone();
        let guest = thread::spawn(move || {
            guest.value.store(1, Ordering::Release);
            guest.count.wake();
        });
        let idle = || fixture.value.load(Ordering::Acquire) == 0;
        while idle() {
            fixture.count.wait(None, idle);
        }
        guest.join().unwrap();
    });
}

#[test]
fn notification_of_a_request_is_never_missed() {
    every_order(PREEMPTIONS, || {
        let fixture = fixture();
        let engine = fixture.clone();
        let engine = thread::spawn(move || {
            *engine.request.lock() = Some(1);
            engine.count.notify();
        });
        loop {
            if fixture.count.take_notification() && fixture.request.lock().take() == Some(1) {
                break;
            }
            fixture.count.wait(None, || true);
        }
        engine.join().unwrap();
    });
}

#[test]
fn kernel_event_is_never_missed() {
    every_order(PREEMPTIONS, || {
        let fixture = fixture();
        let kernel = fixture.clone();
        let kernel = thread::spawn(move || {
            kernel.value.store(1, Ordering::Release);
            kernel.count.event_fd().signal();
        });
        while fixture.value.load(Ordering::Acquire) == 0 {
            fixture.count.wait(None, || true);
        }
        kernel.join().unwrap();
    });
}

#[test]
fn shadow_doorbell_is_seen_or_rung() {
    every_order(PREEMPTIONS, || {
        let fixture = fixture();
        let words = Arc::new([0, 0].map(AtomicU32::new));
        let mut memory = ShadowWords(words.clone());
        let page = DoorbellPage::new(2, 0x4000).unwrap();
        let mut doorbell = QueueDoorbell::new(page.into(), TAIL);
        doorbell.move_to(SHADOW, &mut memory);
        memory.store(SHADOW.events, BEHIND);
        let guest = fixture.clone();
        let guest = thread::spawn(move || {
            let [value, event] = &*words;
            value.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            // The guest rings if it goes beyond the event index by this very step.
            if event.load(Ordering::Relaxed) == 0 {
                guest.count.notify();
            }
        });
        while doorbell.read(&mut memory) == Ok(0) {
            let _ = fixture.count.take_notification();
            fixture
                .count
                .wait(None, || doorbell.arm(&mut memory) == Ok(true));
        }
        guest.join().unwrap();
    });
}

#[test]
fn notification_hides_no_other() {
    every_order(PREEMPTIONS - 1, || {
        let fixture = fixture();
        let notifiers = [1, 2].map(|bit| {
            let fixture = fixture.clone();
            thread::spawn(move || {
                fixture.value.fetch_or(bit, Ordering::Relaxed);
                fixture.count.notify();
            })
        });
        let mut seen = 0;
        while seen != 3 {
            if fixture.count.take_notification() {
                seen = fixture.value.load(Ordering::Relaxed);
            } else {
                fixture.count.wait(None, || true);
            }
        }
        for notifier in notifiers {
            notifier.join().unwrap();
        }
    });
}
