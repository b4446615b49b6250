//! How a queue's owner tells the controller of news.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use vfio_user::Client;

use crate::Error;
use crate::memory::Memory;

/// The BAR with the registers.
pub(crate) const REGISTERS: u32 = 0;

/// The register of a doorbell, and how it is reached.
#[derive(Clone)]
pub(crate) enum Register {
    /// By a message, which the server answers.
    Trapped {
        client: Rc<RefCell<Client>>,
        /// Where in the BAR.
        offset: u64,
    },
    /// By a store to a page that the server lends.
    Mapped {
        page: Arc<Memory>,
        /// Where in the page.
        offset: usize,
    },
}

/// A doorbell's words in the shadow doorbell buffers (NVMe Base 2.0, 5.8).
#[derive(Clone)]
pub(crate) struct Shadow {
    pub(crate) memory: Arc<Memory>,
    /// Where the doorbell's value is written instead of to the register.
    pub(crate) value: usize,
    /// Where the controller says up to which value it needs no wake-up.
    pub(crate) event: usize,
}

/// A doorbell.
pub(crate) struct Doorbell {
    register: Register,
    shadow: Option<Shadow>,
    last: u16,
}

impl Doorbell {
    pub(crate) fn new(register: Register, shadow: Option<Shadow>) -> Self {
        Self {
            register,
            shadow,
            last: 0,
        }
    }

    /// Stores a new value where the controller looks for it, if that is in memory.
    fn store(&self, value: u16) -> Result<(), Error> {
        let shadow = self.shadow.iter();
        let mut shadow = shadow.filter(|_| value != self.last);
        shadow.try_for_each(|shadow| shadow.memory.store32(shadow.value, u32::from(value)))
    }

    /// Wakes the controller for a new value, if it wants that.
    fn wake(&mut self, value: u16) -> Result<(), Error> {
        let last = std::mem::replace(&mut self.last, value);
        if value == last {
            return Ok(());
        }
        if let Some(shadow) = &self.shadow {
            let event = shadow.memory.load32(shadow.event)?;
            if !is_awaited(event, value, last) {
                return Ok(());
            }
        }
        match &self.register {
            Register::Trapped { client, offset } => {
                let bytes = u32::from(value).to_le_bytes();
                Ok(client
                    .borrow_mut()
                    .region_write(REGISTERS, *offset, &bytes)?)
            }
            Register::Mapped { page, offset } => page.store32(*offset, u32::from(value)),
        }
    }
}

/// Tells the controller of new values of both doorbells of a queue pair. Their words are neighbours: the controller, which
/// looks at the first, has no time to take their cache line away before the second is written.
pub(crate) fn ring(bells: &mut [Doorbell; 2], values: [u16; 2]) -> Result<(), Error> {
    for (bell, value) in bells.iter().zip(values) {
        bell.store(value)?;
    }
    // The controller writes its event index before it looks at the value a last time: one of the two sees the other's store.
    fence(Ordering::SeqCst);
    for (bell, value) in bells.iter_mut().zip(values) {
        bell.wake(value)?;
    }
    Ok(())
}

/// Whether the controller asked to be woken by one of the values after `last` up to `value` (NVMe Base 2.0, annex
/// B.5: the event index, as all indices, wraps).
fn is_awaited(event: u32, value: u16, last: u16) -> bool {
    let [low, high, ..] = event.to_le_bytes();
    let event = u16::from_le_bytes([low, high]);
    value.wrapping_sub(event).wrapping_sub(1) < value.wrapping_sub(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue's doorbells, the page with their registers at 8 and 12, and that with the values at 16 and 20 and the event
    /// indexes at 32 and 36.
    fn doorbells() -> ([Doorbell; 2], Arc<Memory>, Arc<Memory>) {
        let memory = || Arc::new(Memory::create(4096).unwrap().0);
        let (page, shadows) = (memory(), memory());
        let bells = [0, 4].map(|at| {
            let register = Register::Mapped {
                page: page.clone(),
                offset: 8 + at,
            };
            let shadow = Shadow {
                memory: shadows.clone(),
                value: 16 + at,
                event: 32 + at,
            };
            Doorbell::new(register, Some(shadow))
        });
        (bells, page, shadows)
    }

    #[test]
    fn a_register_is_left_alone_while_the_controller_looks() {
        let (mut bells, page, shadows) = doorbells();
        shadows.store32(32, 5).unwrap();
        let words = |memory: &Memory, at| [at, at + 4].map(|at| memory.load32(at).unwrap());
        for (values, registers) in [([5, 0], [0, 0]), ([6, 0], [6, 0]), ([6, 1], [6, 1])] {
            ring(&mut bells, values).unwrap();
            assert_eq!(words(&shadows, 16), values.map(u32::from));
            assert_eq!(words(&page, 8), registers);
        }
    }

    #[test]
    fn a_wake_up_is_due_when_the_event_index_is_passed() {
        assert!(is_awaited(0, 1, 0));
        assert!(is_awaited(3, 10, 3));
        assert!(!is_awaited(10, 10, 3));
        assert!(!is_awaited(2, 10, 3));
        assert!(is_awaited(1023, 2, 1020), "a queue's index starts again");
    }
}
