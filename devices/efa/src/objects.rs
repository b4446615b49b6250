//! The objects that a driver creates on the adapter: UARs, protection domains, address handles,
//! queues, queue pairs, memory regions, event counters.
//!
//! A driver names an object by a number. Every such number is checked, and an object that others
//! use is not removed. Nothing here does DMA: the data path works on the same objects, under one
//! lock.

mod address_handle;
mod completion_queue;
mod error;
mod event_counter;
mod event_counters;
mod event_queue;
mod memory_region;
mod queue_pair;
mod queue_pair_state;
mod queue_pairs;
mod queues;
mod region_keys;
mod rings;
mod slots;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use address_handle::{CreateAddressHandle, Gid};
pub use completion_queue::CreateCompletionQueue;
pub use error::{ObjectError, ObjectKind};
pub use event_counter::{CreateEventCounter, ModifyEventCounter};
pub use event_queue::CreateEventQueue;
pub use memory_region::{RegionKeys, RegisterRegion, VerbsAccess};
pub use queue_pair::{CreateQueuePair, ModifyQueuePair, QueuePairAttributes};
pub use queue_pair_state::{QueuePairKind, QueuePairState};

pub(crate) use completion_queue::{CompletionQueue, NEVER_WRITTEN};
pub(crate) use event_counter::{QueuePairEvent, WORD_BYTES};
pub(crate) use event_queue::EventQueue;
#[cfg(test)]
pub(crate) use memory_region::AccessError;
pub(crate) use memory_region::{BusSegment, MemoryRegions, Need, page_count};
pub(crate) use queue_pair::{DroppedRequest, ENDLESS_RNR_RETRY, QueuePair, QueuePairs, slot};

use peerbar_dma::{MemoryError, MemoryFile};

use crate::doorbells::Doorbells;
use crate::{limits, memory_bar};
use address_handle::AddressHandle;
use event_counter::EventCounter;
use slots::{Slots, UserCount};

/// All objects of an adapter.
pub struct Objects {
    pub(crate) doorbells: Arc<Doorbells>,
    /// The memory of BAR2, which contains the send queues.
    pub(crate) bar_memory: Arc<MemoryFile>,
    uars: Slots<UserCount>,
    protection_domains: Slots<UserCount>,
    pub(crate) address_handles: Slots<AddressHandle>,
    pub(crate) event_queues: Slots<EventQueue>,
    pub(crate) completion_queues: Slots<CompletionQueue>,
    pub(crate) event_counters: Slots<EventCounter>,
    pub(crate) queue_pairs: QueuePairs,
    pub(crate) regions: MemoryRegions,
}

impl Objects {
    /// Makes an empty set of objects. The doorbells are those of the queues that will be created.
    pub(crate) fn new(doorbells: Arc<Doorbells>, bar_memory: Arc<MemoryFile>) -> Self {
        Self {
            doorbells,
            bar_memory,
            uars: Slots::new(ObjectKind::Uar, limits::UARS),
            protection_domains: Slots::new(
                ObjectKind::ProtectionDomain,
                limits::PROTECTION_DOMAINS,
            ),
            address_handles: Slots::new(ObjectKind::AddressHandle, limits::ADDRESS_HANDLES),
            event_queues: Slots::new(ObjectKind::EventQueue, limits::EVENT_QUEUES),
            completion_queues: Slots::new(ObjectKind::CompletionQueue, limits::COMPLETION_QUEUES),
            event_counters: Slots::new(ObjectKind::EventCounter, limits::EVENT_COUNTERS),
            queue_pairs: QueuePairs::new(),
            regions: MemoryRegions::default(),
        }
    }

    /// Removes every object, as a reset of the device does.
    pub fn reset(&mut self) {
        self.doorbells.close_all();
        let queues = memory_bar::SEND_QUEUES;
        if let Err(error) = self
            .bar_memory
            .zero(queues.start, queues.end - queues.start)
        {
            log::error!("send queues are not cleared: {error}");
        }
        let mut queue_pairs = std::mem::replace(&mut self.queue_pairs, QueuePairs::new());
        queue_pairs.reset();
        *self = Self {
            queue_pairs,
            ..Self::new(self.doorbells.clone(), self.bar_memory.clone())
        };
        self.doorbells.wake_worker();
    }

