//! The asynchronous event queue in the driver's memory, for events that no command has asked for.

use std::mem::offset_of;
use std::time::{Duration, Instant};

use peerbar_dma::{DmaError, Purpose, Requester};
use peerbar_efa_spec::admin::event_queue::{AsyncEvent, EventGroup};
use peerbar_pci::Iova;
use zerocopy::{FromZeros, IntoBytes};

use crate::entry::{ring_entry, write_word_last};
use crate::registers::EventSetup;

/// Interval of keep-alive events. The driver counts them and sets no limit.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Maximum number of entries of the queue. Linux' driver uses 16.
const MAX_DEPTH: u16 = 4096;
const ENTRY_BYTES: usize = size_of::<AsyncEvent>();
/// Offset of the word that contains the phase.
const PHASE: usize = offset_of!(AsyncEvent, phase);

/// Returns the groups of events that the device can report.
pub(crate) fn supported_groups() -> u32 {
    use EventGroup::{FatalError, KeepAlive, Notification, Warning};
    let groups = [FatalError, Warning, Notification, KeepAlive];
    groups.iter().fold(0, |mask, group| mask | group.mask())
}

/// The queue, once the driver has enabled groups of events.
pub(crate) struct AsyncEvents {
    address: u64,
    depth: u16,
    pub(crate) vector: u16,
    /// The groups that are reported.
    pub(crate) enabled: u32,
    /// Number of events posted, modulo 2^32.
    posted: u32,
    started: Instant,
    next_keep_alive: Instant,
}

impl AsyncEvents {
    /// Makes the queue that the registers describe, from `now` on. Returns `None` if they describe
    /// no queue.
    pub(crate) fn new(setup: EventSetup, enabled: u32, now: Instant) -> Option<Self> {
        let depth = setup.caps.depth();
        let is_possible = depth.is_power_of_two()
            && depth <= MAX_DEPTH
            && usize::from(setup.caps.entry_size()) == ENTRY_BYTES;
        is_possible.then(|| Self {
            address: setup.address,
            depth,
            vector: setup.caps.vector().into(),
            enabled,
            posted: 0,
            started: now,
            next_keep_alive: now + KEEP_ALIVE,
        })
    }

    /// Returns the time of the next event.
    pub(crate) fn due(&self) -> Option<Instant> {
        let is_enabled = self.enabled & EventGroup::KeepAlive.mask() != 0;
        is_enabled.then_some(self.next_keep_alive)
    }

    /// Posts the event that is due at `now`. Returns `true` if an event was due and the queue, of
    /// which the driver has consumed `consumed` events, had room for it.
    pub(crate) fn post_due(
        &mut self,
        requester: &Requester,
        consumed: u32,
        now: Instant,
    ) -> Result<bool, DmaError> {
        if self.due().is_none_or(|due| due > now) {
            return Ok(false);
        }
        self.next_keep_alive = now + KEEP_ALIVE;
        self.post(requester, EventGroup::KeepAlive, consumed, now)
    }

    /// Posts an event. Returns `true` if there was room for it.
    fn post(
        &mut self,
        requester: &Requester,
        group: EventGroup,
        consumed: u32,
        now: Instant,
    ) -> Result<bool, DmaError> {
        if self.posted.wrapping_sub(consumed) >= self.depth.into() {
            log::debug!("event of group {group:?} is lost: the driver has consumed {consumed:#x}");
            return Ok(false);
        }
        let (start, posted) = (self.address, self.posted);
        let (address, phase) = ring_entry(start, self.depth, ENTRY_BYTES, posted);
        let time = now.saturating_duration_since(self.started);
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let [a, b, c, d, e, f, g, h] = time.to_le_bytes();
        let mut event = AsyncEvent::new_zeroed();
        event.group = (group as u16).into();
        event.phase = phase.into();
        event.timestamp_low = u32::from_le_bytes([a, b, c, d]).into();
        event.timestamp_high = u32::from_le_bytes([e, f, g, h]).into();
        write_word_last(event.as_bytes(), PHASE, |offset, part| {
            requester.write(
                Purpose::Completion,
                Iova(address.wrapping_add(offset)),
                part,
            )
        })?;
        self.posted = self.posted.wrapping_add(1);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use peerbar_dma::{MapAccess, MemoryFile};
    use peerbar_efa_spec::registers::EventQueueCaps;
    use peerbar_pci::Range;
    use zerocopy::FromBytes;

    use super::*;

    fn setup(depth: u16, entry: u8) -> EventSetup {
        EventSetup {
            address: 0x1000,
            caps: EventQueueCaps::new()
                .with_depth(depth)
                .with_entry_size(entry),
        }
    }

    #[test]
    fn only_possible_queues_can_be_made() {
        assert!(AsyncEvents::new(setup(16, 64), 0, Instant::now()).is_some());
        for (depth, entry) in [(0, 64), (15, 64), (16, 32), (8192, 64)] {
            assert!(AsyncEvents::new(setup(depth, entry), 0, Instant::now()).is_none());
        }
    }

    #[test]
    fn keep_alive_is_due_only_while_it_is_enabled() {
        let mut events = AsyncEvents::new(setup(16, 64), 0, Instant::now()).unwrap();
        assert_eq!(events.due(), None);
        events.enabled = supported_groups();
        assert_eq!(events.due(), Some(events.next_keep_alive));
        assert_eq!(supported_groups(), 0x1e);
    }

    #[test]
    fn event_is_lost_while_the_queue_is_full() {
        let requester = Requester::new();
        let mut events = AsyncEvents::new(setup(16, 64), 0x10, Instant::now()).unwrap();
        events.posted = 16;
        let now = Instant::now();
        let mut post = |consumed| events.post(&requester, EventGroup::KeepAlive, consumed, now);
        assert!(matches!(post(0), Ok(false)));
        assert!(post(1).is_err(), "there is no memory");
    }

    #[test]
    fn keep_alive_comes_every_5_seconds_in_the_next_entry() {
        let requester = Requester::new();
        let ram = MemoryFile::create("ram", 0x2000).unwrap();
        let fd = ram.file().try_clone().unwrap().into();
        requester
            .map(
                Range::new(Iova(0), 0x2000).unwrap(),
                MapAccess::READ_WRITE,
                Some((fd, 0)),
            )
            .unwrap();
        requester.set_bus_master(true);
        let start = Instant::now();
        let groups = supported_groups();
        let mut events = AsyncEvents::new(setup(2, 64), groups, start).unwrap();
        let mut posted = Vec::new();
        for milliseconds in (0..=20_000u64).step_by(500) {
            let now = start + Duration::from_millis(milliseconds);
            let consumed = u32::try_from(posted.len()).unwrap();
            if events.post_due(&requester, consumed, now).unwrap() {
                let index = posted.len() % 2;
                let mut entry = [0; ENTRY_BYTES];
                ram.read(0x1000 + (index * ENTRY_BYTES) as u64, &mut entry)
                    .unwrap();
                let event = AsyncEvent::read_from_bytes(&entry).unwrap();
                assert_eq!(event.group.get(), EventGroup::KeepAlive as u16);
                posted.push((event.phase, event.timestamp_low.get() / 1000));
            }
        }
        let expected = [(1, 5000), (1, 10_000), (0, 15_000), (0, 20_000)];
        assert_eq!(posted, expected, "phase and milliseconds");
    }
}
