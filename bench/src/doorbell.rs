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

    /// Tells the controller of a new value.
    pub(crate) fn ring(&mut self, value: u16) -> Result<(), Error> {
        let last = std::mem::replace(&mut self.last, value);
        if let Some(shadow) = &self.shadow {
            shadow.memory.store32(shadow.value, u32::from(value))?;
            // The controller writes its event index before it looks at the value a last time: one of the two sees the
            // other's store.
            fence(Ordering::SeqCst);
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

    fn doorbell() -> (Doorbell, Arc<Memory>, Arc<Memory>) {
        let memory = || Arc::new(Memory::create(4096).unwrap().0);
        let (page, shadows) = (memory(), memory());
        let register = Register::Mapped {
            page: page.clone(),
            offset: 8,
        };
        let shadow = Shadow {
            memory: shadows.clone(),
            value: 16,
            event: 32,
        };
        (Doorbell::new(register, Some(shadow)), page, shadows)
    }

    #[test]
    fn the_register_is_left_alone_while_the_controller_looks() {
        let (mut doorbell, page, shadows) = doorbell();
        shadows.store32(32, 5).unwrap();
        doorbell.ring(5).unwrap();
        assert_eq!(
            (page.load32(8).unwrap(), shadows.load32(16).unwrap()),
            (0, 5)
        );
        doorbell.ring(6).unwrap();
        assert_eq!(
            (page.load32(8).unwrap(), shadows.load32(16).unwrap()),
            (6, 6)
        );
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