    /// Allocates a UAR, a page of doorbells of one process. Returns its number.
    pub fn create_uar(&mut self) -> Result<u16, ObjectError> {
        self.uars.insert(UserCount::default())
    }

    /// Releases a UAR, and with it the memory of the send queues that its process had. Fails while
    /// queues use it.
    pub fn destroy_uar(&mut self, uar: u16) -> Result<(), ObjectError> {
        self.uars.remove_unused(uar)?;
        self.queue_pairs.release_uar(uar);
        Ok(())
    }

    /// Creates a protection domain. Returns its number.
    pub fn create_protection_domain(&mut self) -> Result<u16, ObjectError> {
        self.protection_domains.insert(UserCount::default())
    }

    /// Removes a protection domain. Fails while address handles, queue pairs or memory regions use
    /// it.
    pub fn destroy_protection_domain(&mut self, domain: u16) -> Result<(), ObjectError> {
        self.protection_domains.remove_unused(domain)
    }

    /// Clears this slot's send queue, so that its next process neither reads nor sends data that
    /// the former one has written there.
    fn clear_send_queue(&self, slot: u16) -> Result<(), MemoryError> {
        let start = memory_bar::send_queue(slot);
        self.bar_memory.zero(start, memory_bar::SEND_QUEUE_BYTES)
    }

    /// Creates an address handle, and returns its number. An address has only one handle in a
    /// protection domain: creating it again returns the same one.
    pub fn create_address_handle(
        &mut self,
        parameters: CreateAddressHandle,
    ) -> Result<u16, ObjectError> {
        let protection_domain = parameters.protection_domain;
        self.protection_domains.get(protection_domain)?;
        let handles = &self.address_handles;
        if let Some(number) = handles.handle_of(parameters.gid, protection_domain) {
            self.address_handles.get_mut(number)?.users += 1;
            return Ok(number);
        }
        let handle = AddressHandle {
            parameters,
            users: 1,
        };
        let number = self.address_handles.insert(handle)?;
        self.protection_domains.add_user(protection_domain)?;
        Ok(number)
    }

    /// Removes an address handle of this protection domain, once it was removed as often as it was
    /// created.
    pub fn destroy_address_handle(
        &mut self,
        number: u16,
        protection_domain: u16,
    ) -> Result<(), ObjectError> {
        if self
            .address_handles
            .gid(number, protection_domain)
            .is_none()
        {
            return Err(ObjectError::unknown(ObjectKind::AddressHandle, number));
        }
        let handle = self.address_handles.get_mut(number)?;
        handle.users -= 1;
        if handle.users > 0 {
            return Ok(());
        }
        self.address_handles.remove(number)?;
        self.protection_domains.remove_user(protection_domain);
        Ok(())
    }

    /// Registers memory. Returns the keys of the new region.
    pub fn register_region(
        &mut self,
        parameters: RegisterRegion<'_>,
    ) -> Result<RegionKeys, ObjectError> {
        self.protection_domains.get(parameters.protection_domain)?;
        let keys = self.regions.register(parameters)?;
        self.protection_domains
            .add_user(parameters.protection_domain)?;
        Ok(keys)
    }

    /// Allocates a region without memory, of at most that many pages. Returns its keys, whose
    /// lowest 8 bits change with each registration.
    pub fn allocate_region(
        &mut self,
        protection_domain: u16,
        max_pages: usize,
    ) -> Result<RegionKeys, ObjectError> {
        self.protection_domains.get(protection_domain)?;
        let keys = self.regions.allocate(protection_domain, max_pages)?;
        self.protection_domains.add_user(protection_domain)?;
        Ok(keys)
    }

    /// Removes the memory region of this local key. Nothing touches its memory any more once this
    /// returns.
    pub fn deregister_region(&mut self, local_key: u32) -> Result<(), ObjectError> {
        let domain = self.regions.remove(local_key)?;
        self.protection_domains.remove_user(domain);
        Ok(())
    }
}
