//! One queue of the device: its ring in the guest's memory, and the eventfds of both directions.

use peerbar_dma::LentGuestMemory;
use peerbar_host::eventfd::{Event, Signaller};
use virtio_queue::{DescriptorChain, Error as QueueError, Queue, QueueOwnedT, QueueT};
use vm_memory::GuestAddress;

/// Largest queue that a driver may make.
const QUEUE_SIZE: u16 = 256;

/// A chain of descriptors in the guest's memory.
pub(crate) type Chain<'m> = DescriptorChain<&'m LentGuestMemory>;

/// A queue that a front-end sets up by vhost-user (Vhost-user Protocol, "Ring states").
#[derive(Debug)]
pub(crate) struct Ring {
    queue: Queue,
    /// The guest has made a chain available.
    kick: Option<Event>,
    /// Tells the guest to look at the used chains.
    call: Option<Event>,
    enabled: bool,
}

impl Ring {
    /// Makes a ring that is stopped and disabled.
    pub(crate) fn new() -> Result<Self, QueueError> {
        Ok(Self {
            queue: Queue::new(QUEUE_SIZE)?,
            kick: None,
            call: None,
            enabled: false,
        })
    }

    pub(crate) fn set_size(&mut self, size: u16) -> Result<(), QueueError> {
        self.queue.try_set_size(size)
    }

    /// Sets the addresses of descriptors, available and used chains. The device continues after the
    /// last used chain.
    pub(crate) fn set_addresses(
        &mut self,
        memory: &LentGuestMemory,
        [descriptors, available, used]: [GuestAddress; 3],
    ) -> Result<(), QueueError> {
        self.queue.try_set_desc_table_address(descriptors)?;
        self.queue.try_set_avail_ring_address(available)?;
        self.queue.try_set_used_ring_address(used)?;
        let index = self
            .queue
            .used_idx(memory, std::sync::atomic::Ordering::Relaxed)?;
        self.queue.set_next_used(index.0);
        Ok(())
    }

    /// Sets the index of the next available chain.
    pub(crate) fn set_next(&mut self, index: u16) {
        self.queue.set_next_avail(index);
    }

    pub(crate) fn set_event_index(&mut self, negotiated: bool) {
        self.queue.set_event_idx(negotiated);
    }

    pub(crate) fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Starts the ring, if there is an event: without one it would have to be polled.
    pub(crate) fn set_kick(&mut self, kick: Option<Event>) {
        self.kick = kick;
        self.queue.set_ready(self.kick.is_some());
    }

    pub(crate) fn set_call(&mut self, call: Option<Event>) {
        self.call = call;
    }

    /// Stops the ring. Returns the index of the next available chain.
    pub(crate) fn stop(&mut self) -> u16 {
        self.queue.set_ready(false);
        self.kick = None;
        self.call = None;
        self.queue.next_avail()
    }

    fn is_in_use(&self) -> bool {
        self.enabled && self.queue.ready()
    }

    /// Returns an event that is readable once the guest has made a chain available, if the ring is
    /// in use.
    pub(crate) fn kick(&self) -> Option<&Event> {
        self.kick.as_ref().filter(|_| self.is_in_use())
    }

    /// Returns the next available chain, if the ring is in use and has one. If not, the guest will
    /// announce the next one.
    pub(crate) fn next_chain<'m>(&mut self, memory: &'m LentGuestMemory) -> Option<Chain<'m>> {
        if !self.is_in_use() {
            return None;
        }
        if let Some(chain) = self.queue.pop_descriptor_chain(memory) {
            return Some(chain);
        }
        // A chain that came before the guest saw that it must notify again is found here.
        match self.queue.enable_notification(memory) {
            Ok(true) => self.queue.pop_descriptor_chain(memory),
            Ok(false) => None,
            Err(error) => {
                log::debug!("the guest's queue is not in its memory: {error}");
                None
            }
        }
    }

    /// Makes the last chain come once more.
    pub(crate) fn put_back(&mut self) {
        self.queue.go_to_previous_position();
    }

    /// Gives a chain back to the guest, with `length` bytes written.
    pub(crate) fn give_back(&mut self, memory: &LentGuestMemory, head: u16, length: u32) {
        if let Err(error) = self.queue.add_used(memory, head, length) {
            log::debug!("the guest's queue is not in its memory: {error}");
        }
    }

    /// Interrupts the guest, if it has not disabled that.
    pub(crate) fn interrupt(&mut self, memory: &LentGuestMemory, signaller: &Signaller) {
        let wanted = self.queue.needs_notification(memory).unwrap_or(true);
        if let Some(call) = self.call.as_ref().filter(|_| wanted) {
            signaller.signal(call);
        }
    }
}
