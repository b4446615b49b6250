//! Mappings over time and the commands that used them: the records, followed one by one.

use std::collections::{HashMap, HashSet};

use peerbar_dma_log::{Origin, Purpose};
use peerbar_pci::{Iova, Range};
use rangemap::RangeInclusiveMap;

use crate::event::{Dma, DmaOutcome, Event, Mapping, Operation, Record};
use crate::file::Flight;

/// A point in a device's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Number of the record.
    pub sequence: u64,
    /// CLOCK_MONOTONIC in nanoseconds.
    pub nanos: u64,
}

impl From<&Record> for Moment {
    fn from(record: &Record) -> Self {
        Self {
            sequence: record.sequence,
            nanos: record.nanos,
        }
    }
}

/// One use of a command's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Queue and number.
    pub origin: Origin,
    /// The command's kind.
    pub operation: Operation,
    /// The time at which it began.
    pub begun: Moment,
}

/// A mapping from its beginning to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingLife {
    /// The mapping as it was made.
    pub mapping: Mapping,
    /// The time at which it was made.
    pub mapped: Moment,
    /// The time at which its last part was unmapped.
    pub unmapped: Option<Moment>,
    /// The first command that used it.
    pub first_user: Option<Command>,
    /// The time at which the last command that used it was complete.
    pub used_until: Option<Moment>,
    /// Number of commands that have used it.
    pub users: u64,
    /// All DMA through it was of commands' data.
    pub only_payload: bool,
    /// It was made before the device was a bus master for this client. Such a mapping belongs to
    /// the machine, not to a driver: QEMU maps all RAM until the guest turns its IOMMU on.
    pub is_of_machine: bool,
}

/// Addresses that are no longer mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmapped {
    /// Number of the [`MappingLife`] to which they last belonged.
    pub life: usize,
    /// The time at which they were unmapped.
    pub unmapped: Moment,
}

/// The mappings around an address at one moment. Numbers are those of a [`MappingLife`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The mapping that holds the address.
    pub at: Option<usize>,
    /// The last mapping that held the address, if none does now.
    pub was: Option<Unmapped>,
    /// The nearest mapping below.
    pub below: Option<usize>,
    /// The nearest mapping above.
    pub above: Option<usize>,
}

/// A DMA that failed, and the mappings around it at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The time.
    pub at: Moment,
    /// The DMA.
    pub dma: Dma,
    /// Its command, if commands are recorded.
    pub command: Option<Command>,
    /// The mappings around its address.
    pub around: Surroundings,
}

/// A DMA with its context.
pub(crate) struct Followed {
    pub(crate) dma: Dma,
    pub(crate) at: Moment,
    pub(crate) command: Option<Command>,
    pub(crate) life: Option<usize>,
}

/// A command in progress, and the mappings that it has used.
#[derive(Debug)]
struct Running {
    command: Command,
    used: HashSet<usize>,
}

/// The device was turned off, or everything was unmapped at once: its driver should have removed
/// its mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Teardown {
    /// The time.
    pub at: Moment,
    /// Number of mappings that were left.
    pub mappings: usize,
    /// Bytes of them that were still mapped; 2^64 counts as one less.
    pub bytes: u64,
}

/// When a whole table is unmapped, at least this many addresses are unmapped at once.
const WHOLE: u64 = 1 << 40;

/// Returns `true` if the device is turned off (bus mastering, or its client leaves), or everything
/// is unmapped at once.
pub(crate) fn is_teardown(event: &Event) -> bool {
    match event {
        Event::Client(false) | Event::BusMaster(false) => true,
        Event::Unmap(range) => range.size() > WHOLE,
        _ => false,
    }
}

