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
mod event_queue;
mod memory_region;
mod queue_pair;
mod region_keys;
mod rings;
mod slots;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

pub use address_handle::{CreateAddressHandle, Gid};
pub use completion_queue::CreateCompletionQueue;
pub use error::{ObjectError, ObjectKind};
pub use event_counter::{CreateEventCounter, ModifyEventCounter};
pub use event_queue::CreateEventQueue;
pub use memory_region::{RegionKeys, RegisterRegion, VerbsAccess};
pub use queue_pair::{
    CreateQueuePair, ModifyQueuePair, QueuePairAttributes, QueuePairKind, QueuePairState,
};

pub(crate) use completion_queue::{CompletionQueue, NEVER_WRITTEN};
pub(crate) use event_counter::{QueuePairEvent, WORD_BYTES};
pub(crate) use event_queue::EventQueue;
#[cfg(test)]
pub(crate) use memory_region::AccessError;
pub(crate) use memory_region::{BusSegment, Need, page_count};
pub(crate) use queue_pair::{DroppedRequest, ENDLESS_RNR_RETRY, QueuePair, slot};

use peerbar_dma::{MemoryError, MemoryFile};

use crate::doorbells::Doorbells;
use crate::{limits, memory_bar};
use address_handle::AddressHandle;
use event_counter::EventCounter;
use memory_region::MemoryRegion;
use region_keys::KeyGenerator;
use slots::Slots;

/// All objects of an adapter.
pub struct Objects {
    doorbells: Arc<Doorbells>,
    /// The memory of BAR2, which contains the send queues.
    bar_memory: Arc<MemoryFile>,
    uars: Slots<UserCount>,
    protection_domains: Slots<UserCount>,
    address_handles: Slots<AddressHandle>,
    pub(crate) event_queues: Slots<EventQueue>,
    pub(crate) completion_queues: Slots<CompletionQueue>,
    pub(crate) event_counters: Slots<EventCounter>,
    pub(crate) queue_pairs: Slots<QueuePair>,
    /// The generation of the next queue pair of each slot, which is part of its number.
    generations: Vec<u8>,
    /// The last UAR to use each slot of a send queue: its process may have the memory mapped until
    /// the UAR is released.
    send_queue_uars: Vec<Option<u16>>,
    /// Work requests in progress that were dropped with their queue pairs or by a reset.
    dropped: Vec<DroppedRequest>,
    /// Memory regions by their local keys.
    regions: HashMap<u32, MemoryRegion>,
    /// Local keys by the remote keys of the same regions.
    remote_keys: HashMap<u32, u32>,
    /// The local keys of the regions that were allocated for fast registration, by the key bits
    /// that do not change, and the fixed bits of their remote keys.
    fast_keys: HashMap<u32, u32>,
    fast_remote_keys: HashSet<u32>,
    /// Number of pages of all regions.
    pages: usize,
    keys: KeyGenerator,
}

/// A UAR or a protection domain, which has only a count of its users.
#[derive(Default)]
struct UserCount {
    users: usize,
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
            queue_pairs: Slots::new(ObjectKind::QueuePair, limits::QUEUE_PAIRS),
            generations: vec![0; usize::from(limits::QUEUE_PAIRS)],
            send_queue_uars: vec![None; usize::from(limits::QUEUE_PAIRS)],
            dropped: Vec::new(),
            regions: HashMap::new(),
            remote_keys: HashMap::new(),
            fast_keys: HashMap::new(),
            fast_remote_keys: HashSet::new(),
            pages: 0,
            keys: KeyGenerator::default(),
        }
    }

    /// Removes every object, as a reset of the device does.
    pub fn reset(&mut self) {
        let (doorbells, generations) = (
            self.doorbells.clone(),
            std::mem::take(&mut self.generations),
        );
        let mut dropped = self.take_dropped();
        for (_, pair) in self.queue_pairs.iter() {
            dropped.extend(pair.requests_in_progress());
        }
        doorbells.close_all();
        let queues = memory_bar::SEND_QUEUES;
        if let Err(error) = self
            .bar_memory
            .zero(queues.start, queues.end - queues.start)
        {
            log::error!("send queues are not cleared: {error}");
        }
        *self = Self {
            generations,
            dropped,
            ..Self::new(doorbells, self.bar_memory.clone())
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
        remove_unused(&mut self.uars, uar)?;
        for owner in &mut self.send_queue_uars {
            owner.take_if(|owner| *owner == uar);
        }
        Ok(())
    }

    /// Creates a protection domain. Returns its number.
    pub fn create_protection_domain(&mut self) -> Result<u16, ObjectError> {
        self.protection_domains.insert(UserCount::default())
    }

    /// Removes a protection domain. Fails while address handles, queue pairs or memory regions use it.
    pub fn destroy_protection_domain(&mut self, domain: u16) -> Result<(), ObjectError> {
        remove_unused(&mut self.protection_domains, domain)
    }

    /// Clears this slot's send queue, so that its next process neither reads nor sends data that
    /// the former one has written there.
    fn clear_send_queue(&self, slot: u16) -> Result<(), MemoryError> {
        let start = memory_bar::send_queue(slot);
        self.bar_memory.zero(start, memory_bar::SEND_QUEUE_BYTES)
    }

    /// Returns the number of memory regions.
    #[cfg(test)]
    pub(crate) fn region_count(&self) -> usize {
        self.regions.len()
    }
}

fn remove_unused(slots: &mut Slots<UserCount>, number: u16) -> Result<(), ObjectError> {
    let kind = slots.kind();
    if slots.get(number)?.users > 0 {
        return Err(ObjectError::InUse {
            kind,
            number: number.into(),
        });
    }
    slots.remove(number).map(|_| ())
}

/// Adds a user to this object, which exists.
fn add_user(slots: &mut Slots<UserCount>, number: u16) -> Result<(), ObjectError> {
    slots.get_mut(number)?.users += 1;
    Ok(())
}

/// Removes a user from this object.
fn remove_user(slots: &mut Slots<UserCount>, number: u16) {
    if let Ok(object) = slots.get_mut(number) {
        object.users = object.users.saturating_sub(1);
    }
}
