//! Shared memory through which RDMA payload passes from one adapter's process to another's.
//!
//! A requester has a staging buffer for each adapter that it sends requests to, and shares it with
//! that adapter. Each packet of a transfer names a slot of the buffer: the requester fills it with
//! the payload of a write, the responder with that of a read. Payload is therefore copied twice:
//! the owner of the source and the owner of the destination each copy it once, under their
//! adapter's own routes. A slot belongs to one request from its sending to its answer. A peer can
//! corrupt payload that it sends or receives, as it could in a packet, and nothing else.
//!
//! If no buffer can be shared, payload goes in packets. If no slot is free, the request waits for
//! one.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use peerbar_dma::{MOST_SHARED_FILES, MemoryFile, Span};
use peerbar_fabric::Gid;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size of a slot, which holds the payload of one packet. A packet costs both sides some 15 µs, as
/// much as a copy of 128 KiB.
pub(crate) const SLOT_BYTES: u32 = 512 << 10;
/// Number of slots of a buffer. They fit into the processors' caches.
pub(crate) const SLOTS: u32 = 8;
const BUFFER_BYTES: u64 = SLOTS as u64 * SLOT_BYTES as u64;
/// Limit of the adapters that have a buffer of this one. Payload to others goes in packets.
const MOST_BUFFERS: usize = 16;
/// Limit of the adapters that are remembered, since a guest may name any number.
const MOST_PEERS: usize = 256;
/// Time for which payload goes in packets to an adapter that did not take a buffer, or lost it.
const REFUSED: Duration = Duration::from_secs(1);
/// Time for which the wire's permission to share memory with an adapter is valid.
const PERMITTED: Duration = Duration::from_millis(100);

/// A slot of a requester's buffer, as a packet names it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub(crate) struct SlotName {
    buffer: U32,
    index: U32,
}

impl SlotName {
    pub(crate) fn new(buffer: u32, index: u32) -> Self {
        Self {
            buffer: U32::new(buffer),
            index: U32::new(index),
        }
    }

    /// Returns the number of its buffer.
    pub(crate) fn buffer(self) -> u32 {
        self.buffer.get()
    }
}

/// A slot that a request of this adapter has taken. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) name: SlotName,
    pub(crate) memory: Span,
    free: Arc<Mutex<Vec<u32>>>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.free.lock().push(self.name.index.get());
    }
}

/// Returns the memory of a slot, or `None` if a buffer has no such slot.
fn span(file: &Arc<MemoryFile>, index: u32) -> Option<Span> {
    (index < SLOTS).then(|| Span {
        file: file.clone(),
        offset: u64::from(index) * u64::from(SLOT_BYTES),
    })
}

/// The buffers of an adapter, and those that others share with it.
#[derive(Default)]
pub(crate) struct Staging {
    peers: HashMap<Gid, Peer>,
    /// Other adapters' buffers, with their numbers.
    shared: HashMap<Gid, (u32, Arc<MemoryFile>)>,
    /// The number of the last buffer. Numbers are not reused, so that no slot is mistaken for one
    /// of an earlier buffer.
    last_number: u32,
    /// Queue pairs with work requests that wait for a free slot, once for each adapter that they
    /// send to. The first one is served next.
    waiters: VecDeque<(u16, Gid)>,
    /// Number of times that an adapter did not take a buffer, or lost it.
    pub(crate) refusals: u64,
}

/// Another adapter to which this one sends requests.
#[derive(Default)]
struct Peer {
    buffer: Option<Buffer>,
    refused_until: Option<Instant>,
    /// The wire's answer about sharing memory with it, and the time of the answer.
    permitted: Option<(Instant, bool)>,
}

/// A buffer that this adapter shares with another one.
struct Buffer {
    number: u32,
    file: Arc<MemoryFile>,
    /// `true` if the other adapter has confirmed it.
    is_known: bool,
    /// Free slots. The one that was used last is taken first.
    free: Arc<Mutex<Vec<u32>>>,
}

impl Staging {
    /// Returns another adapter. If there are too many, those without a buffer are forgotten.
    fn peer(&mut self, gid: Gid) -> &mut Peer {
        if self.peers.len() >= MOST_PEERS && !self.peers.contains_key(&gid) {
            self.peers.retain(|_, peer| peer.buffer.is_some());
        }
        self.peers.entry(gid).or_default()
    }

    /// Takes a free slot of the buffer that an adapter knows, or returns `None` if there is none
    /// now.
    pub(crate) fn take_slot(&mut self, gid: Gid) -> Option<Slot> {
        let buffer = self.peers.get(&gid)?.buffer.as_ref()?;
        if !buffer.is_known {
            return None;
        }
        let index = buffer.free.lock().pop()?;
        Some(Slot {
            name: SlotName::new(buffer.number, index),
            memory: span(&buffer.file, index)?,
            free: buffer.free.clone(),
        })
    }

