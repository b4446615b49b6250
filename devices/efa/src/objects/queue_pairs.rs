//! Creates, changes and removes queue pairs.

use super::Objects;
use super::error::{ObjectError, ObjectKind, invalid};
use super::queue_pair::{
    CreateQueuePair, DEFAULT_RNR_RETRY, ENDLESS_RNR_RETRY, ModifyQueuePair, QueuePair,
    QueuePairAttributes, slot,
};
use super::queue_pair_state::QueuePairState;
use super::rings::Ring;
use crate::limits;
use crate::memory_bar::Doorbell;
use crate::work::job::Jobs;

impl Objects {
    /// Creates a queue pair in state RESET. Returns its number.
    /// [`memory_bar::send_queue`](crate::memory_bar::send_queue) and its doorbells use the number
    /// modulo [`limits::QUEUE_PAIRS`], as the driver does; the upper bits distinguish it from
    /// earlier queue pairs of the same slot.
    pub fn create_queue_pair(&mut self, parameters: CreateQueuePair) -> Result<u16, ObjectError> {
        let CreateQueuePair {
            kind,
            protection_domain,
            uar,
            unsolicited_writes,
            ..
        } = parameters;
        self.protection_domains.get(protection_domain)?;
        self.uars.get(uar)?;
        let send_completions = self.existing_queue(parameters.send_completions)?;
        let receive_completions = self.existing_queue(parameters.receive_completions)?;
        let slot = self.queue_pairs.free_slot(uar)?;
        let send = Ring::for_sends(slot, parameters.send_entries, parameters.send_bytes)?;
        let receive = Ring::for_receives(parameters.receive_address, parameters.receive_bytes)?;
        let number = self.queue_pairs.next_number(slot);
        let pair = QueuePair {
            number,
            kind,
            protection_domain,
            uar,
            send_completions,
            receive_completions,
            unsolicited_writes,
            state: QueuePairState::Reset,
            qkey: 0,
            sq_psn: 0,
            rnr_retry: DEFAULT_RNR_RETRY,
            send,
            receive,
            counters: Vec::new(),
            jobs: Jobs::default(),
        };
        self.clear_send_queue(slot).map_err(|error| {
            log::error!("send queue {slot} is not cleared: {error}");
            ObjectError::Exhausted {
                kind: ObjectKind::QueuePair,
                limit: limits::QUEUE_PAIRS.into(),
            }
        })?;
        self.protection_domains.add_user(protection_domain)?;
        self.uars.add_user(uar)?;
        self.queue_pairs.put(slot, uar, pair);
        self.doorbells.open(uar, Doorbell::Send(slot));
        self.doorbells.open(uar, Doorbell::Receive(slot));
        Ok(number)
    }

    /// Changes a queue pair: all of the requested changes, or none.
    pub fn modify_queue_pair(
        &mut self,
        number: u16,
        changes: ModifyQueuePair,
    ) -> Result<(), ObjectError> {
        let doorbells = self.doorbells.clone();
        let pair = self.queue_pairs.get_mut(number)?;
        let excess = changes.rnr_retry.filter(|it| *it > ENDLESS_RNR_RETRY);
        if let Some(rnr_retry) = excess {
            return Err(invalid("number of RNR retries", rnr_retry));
        }
        if let Some(to) = changes.state {
            let from = pair.state;
            if !from.may_become(to) {
                return Err(ObjectError::Transition { from, to });
            }
            pair.state = to;
        }
        pair.qkey = changes.qkey.unwrap_or(pair.qkey);
        pair.sq_psn = changes.sq_psn.unwrap_or(pair.sq_psn);
        pair.rnr_retry = changes.rnr_retry.unwrap_or(pair.rnr_retry);
        if changes.state == Some(QueuePairState::Reset) {
            let dropped: Vec<_> = pair.requests_in_progress().collect();
            pair.jobs = Jobs::default();
            pair.send.reset();
            pair.receive.reset();
            for doorbell in [
                Doorbell::Send(slot(number)),
                Doorbell::Receive(slot(number)),
            ] {
                doorbells.open(pair.uar, doorbell);
            }
            self.queue_pairs.dropped.extend(dropped);
        }
        // Posted requests are sent, or flushed, from now on.
        doorbells.wake(slot(number));
        Ok(())
    }

    /// Returns the attributes of a queue pair.
    pub fn query_queue_pair(&self, number: u16) -> Result<QueuePairAttributes, ObjectError> {
        let pair = self.queue_pairs.get(number)?;
        Ok(QueuePairAttributes {
            state: pair.state,
            qkey: pair.qkey,
            sq_psn: pair.sq_psn,
            is_draining: pair.state == QueuePairState::SendQueueDrained && !pair.jobs.is_empty(),
            rnr_retry: pair.rnr_retry,
        })
    }

    /// Removes a queue pair. Its incomplete requests are dropped. The memory of its send queue
    /// stays with its UAR.
    pub fn destroy_queue_pair(&mut self, number: u16) -> Result<(), ObjectError> {
        let pair = self.queue_pairs.remove(number)?;
        let slot = slot(number);
        self.doorbells.close(Doorbell::Send(slot));
        self.doorbells.close(Doorbell::Receive(slot));
        self.detach_event_counters(&pair.counters);
        self.doorbells.wake_worker();
        if let Err(error) = self.clear_send_queue(slot) {
            log::error!("send queue {slot} is not cleared before it is used again: {error}");
        }
        self.protection_domains.remove_user(pair.protection_domain);
        self.uars.remove_user(pair.uar);
        Ok(())
    }

    fn existing_queue(&self, number: u32) -> Result<u16, ObjectError> {
        let unknown = ObjectError::Unknown {
            kind: ObjectKind::CompletionQueue,
            number,
        };
        let number = u16::try_from(number).map_err(|_| unknown)?;
        match self.completion_queues.get(number)?.has_failed {
            true => Err(ObjectError::Failed {
                kind: ObjectKind::CompletionQueue,
                number: number.into(),
            }),
            false => Ok(number),
        }
    }
}