/// A device's mappings over time.
#[derive(Debug, Default)]
pub struct History {
    /// Every known mapping.
    pub mappings: Vec<MappingLife>,
    /// Every DMA that failed, except those that bus mastering or a reset forbade, or into which a
    /// fault was injected.
    pub faults: Vec<Fault>,
    /// Mappings made.
    pub maps: u64,
    /// Unmapped spans in which something was mapped.
    pub unmaps: u64,
    /// The most mappings at once.
    pub peak: usize,
    /// DMA segments recorded.
    pub dmas: u64,
    /// Segments that failed, for any reason.
    pub failed: u64,
    /// Segments into which a fault was injected.
    pub injected: u64,
    /// Each time at which the device was turned off, or everything was unmapped at once, while
    /// mappings were left.
    pub teardowns: Vec<Teardown>,
    /// The device is a bus master, if the record shows it.
    is_master: Option<bool>,
    live: RangeInclusiveMap<u64, usize>,
    unmapped_ranges: RangeInclusiveMap<u64, Unmapped>,
    current_count: usize,
    current_bytes: u64,
    running: HashMap<Origin, Running>,
}

impl History {
    /// Returns the history in a whole record.
    pub fn of(flight: &Flight) -> Self {
        let mut history = Self::before(flight);
        for record in &flight.records {
            history.follow(record);
        }
        history
    }

    /// Returns the history at the start: current mappings that are older than the oldest remaining
    /// record.
    pub(crate) fn before(flight: &Flight) -> Self {
        let mut history = Self::default();
        let old = |record: &&Record| record.sequence <= flight.overwritten;
        for record in flight.now.iter().filter(old) {
            if let Event::Map(mapping) = record.event {
                history.map(mapping, record.into());
            }
        }
        history
    }

    /// Adds the next record.
    pub fn follow(&mut self, record: &Record) {
        self.step(record);
    }

    /// Returns the mapping with this number.
    pub fn mapping(&self, number: usize) -> Option<&MappingLife> {
        self.mappings.get(number)
    }

    /// Returns the current mappings after all added records, by address.
    pub fn current(&self) -> impl Iterator<Item = (Mapping, &MappingLife)> {
        self.live.iter().filter_map(|(range, number)| {
            let life = self.mappings.get(*number)?;
            let range = Range::from_bounds(Iova(*range.start()), Iova(*range.end()))?;
            Some((life.mapping.part(range), life))
        })
    }

    /// Returns the number of current mappings.
    pub fn current_count(&self) -> usize {
        self.current_count
    }

    /// Returns the mappings around an address after all added records.
    pub fn around(&self, address: Iova) -> Surroundings {
        let Iova(address) = address;
        let at = self.live.get(&address).copied();
        let below = address.checked_sub(1).map(|last| 0..=last);
        let above = address.checked_add(1).map(|first| first..=u64::MAX);
        let other = |number: &usize| Some(*number) != at;
        Surroundings {
            at,
            was: match at {
                Some(_) => None,
                None => self.unmapped_ranges.get(&address).copied(),
            },
            below: below.and_then(|range| {
                let mut found = self.live.overlapping(range).map(|(_, number)| *number);
                found.rfind(other)
            }),
            above: above.and_then(|range| {
                let mut found = self.live.overlapping(range).map(|(_, number)| *number);
                found.find(other)
            }),
        }
    }

    /// Returns the number of bytes from `address` to the end of the mapping that holds it; 2^64
    /// counts as one less.
    pub(crate) fn left_at(&self, address: Iova) -> Option<u64> {
        let (range, _) = self.live.get_key_value(&address.0)?;
        Some(range.end().saturating_sub(address.0).saturating_add(1))
    }

    /// Returns the addresses of a mapping and of its neighbours that were mapped together with it,
    /// for the same command: some IOMMUs map each page separately.
    pub fn contiguous_range(&self, number: usize) -> Option<Range<Iova>> {
        let life = self.mappings.get(number)?;
        let alike = |one: &MappingLife, next: &MappingLife| {
            one.mapping.range.last().checked_add(1) == Some(next.mapping.range.first())
                && one.mapping.writable == next.mapping.writable
                && one.first_user.is_some()
                && one.first_user == next.first_user
        };
        let (before, after) = self.mappings.split_at_checked(number)?;
        let mut first = life;
        for earlier in before.iter().rev() {
            if !alike(earlier, first) {
                break;
            }
            first = earlier;
        }
        let mut last = life;
        for later in after.iter().skip(1) {
            if !alike(last, later) {
                break;
            }
            last = later;
        }
        Range::from_bounds(first.mapping.range.first(), last.mapping.range.last())
    }