    /// Returns the number of work requests to that adapter that need not wait: one for each free
    /// slot, or any number without a buffer.
    fn free_slots(&self, gid: Gid) -> usize {
        let buffer = self.peers.get(&gid).and_then(|peer| peer.buffer.as_ref());
        let buffer = buffer.filter(|it| it.is_known);
        buffer.map_or(usize::MAX, |it| it.free.lock().len())
    }

    /// Adds a work request of a queue pair that waits for a free slot.
    pub(crate) fn add_waiter(&mut self, pair: u16, gid: Gid) {
        if !self.waiters.contains(&(pair, gid)) {
            self.waiters.push_back((pair, gid));
        }
    }

    /// Lets as many work requests continue as there are free slots, one of each queue pair in turn.
    /// `wake` wakes one of a queue pair, or returns `false` if none waits any more. Returns the
    /// queue pairs of those that were woken.
    pub(crate) fn wake_waiters(&mut self, mut wake: impl FnMut(u16, Gid) -> bool) -> Vec<u16> {
        let mut free = HashMap::new();
        let mut woken = Vec::new();
        let mut waiters = std::mem::take(&mut self.waiters);
        while let Some((pair, gid)) = waiters.pop_front() {
            let free = free.entry(gid).or_insert_with(|| self.free_slots(gid));
            if *free == 0 {
                self.waiters.push_back((pair, gid));
            } else if wake(pair, gid) {
                *free -= 1;
                woken.push(pair);
                waiters.push_back((pair, gid));
            }
        }
        woken
    }

    /// Returns `true` if a waiting work request could continue.
    pub(crate) fn can_wake(&self) -> bool {
        let mut waiters = self.waiters.iter();
        waiters.any(|(_, gid)| self.free_slots(*gid) > 0)
    }

    /// Gives up the buffer of this number, unless it has been replaced: the adapter may still use a
    /// slot of it, or does not know it. The adapter gets another one later.
    pub(crate) fn give_up(&mut self, gid: Gid, number: u32, now: Instant) {
        let Some(peer) = self.peers.get_mut(&gid) else {
            return;
        };
        if peer.buffer.take_if(|it| it.number == number).is_none() {
            return;
        }
        peer.refused_until = Some(now + REFUSED);
        self.refusals += 1;
        let all = self.refusals;
        log::debug!(
            "the staging buffer for {gid} is given up: payload goes in packets for {REFUSED:?}, {all} times so far"
        );
    }

    /// Takes a buffer that an adapter shares, in place of its former one. Returns `false` if it
    /// cannot be used.
    pub(crate) fn take_buffer(&mut self, from: Gid, number: u32, fd: OwnedFd) -> bool {
        self.shared.remove(&from);
        if self.shared.len() >= MOST_SHARED_FILES {
            log::debug!(
                "payload from {from} arrives in packets: {MOST_SHARED_FILES} adapters share a staging buffer already"
            );
            return false;
        }
        match MemoryFile::shared(fd, BUFFER_BYTES) {
            Ok(file) => self.shared.insert(from, (number, Arc::new(file))),
            Err(error) => {
                log::debug!("the staging buffer of {from}: {error}");
                return false;
            }
        };
        true
    }

    /// Returns the memory of a slot that another adapter names, or `None` if it has not shared such
    /// a buffer.
    pub(crate) fn shared(&self, from: Gid, name: SlotName) -> Option<Span> {
        let (number, file) = self.shared.get(&from)?;
        if *number != name.buffer.get() {
            return None;
        }
        span(file, name.index.get())
    }

    /// Forgets an adapter, or all of them if `gone` is `None`.
    pub(crate) fn forget(&mut self, gone: Option<Gid>) {
        let is_gone = |gid: &Gid| gone.is_none_or(|gone| gone == *gid);
        self.peers.retain(|gid, _| !is_gone(gid));
        self.shared.retain(|gid, _| !is_gone(gid));
    }

    /// Returns `true` if payload to an adapter goes through a buffer, or `None` if it would if the
    /// adapter had one. `ask` asks the wire if memory may be shared with it, which is not done each
    /// time because it waits for the link's thread.
    pub(crate) fn stages(
        &mut self,
        gid: Gid,
        now: Instant,
        ask: impl FnOnce() -> bool,
    ) -> Option<bool> {
        let peer = self.peer(gid);
        let known = peer
            .permitted
            .filter(|(at, _)| now.saturating_duration_since(*at) < PERMITTED);
        let (_, is_permitted) = *peer.permitted.insert(known.unwrap_or_else(|| (now, ask())));
        let is_refused = peer.refused_until.is_some_and(|until| now < until);
        if !is_permitted || is_refused {
            return Some(false);
        }
        peer.buffer.as_ref().map(|buffer| buffer.is_known)
    }

    /// Takes an adapter's answer, which accepts or refuses a buffer.
    pub(crate) fn take_answer(&mut self, gid: Gid, number: u32, is_taken: bool, now: Instant) {
        if !is_taken {
            return self.give_up(gid, number, now);
        }
        let buffer = self.peer(gid).buffer.as_mut();
        if let Some(buffer) = buffer.filter(|it| it.number == number) {
            buffer.is_known = true;
        }
    }

