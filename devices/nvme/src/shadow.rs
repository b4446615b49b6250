//! Doorbells in the guest's own memory (NVMe Base 2.0, 5.8, Doorbell Buffer Config).
//!
//! The guest writes a doorbell's value to the one page, and rings the register only if it passes the value that the
//! controller has left in the other, the event index. So a guest disturbs nobody who is awake. Who is about to sleep leaves
//! the last values that it has seen, and then looks once more.
//!
//! Both pages are the guest's: they may be unmapped at any moment. Then the controller fails, as it does when it cannot
//! reach a queue.

use peerbar_nvme_spec::registers::{Doorbell, offset};

use crate::sync::{Ordering, Session, fence};

/// The upper half of a doorbell is reserved (NVMe over PCIe 1.0, 3.1.2).
const VALUE: u32 = 0xffff;

/// Where the two pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shadow {
    /// Address of the page with the doorbells' values.
    pub(crate) values: u64,
    /// Address of the page with the event indexes.
    pub(crate) events: u64,
}

impl Shadow {
    /// The value of a doorbell, if it can be seen.
    pub(crate) fn value(self, session: &mut Session, doorbell: Doorbell) -> Option<u32> {
        Some(session.load(place(self.values, doorbell)?)? & VALUE)
    }

    /// Has the guest ring the register when it next writes another value than `seen`; whether it could be told. Whoever calls
    /// this looks at the value once more before it relies on being rung.
    #[must_use = "a guest that could not be told does not ring"]
    pub(crate) fn call_at(self, session: &mut Session, doorbell: Doorbell, seen: u32) -> bool {
        let told = place(self.events, doorbell).is_some_and(|place| session.store(place, seen));
        fence(Ordering::SeqCst);
        told
    }

    /// Has the guest not ring: what it has passed already it does not pass again before it is once around its queue. To be
    /// done twice in that time with what it has passed last, or it rings once a turn.
    pub(crate) fn leave_behind(self, session: &mut Session, doorbell: Doorbell, passed: u32) {
        if let Some(place) = place(self.events, doorbell) {
            // Who is about to sleep finds out if the page is gone.
            session.store(place, passed);
        }
    }

    /// Whether both pages can be reached, before the controller counts on them. It takes that for granted of all between the
    /// first and the last doorbell, whose event indexes start from 0.
    pub(crate) fn is_reached(self, session: &mut Session, first_and_last: [Doorbell; 2]) -> bool {
        first_and_last.into_iter().all(|doorbell| {
            self.value(session, doorbell).is_some()
                && place(self.events, doorbell).is_some_and(|place| session.store(place, 0))
        })
    }

    /// A doorbell starts from `value`; whether its place in both pages can be reached.
    pub(crate) fn start(self, session: &mut Session, doorbell: Doorbell, value: u32) -> bool {
        [self.values, self.events]
            .into_iter()
            .all(|page| place(page, doorbell).is_some_and(|place| session.store(place, value)))
    }
}

fn place(page: u64, doorbell: Doorbell) -> Option<u64> {
    let distance = doorbell.offset(0)?.checked_sub(offset::DOORBELLS)?;
    page.checked_add(distance)
}
