//! The doorbell of one queue: a register, or a word of the shadow buffer in guest memory with its
//! event index (NVMe Base 2.0, 5.8, Doorbell Buffer Config).
//!
//! With a shadow buffer the guest writes the register only if its new value passes the event index.
//! While the owner polls, it advances the event index, so that the guest never writes the register.
//! Before the owner blocks, it sets the event index to the value that it has seen, and reads the
//! doorbell once more.
//!
//! Writes to the register still take effect: a peer that drives one of the queues does not know
//! about the buffer, which applies to all I/O queues. If both have changed since the last read, the
//! buffer's value is used: the guest writes the buffer, then the register, and only then the next
//! value, so the register's value is never newer. This requires that register writes are not
//! posted, as is the case here (`RegionMapping::NoArea`): a posted write could arrive after the
//! next value.
//!
//! Both pages of the buffer belong to the guest and may be unmapped at any time. Then the
//! controller fails, as it does when it cannot reach a queue.

use std::sync::Arc;

use peerbar_dma::Session;
use peerbar_nvme_spec::registers::{Doorbell, offset};
use peerbar_pci::Iova;

use super::ring::{Ring, distance};
use crate::doorbell_page::{DoorbellPage, VALUE};
use crate::sync::{Ordering, fence};

/// Words of guest memory that are polled. Implemented by [`Session`], and by doubles in models.
pub(crate) trait GuestWords {
    /// Reads a word, or returns `None` if it is not mapped.
    fn load(&mut self, address: Iova) -> Option<u32>;
    /// Writes a word. Returns `true` if it is mapped.
    fn store(&mut self, address: Iova, value: u32) -> bool;
}

impl GuestWords for Session {
    fn load(&mut self, address: Iova) -> Option<u32> {
        Self::load(self, address)
    }

    fn store(&mut self, address: Iova, value: u32) -> bool {
        Self::store(self, address, value)
    }
}

/// The two pages of the shadow buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShadowBuffer {
    /// Address of the page with the doorbells' values.
    pub(crate) values: Iova,
    /// Address of the page with the event indexes.
    pub(crate) events: Iova,
}

impl ShadowBuffer {
    /// Returns `true` if both pages are mapped. Called before the controller relies on them. All
    /// words between the first and the last doorbell are assumed to be mapped, too. Sets the event
    /// indexes of those two to 0.
    pub(crate) fn is_mapped(
        self,
        memory: &mut impl GuestWords,
        first_and_last: [Doorbell; 2],
    ) -> bool {
        first_and_last.into_iter().all(|doorbell| {
            self.words(doorbell).is_some_and(|words| {
                memory.load(words.value).is_some() && memory.store(words.event, 0)
            })
        })
    }

    fn words(self, doorbell: Doorbell) -> Option<Words> {
        let distance = doorbell.offset(0)?.checked_sub(offset::DOORBELLS)?;
        Some(Words {
            value: self.values.checked_add(distance)?,
            event: self.events.checked_add(distance)?,
        })
    }
}

/// Addresses of a doorbell's value and event index.
#[derive(Clone, Copy, Debug)]
struct Words {
    value: Iova,
    event: Iova,
}

/// A doorbell in the shadow buffer.
#[derive(Clone, Copy, Debug)]
struct Shadow {
    words: Words,
    /// The values that were read last: in the buffer, and in the register.
    value: u32,
    register: u32,
    /// The newer of the two.
    latest: u32,
}

impl Shadow {
    /// Records both values. Returns the one that was written last.
    fn latest(&mut self, value: u32, register: u32) -> u32 {
        if value != self.value {
            self.latest = value;
        } else if register != self.register {
            self.latest = register;
        }
        (self.value, self.register) = (value, register);
        self.latest
    }
}

/// The doorbell cannot be read or armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreachable;

/// The doorbell of one queue, from its owner's side.
pub(crate) struct QueueDoorbell {
    register: Doorbell,
    page: Arc<DoorbellPage>,
    /// The shadow state, if the doorbell is in the shadow buffer.
    shadow: Option<Shadow>,
    /// The last value that was read, valid or not.
    seen: u32,
    /// The ring position at which the event index was advanced last.
    advanced_at: u32,
}

impl QueueDoorbell {
    /// Makes the doorbell of a new queue, which starts from 0.
    pub(crate) fn new(page: Arc<DoorbellPage>, register: Doorbell) -> Self {
        Self {
            register,
            page,
            shadow: None,
            seen: 0,
            advanced_at: 0,
        }
    }

    /// Moves the doorbell to the shadow buffer, where it continues from its present value.
    pub(crate) fn move_to(&mut self, buffer: ShadowBuffer, memory: &mut impl GuestWords) {
        // A previous buffer may be newer than its register.
        let latest = self.read(memory).ok();
        let latest = latest.or(self.shadow.map(|shadow| shadow.latest));
        let register = self.page.value(self.register);
        let present = latest.unwrap_or(register);
        self.shadow = buffer.words(self.register).map(|words| {
            // The next read detects an unmapped page.
            let _ = memory.store(words.value, present) && memory.store(words.event, present);
            Shadow {
                words,
                value: present,
                register,
                latest: present,
            }
        });
    }

    /// Reads the value that was written last.
    pub(crate) fn read(&mut self, memory: &mut impl GuestWords) -> Result<u32, Unreachable> {
        let Some(shadow) = &mut self.shadow else {
            return Ok(self.page.value(self.register));
        };
        let mut value = memory.load(shadow.words.value).ok_or(Unreachable)?;
        let register = self.page.value(self.register);
        if register != shadow.register {
            // The owner of the buffer stored this value there first. If that was after the load
            // above, the buffer's own value is not known yet. Without a second load, a later value
            // could equal the old one, once the owner has gone around the ring, and would not look
            // new.
            value = memory.load(shadow.words.value).ok_or(Unreachable)?;
        }
        Ok(shadow.latest(value & VALUE, register))
    }

    /// Records a value that was read. Returns `true` if it differs from the previous one.
    pub(crate) fn is_new(&mut self, value: u32) -> bool {
        std::mem::replace(&mut self.seen, value) != value
    }

    /// Makes the guest write the register with its next change. Returns `true` if the value has not
    /// changed since it was recorded; if it has, the guest may not write the register.
    pub(crate) fn arm(&mut self, memory: &mut impl GuestWords) -> Result<bool, Unreachable> {
        if let Some(shadow) = self.shadow {
            if !memory.store(shadow.words.event, self.seen) {
                return Err(Unreachable);
            }
            // Orders the store before the read, as the guest orders its store of the value before
            // its read of the event index.
            fence(Ordering::SeqCst);
        }
        self.is_unchanged(memory)
    }

    /// Returns `true` if the value is still the recorded one.
    pub(crate) fn is_unchanged(
        &mut self,
        memory: &mut impl GuestWords,
    ) -> Result<bool, Unreachable> {
        Ok(self.read(memory)? == self.seen)
    }

    /// Moves the event index to the slot just before `position`, the guest's position in the ring,
    /// if that has moved by `step` since the last time. The guest cannot pass the event index
    /// before it has gone once around the ring. With two advances in a turn it never writes the
    /// register.
    pub(crate) fn advance(
        &mut self,
        memory: &mut impl GuestWords,
        position: u32,
        Ring { entries, .. }: Ring,
        step: u32,
    ) {
        let Some(Shadow { words, .. }) = self.shadow else {
            return;
        };
        if distance(self.advanced_at, position, entries) >= step {
            self.advanced_at = position;
            // An unmapped page is detected when the doorbell is armed.
            memory.store(words.event, distance(1, position, entries));
        }
    }
}