    /// Makes a new buffer for an adapter, or returns `None` if it may not have one now.
    pub(crate) fn new_buffer(&mut self, gid: Gid) -> Option<(u32, OwnedFd)> {
        let buffers = self.peers.values().filter(|peer| peer.buffer.is_some());
        if buffers.count() >= MOST_BUFFERS {
            return None;
        }
        let number = self.last_number.checked_add(1)?;
        let file = MemoryFile::create("peerbar-efa-staging", BUFFER_BYTES);
        let file = file.inspect_err(|error| log::warn!("payload goes in packets: {error}"));
        let file = file.ok()?;
        let fd = file.file().as_fd().try_clone_to_owned().ok()?;
        self.last_number = number;
        self.peer(gid).buffer = Some(Buffer {
            number,
            file: Arc::new(file),
            is_known: false,
            free: Arc::new(Mutex::new((0..SLOTS).rev().collect())),
        });
        Some((number, fd))
    }

    #[cfg(test)]
    pub(crate) fn waiters(&self) -> usize {
        self.waiters.len()
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        let buffers = self.peers.values().filter(|peer| peer.buffer.is_some());
        (self.peers.len(), buffers.count())
    }

    /// Returns the number of slots in use of the buffer for an adapter, or `None` without a buffer.
    #[cfg(test)]
    pub(crate) fn slots_in_use(&self, gid: Gid) -> Option<usize> {
        let buffer = self.peers.get(&gid)?.buffer.as_ref()?;
        Some(SLOTS as usize - buffer.free.lock().len())
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    const A: Gid = Gid([1; 16]);

    fn memfd(size: u64) -> OwnedFd {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, size).unwrap();
        fd
    }

    fn known(staging: &mut Staging) {
        staging.new_buffer(A).unwrap();
        staging.peer(A).buffer.as_mut().unwrap().is_known = true;
    }

    #[test]
    fn each_slot_has_one_user_until_it_is_freed() {
        let mut staging = Staging::default();
        staging.new_buffer(A).unwrap();
        assert!(staging.take_slot(A).is_none(), "the peer does not know it");
        staging.peer(A).buffer.as_mut().unwrap().is_known = true;
        let mut taken: Vec<_> = std::iter::from_fn(|| staging.take_slot(A)).collect();
        let mut offsets: Vec<_> = taken.iter().map(|slot| slot.memory.offset).collect();
        offsets.sort_unstable();
        offsets.dedup();
        assert_eq!(offsets.len(), SLOTS as usize);
        let name = taken.remove(3).name;
        assert_eq!(staging.take_slot(A).unwrap().name, name);
    }

    #[test]
    fn slot_of_a_buffer_that_was_given_up_means_nothing_in_the_next_one() {
        let mut staging = Staging::default();
        let now = Instant::now();
        known(&mut staging);
        let slot = staging.take_slot(A).unwrap();
        staging.give_up(A, slot.name.buffer(), now);
        assert!(staging.take_slot(A).is_none());
        known(&mut staging);
        staging.give_up(A, slot.name.buffer(), now);
        let next = staging.take_slot(A).unwrap();
        assert_ne!(next.name, slot.name);
        drop((slot, next));
        assert_eq!(staging.slots_in_use(A), Some(0));
    }

    #[test]
    fn peer_names_slots_of_its_present_buffer_only() {
        let mut staging = Staging::default();
        assert!(!staging.take_buffer(A, 1, memfd(BUFFER_BYTES - 1)));
        assert!(staging.take_buffer(A, 1, memfd(BUFFER_BYTES)));
        assert!(staging.take_buffer(A, 2, memfd(BUFFER_BYTES)));
        let last = staging.shared(A, SlotName::new(2, SLOTS - 1)).unwrap();
        assert_eq!(last.offset, BUFFER_BYTES - u64::from(SLOT_BYTES));
        for (buffer, index) in [(1, 0), (3, 0), (2, SLOTS), (2, u32::MAX)] {
            let slot = SlotName::new(buffer, index);
            assert!(staging.shared(A, slot).is_none(), "{slot:?}");
        }
        assert!(staging.shared(Gid([2; 16]), SlotName::new(2, 0)).is_none());
        staging.forget(Some(A));
        assert!(staging.shared(A, SlotName::new(2, 0)).is_none());
    }

    #[test]
    fn more_adapters_than_may_share_are_refused() {
        let mut staging = Staging::default();
        let gid = |number: usize| Gid([u8::try_from(number).unwrap(); 16]);
        for number in 0..MOST_SHARED_FILES {
            assert!(staging.take_buffer(gid(number), 1, memfd(BUFFER_BYTES)));
        }
        let other = gid(MOST_SHARED_FILES);
        assert!(!staging.take_buffer(other, 1, memfd(BUFFER_BYTES)));
        assert!(
            staging.take_buffer(gid(0), 2, memfd(BUFFER_BYTES)),
            "in place of its own"
        );
        let made =
            (0..2 * MOST_BUFFERS).filter(|number| staging.new_buffer(gid(*number)).is_some());
        assert_eq!(made.count(), MOST_BUFFERS);
    }
}
