//! Creates, changes and removes event counters, and attaches them to queue pairs.

use peerbar_efa_spec::admin::event_counter::QpEvents;

use super::Objects;
use super::error::{ObjectError, ObjectKind, invalid};
use super::event_counter::{
    Attachment, CreateEventCounter, EventCounter, ModifyEventCounter, WORD_BYTES,
};
use super::queue_pair_state::QueuePairState;

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
            parameters,
            value: 0,
            users: 0,
            is_kept: false,
            has_failed: false,
        };
        self.event_counters.put(number, counter);
        self.uars.add_user(uar)?;
        Ok(number)
    }

    /// Removes an event counter: its word is not written any more once this returns. Fails while it
    /// is attached to a queue pair.
    pub fn destroy_event_counter(&mut self, number: u16) -> Result<(), ObjectError> {
        if self.event_counters.get(number)?.users > 0 {
            return Err(ObjectError::in_use(ObjectKind::EventCounter, number));
        }
        let counter = self.event_counters.remove(number)?;
        self.uars.remove_user(counter.parameters.uar);
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
        if !store(counter.parameters.address, value) {
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
        let uar = self.event_counters.get(number)?.parameters.uar;
        let events = events.into_bits().get();
        let target = self.queue_pairs.get_mut(pair)?;
        if target.uar != uar {
            return Err(invalid("UAR of the queue pair", target.uar));
        }
        if !matches!(target.state, QueuePairState::Reset | QueuePairState::Init) {
            return Err(invalid("state of the queue pair", target.state as u8));
        }
        let mut attached = target.counters.iter();
        if let Some(other) = attached.find(|it| it.events & events != 0) {
            return Err(ObjectError::in_use(ObjectKind::EventCounter, other.counter));
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
        let target = self.queue_pairs.get_mut(pair)?;
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
}

fn unreachable(number: u16) -> ObjectError {
    ObjectError::Unreachable {
        kind: ObjectKind::EventCounter,
        number: number.into(),
    }
}