    /// Adds the next record. Returns its context if it is a DMA.
    pub(crate) fn step(&mut self, record: &Record) -> Option<Followed> {
        let at = Moment::from(record);
        if is_teardown(&record.event) && self.current_count > 0 {
            self.teardowns.push(Teardown {
                at,
                mappings: self.current_count,
                bytes: self.current_bytes,
            });
        }
        match record.event {
            Event::Client(_) => self.is_master = Some(false),
            Event::BusMaster(on) => self.is_master = Some(on),
            Event::Map(mapping) => self.map(mapping, at),
            Event::Unmap(range) => self.unmap(range, at),
            Event::Begin { origin, operation } => self.begin(origin, operation, at),
            Event::End { origin, .. } => self.end(origin, at),
            Event::Dma(dma) => return Some(self.dma(dma, at)),
            _ => {}
        }
        None
    }

    fn map(&mut self, mapping: Mapping, at: Moment) {
        // No address is mapped there, unless the record of an unmap is lost.
        self.unmap(mapping.range, at);
        let number = self.mappings.len();
        self.mappings.push(MappingLife {
            mapping,
            mapped: at,
            unmapped: None,
            first_user: None,
            used_until: None,
            users: 0,
            only_payload: true,
            is_of_machine: self.is_master == Some(false),
        });
        self.live.insert(mapping.range.numbers(), number);
        self.maps += 1;
        self.current_count += 1;
        self.current_bytes = self.current_bytes.saturating_add(mapping.range.size());
        self.peak = self.peak.max(self.current_count);
    }

    fn unmap(&mut self, range: Range<Iova>, at: Moment) {
        let range = range.numbers();
        let met = self.live.overlapping(range.clone());
        let met: Vec<_> = met.map(|(span, life)| (span.clone(), *life)).collect();
        self.live.remove(range.clone());
        self.unmaps += u64::from(!met.is_empty());
        for (span, number) in met {
            let gone = *range.start().max(span.start())..=*range.end().min(span.end());
            let bytes = gone.end().saturating_sub(*gone.start()).saturating_add(1);
            self.current_bytes = self.current_bytes.saturating_sub(bytes);
            let unmapped = Unmapped {
                life: number,
                unmapped: at,
            };
            let Some(life) = self.mappings.get_mut(number) else {
                continue;
            };
            self.unmapped_ranges.insert(gone, unmapped);
            let mut left = self.live.overlapping(life.mapping.range.numbers());
            if life.unmapped.is_none() && left.all(|(_, other)| *other != number) {
                life.unmapped = Some(at);
                self.current_count = self.current_count.saturating_sub(1);
            }
        }
    }

    fn begin(&mut self, origin: Origin, operation: Operation, begun: Moment) {
        let command = Command {
            origin,
            operation,
            begun,
        };
        let used = HashSet::new();
        self.running.insert(origin, Running { command, used });
    }

    fn end(&mut self, origin: Origin, at: Moment) {
        let running = self.running.remove(&origin);
        for number in running.into_iter().flat_map(|running| running.used) {
            if let Some(life) = self.mappings.get_mut(number) {
                life.used_until = Some(at);
            }
        }
    }

    fn dma(&mut self, dma: Dma, at: Moment) -> Followed {
        self.dmas += 1;
        self.failed += u64::from(dma.outcome != DmaOutcome::Done);
        self.injected += u64::from(dma.outcome == DmaOutcome::Injected);
        let life = self.live.get(&dma.address.0).copied();
        let running = self.running.get_mut(&dma.origin);
        let command = running.as_ref().map(|running| running.command);
        if let Some((number, life)) =
            life.and_then(|number| Some((number, self.mappings.get_mut(number)?)))
        {
            life.only_payload &= dma.purpose == Purpose::Payload;
            if let Some(running) = running {
                if running.used.insert(number) {
                    life.users += 1;
                    life.first_user.get_or_insert(running.command);
                }
            }
        }
        if !matches!(
            dma.outcome,
            DmaOutcome::Done | DmaOutcome::NotMaster | DmaOutcome::Injected
        ) {
            self.faults.push(Fault {
                at,
                dma,
                command,
                around: self.around(dma.address),
            });
        }
        Followed {
            dma,
            at,
            command,
            life,
        }
    }
}
