//! The current mappings and windows, and the slot of each in the table of the file.

use std::collections::BTreeMap;

use peerbar_pci::{Iova, Range};
use rangemap::RangeInclusiveMap;

use crate::event::{Event, Mapping, WindowId};

/// A slot of the table and its new contents, or `None` if it becomes free.
pub(crate) type Change = (u64, Option<Event>);

/// A current mapping, or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LiveMapping {
    whole: Mapping,
    slot: Option<u64>,
}

/// The contents of the table, and its free slots.
#[derive(Debug, Default)]
pub(crate) struct LiveTable {
    mappings: RangeInclusiveMap<u64, LiveMapping>,
    windows: BTreeMap<WindowId, u64>,
    peers: BTreeMap<u32, Vec<u64>>,
    freed: Vec<u64>,
    /// Number of slots that have ever been used; those from here on are free.
    used: u64,
    slots: u64,
    /// Number of mappings and windows for which no slot was free.
    pub(crate) untracked: u64,
}

impl LiveTable {
    /// Makes a table with this number of slots.
    pub(crate) fn new(slots: u64) -> Self {
        Self {
            slots,
            ..Self::default()
        }
    }

    /// Applies an event. Returns the changes of the table.
    pub(crate) fn apply(&mut self, event: &Event) -> Vec<Change> {
        match event {
            Event::Map(mapping) => {
                let mut changes = self.unmap(mapping.range);
                changes.extend(self.hold(*mapping));
                changes
            }
            Event::Unmap(range) => self.unmap(*range),
            Event::Window(window) => {
                let old = self.windows.remove(&window.id);
                let mut changes: Vec<Change> =
                    old.map(|slot| self.free(slot)).into_iter().collect();
                if window.range.is_some() {
                    if let Some(slot) = self.take() {
                        self.windows.insert(window.id, slot);
                        changes.push((slot, Some(*event)));
                    }
                }
                changes
            }
            Event::PeerWindow(window) => {
                let Some(slot) = self.take() else {
                    return Vec::new();
                };
                self.peers.entry(window.peer).or_default().push(slot);
                vec![(slot, Some(*event))]
            }
            Event::PeerLeaves(peer) => {
                let slots = self.peers.remove(peer).unwrap_or_default();
                slots.into_iter().map(|slot| self.free(slot)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Removes a range from all mappings. The parts on either side stay.
    fn unmap(&mut self, range: Range<Iova>) -> Vec<Change> {
        let met = self.mappings.overlapping(range.numbers());
        let met: Vec<LiveMapping> = met.map(|(_, held)| *held).collect();
        self.mappings.remove(range.numbers());
        let mut changes = Vec::new();
        for LiveMapping { whole, slot } in met {
            changes.extend(slot.map(|slot| self.free(slot)));
            let before = whole.range.before(range.first());
            let after = whole.range.after(range.last());
            for rest in before.into_iter().chain(after) {
                changes.extend(self.hold(whole.part(rest)));
            }
        }
        changes
    }

    fn hold(&mut self, whole: Mapping) -> Option<Change> {
        let slot = self.take();
        let held = LiveMapping { whole, slot };
        self.mappings.insert(whole.range.numbers(), held);
        Some((slot?, Some(Event::Map(whole))))
    }

    fn take(&mut self) -> Option<u64> {
        if let Some(slot) = self.freed.pop() {
            return Some(slot);
        }
        if self.used == self.slots {
            self.untracked = self.untracked.saturating_add(1);
            return None;
        }
        self.used += 1;
        Some(self.used - 1)
    }

    fn free(&mut self, slot: u64) -> Change {
        self.freed.push(slot);
        (slot, None)
    }
}

#[cfg(test)]
mod tests {
    use peerbar_pci::BusAddress;

    use super::*;
    use crate::event::{Backing, FileSpan, PeerWindowEvent, WindowEvent, WindowKind};

    fn between(first: u64, last: u64) -> Range<Iova> {
        Range::from_bounds(Iova(first), Iova(last)).unwrap()
    }

    fn ram(iova: u64, last: u64, offset: u64) -> Mapping {
        Mapping {
            range: between(iova, last),
            readable: true,
            writable: true,
            backing: Backing::Ram(FileSpan {
                device: 1,
                inode: 2,
                offset,
            }),
        }
    }

    /// Returns the table after the changes of these events.
    fn after(live: &mut LiveTable, events: &[Event]) -> BTreeMap<u64, Event> {
        let mut table = BTreeMap::new();
        for (slot, event) in events.iter().flat_map(|event| live.apply(event)) {
            match event {
                Some(event) => table.insert(slot, event),
                None => table.remove(&slot),
            };
        }
        table
    }

    #[test]
    fn what_is_left_of_a_mapping_keeps_its_offset_in_the_file() {
        let mut live = LiveTable::new(8);
        let events = [
            Event::Map(ram(0x1000, 0x4fff, 0x10_0000)),
            Event::Unmap(between(0x2000, 0x2fff)),
        ];
        let table: Vec<Event> = after(&mut live, &events).into_values().collect();
        assert_eq!(table.len(), 2);
        assert!(table.contains(&Event::Map(ram(0x1000, 0x1fff, 0x10_0000))));
        assert!(table.contains(&Event::Map(ram(0x3000, 0x4fff, 0x10_2000))));
    }

    #[test]
    fn neighbours_stay_mappings_of_their_own() {
        let mut live = LiveTable::new(8);
        let first = Event::Map(ram(0, 0xfff, 0));
        let second = Event::Map(ram(0x1000, 0x1fff, 0x1000));
        assert_eq!(after(&mut live, &[first, second]).len(), 2);
        let all = Event::Unmap(between(0, u64::MAX));
        let freed = live.apply(&all);
        assert_eq!(freed.len(), 2);
        assert!(freed.iter().all(|(_, event)| event.is_none()));
    }

    #[test]
    fn full_table_counts_untracked_and_recovers() {
        let mut live = LiveTable::new(1);
        let events = [0x1000, 0x3000].map(|iova| Event::Map(ram(iova, iova + 0xfff, 0)));
        assert_eq!(after(&mut live, &events).len(), 1);
        assert_eq!(live.untracked, 1);
        let unmap = Event::Unmap(between(0, 0xffff));
        live.apply(&unmap);
        assert_eq!(after(&mut live, &events[..1]).len(), 1);
        assert_eq!(live.untracked, 1);
    }

    #[test]
    fn windows_move_and_close_and_peers_leave() {
        let mut live = LiveTable::new(8);
        let window = |address, size| {
            Event::Window(WindowEvent {
                id: WindowId::Bar(2),
                range: Range::new(BusAddress(address), size),
                memory: WindowKind::Memory,
            })
        };
        let peer = Event::PeerWindow(PeerWindowEvent {
            peer: 3,
            range: Range::new(BusAddress(0x9000), 0x1000).unwrap(),
            claim: 1,
            memory: WindowKind::Registers,
        });
        let events = [window(0x1000, 0x1000), peer, window(0x5000, 0x1000), peer];
        let table = after(&mut live, &events);
        assert_eq!(table.len(), 3);
        assert!(table.values().any(|event| *event == window(0x5000, 0x1000)));
        let events = [window(0, 0), Event::PeerLeaves(3), Event::PeerLeaves(3)];
        assert!(after(&mut live, &events).is_empty());
        assert_eq!(live.freed.len() as u64, live.used);
    }
}
