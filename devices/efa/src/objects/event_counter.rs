//! Event counters: words in memory that the driver chooses, which count events of queue pairs.

use peerbar_efa_spec::admin::event_counter::QpEvents;
use peerbar_efa_spec::work::Operation;

use super::error::{ObjectError, ObjectKind, invalid};
use super::queue_pair::QueuePairState;
use super::{Objects, add_user, remove_user};

/// Size of a counter's word.
pub(crate) const WORD_BYTES: usize = size_of::<u64>();

/// Parameters of an event counter.
#[derive(Clone, Copy, Debug)]
pub struct CreateEventCounter {
    /// The UAR of its process.
    pub uar: u16,
    /// Address of its word, a multiple of 8.
    pub address: u64,
}

/// A change of an event counter (`efa_admin_event_counter_modify_ops`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModifyEventCounter {
    /// Sets this value.
    Set(u64),
    /// Adds this to the value, which wraps around at [`u64::MAX`].
    Add(u64),
}

/// An event counter. The adapter keeps its value, so a guest's writes to the word have no effect on
/// it.
pub(crate) struct EventCounter {
    uar: u16,
    pub(crate) address: u64,
    pub(crate) value: u64,
    /// Number of queue pairs that it is attached to.
    users: usize,
    /// `true` if its word must be written once bus mastering is on.
    pub(crate) is_kept: bool,
    /// `true` if its word could not be written: it counts no more.
    pub(crate) has_failed: bool,
}

/// A counter that is attached to a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attachment {
    counter: u16,
    /// The bits of [`QpEvents`].
    events: u32,
}

/// An event of a queue pair that may be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuePairEvent {
    /// A work request of its send queue has ended.
    Sent { operation: Operation, is_ok: bool },
    /// A receive has ended.
    Received { is_ok: bool },
    /// Another queue pair has completely read or written memory through it.
    Remote(Operation),
}

impl QueuePairEvent {
    /// Returns its bit of [`QpEvents`].
    fn bit(self) -> u32 {
        use Operation::{FastInvalidate, FastRegister, RdmaRead, RdmaWrite, Send};
        let none = QpEvents::new();
        let event = match self {
            Self::Sent { operation, is_ok } => match (operation, is_ok) {
                (Send, true) => none.with_send(true),
                (Send, false) => none.with_send_error(true),
                (RdmaRead, true) => none.with_read(true),
                (RdmaRead, false) => none.with_read_error(true),
                (RdmaWrite, true) => none.with_write(true),
                (RdmaWrite, false) => none.with_write_error(true),
                (FastRegister | FastInvalidate, _) => none,
            },
            Self::Received { is_ok: true } => none.with_receive(true),
            Self::Received { is_ok: false } => none.with_receive_error(true),
            Self::Remote(RdmaRead) => none.with_remote_read(true),
            Self::Remote(RdmaWrite) => none.with_remote_write(true),
            Self::Remote(Send | FastRegister | FastInvalidate) => none,
        };
        event.into_bits().get()
    }
}

impl EventCounter {
    /// Returns its value after a change.
    fn changed(&self, change: ModifyEventCounter) -> u64 {
        match change {
            ModifyEventCounter::Set(value) => value,
            ModifyEventCounter::Add(value) => self.value.wrapping_add(value),
        }
    }
}

impl Objects {
    /// Creates an event counter of value 0, which `store` writes to its address. Returns its
    /// number.
    ///
    /// # Errors
    /// [`ObjectError::Unreachable`] if `store` fails.
    pub fn create_event_counter(
        &mut self,
        parameters: CreateEventCounter,
        store: impl FnOnce(u64, u64) -> bool,
    ) -> Result<u16, ObjectError> {
        let CreateEventCounter { uar, address } = parameters;
        self.uars.get(uar)?;
        if address % WORD_BYTES as u64 != 0 {
            return Err(invalid("address of an event counter", address));
        }
        let number = self.event_counters.free_number(|_| true)?;
        if !store(address, 0) {
            return Err(unreachable(number));
        }
        let counter = EventCounter {
            uar,
            address,
            value: 0,
            users: 0,
            is_kept: false,
            has_failed: false,
        };
        self.event_counters.put(number, counter);
        add_user(&mut self.uars, uar)?;
        Ok(number)
    }

    /// Removes an event counter: its word is not written any more once this returns. Fails while it
    /// is attached to a queue pair.
    pub fn destroy_event_counter(&mut self, number: u16) -> Result<(), ObjectError> {
        if self.event_counters.get(number)?.users > 0 {
            return Err(in_use(number));
        }
        let counter = self.event_counters.remove(number)?;
        remove_user(&mut self.uars, counter.uar);
        Ok(())
    }

    /// Changes the value of an event counter, which `store` writes to its address. Changes nothing
    /// if that fails.
    pub fn modify_event_counter(
        &mut self,
        number: u16,
        change: ModifyEventCounter,
        store: impl FnOnce(u64, u64) -> bool,
    ) -> Result<(), ObjectError> {
        let counter = self.event_counters.get_mut(number)?;
        let value = counter.changed(change);
        if !store(counter.address, value) {
            return Err(unreachable(number));
        }
        counter.value = value;
        counter.has_failed = false;
        Ok(())
    }

    /// Attaches a counter to these events of a queue pair of its process, which neither sends nor
    /// receives yet (ibv_qp_attach_comp_cntr(3)). An event of a queue pair has at most one counter.
    /// The set of events may be empty: Linux' driver attaches an error counter even if no event
    /// counts.
    pub fn attach_event_counter(
        &mut self,
        number: u16,
        pair: u16,
        events: QpEvents,
    ) -> Result<(), ObjectError> {
        let uar = self.event_counters.get(number)?.uar;
        let events = events.into_bits().get();
        let target = self.queue_pair_mut(pair)?;
        if target.uar != uar {
            return Err(invalid("UAR of the queue pair", target.uar));
        }
        if !matches!(target.state, QueuePairState::Reset | QueuePairState::Init) {
            return Err(invalid("state of the queue pair", target.state as u8));
        }
        let mut attached = target.counters.iter();
        if let Some(other) = attached.find(|it| it.events & events != 0) {
            return Err(in_use(other.counter));
        }
        if events == 0 {
            return Ok(());
        }
        let known = target.counters.iter_mut().find(|it| it.counter == number);
        if let Some(known) = known {
            known.events |= events;
        } else {
            target.counters.push(Attachment {
                counter: number,
                events,
            });
            self.event_counters.get_mut(number)?.users += 1;
        }
        Ok(())
    }

    /// Detaches a counter from these events of a queue pair. It must count all of them.
    pub fn detach_event_counter(
        &mut self,
        number: u16,
        pair: u16,
        events: QpEvents,
    ) -> Result<(), ObjectError> {
        self.event_counters.get(number)?;
        let events = events.into_bits().get();
        let target = self.queue_pair_mut(pair)?;
        let attached = target.counters.iter().position(|it| it.counter == number);
        let counted = attached.and_then(|at| target.counters.get_mut(at));
        let before = counted.as_ref().map_or(0, |it| it.events);
        if events & !before != 0 {
            return Err(invalid("events that are not counted", events & !before));
        }
        if let Some(counted) = counted {
            counted.events = before & !events;
        }
        if let Some(at) = attached.filter(|_| before == events) {
            target.counters.remove(at);
            self.event_counters.get_mut(number)?.users -= 1;
        }
        Ok(())
    }

    /// Detaches the counters of a queue pair that is being removed.
    pub(super) fn detach_event_counters(&mut self, attached: &[Attachment]) {
        for Attachment { counter, .. } in attached {
            if let Ok(counter) = self.event_counters.get_mut(*counter) {
                counter.users = counter.users.saturating_sub(1);
            }
        }
    }

    /// Returns the counter of an event of a queue pair.
    pub(crate) fn counter_of(&self, pair: u16, event: QueuePairEvent) -> Option<u16> {
        let mut attached = self.queue_pair(pair).ok()?.counters.iter();
        let counted = attached.find(|it| it.events & event.bit() != 0);
        counted.map(|it| it.counter)
    }

    /// Returns `true` if reads or writes of others through a queue pair are counted.
    pub(crate) fn counts_remote(&self, pair: u16, operation: Operation) -> bool {
        self.counter_of(pair, QueuePairEvent::Remote(operation))
            .is_some()
    }

    /// Returns the queue pairs that a counter is attached to.
    pub(crate) fn pairs_of_counter(&self, number: u16) -> Vec<u16> {
        let pairs = self.queue_pairs.iter();
        let has_it = |attached: &[Attachment]| attached.iter().any(|it| it.counter == number);
        let counted = pairs.filter(|(_, pair)| has_it(&pair.counters));
        counted.map(|(_, pair)| pair.number).collect()
    }
}

fn in_use(number: u16) -> ObjectError {
    ObjectError::InUse {
        kind: ObjectKind::EventCounter,
        number: number.into(),
    }
}

fn unreachable(number: u16) -> ObjectError {
    ObjectError::Unreachable {
        kind: ObjectKind::EventCounter,
        number: number.into(),
    }
}
