//! Queue pairs: their parameters, their numbers and their states.

use super::error::{ObjectError, ObjectKind, invalid};
use super::event_counter::Attachment;
use super::rings::{ReceiveRing, SendRing};
use super::{Objects, add_user, remove_user};
use crate::limits;
use crate::memory_bar::Doorbell;
use crate::work::job::Jobs;

/// The transport of a queue pair (`efa_admin_qp_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairKind {
    /// Unreliable datagrams.
    Datagram = 1,
    /// Scalable reliable datagrams: messages arrive once, in any order.
    ReliableDatagram = 2,
}

/// The state of a queue pair (`efa_admin_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QueuePairState {
    /// Just created: it neither sends nor receives.
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    ReadyToReceive = 2,
    /// Ready to send.
    ReadyToSend = 3,
    /// Send queue drained: it receives only.
    SendQueueDrained = 4,
    /// Send queue in error. Not used: a failure on this adapter affects the whole queue pair.
    SendQueueError = 5,
    /// In error: posted requests are flushed.
    Error = 6,
}

impl QueuePairState {
    const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::ReadyToReceive,
        Self::ReadyToSend,
        Self::SendQueueDrained,
        Self::SendQueueError,
        Self::Error,
    ];

    /// Returns the state of this number, or `None` if the number is invalid.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u32 == number)
    }

    /// Returns `true` if a driver may move a queue pair from this state to that one.
    fn may_become(self, next: Self) -> bool {
        use QueuePairState as S;
        match next {
            S::Reset => true,
            S::Error => self != S::Reset,
            S::Init => matches!(self, S::Reset | S::Init),
            S::ReadyToReceive => self == S::Init,
            S::ReadyToSend => matches!(
                self,
                S::ReadyToReceive | S::ReadyToSend | S::SendQueueDrained
            ),
            S::SendQueueDrained => matches!(self, S::ReadyToSend | S::SendQueueDrained),
            S::SendQueueError => false,
        }
    }

    /// Returns `true` if work requests in progress continue.
    pub(crate) fn continues(self) -> bool {
        matches!(self, Self::ReadyToSend | Self::SendQueueDrained)
    }

    /// Returns `true` if it takes messages and requests of others.
    pub(crate) fn receives(self) -> bool {
        !matches!(self, Self::Reset | Self::Init | Self::Error)
    }
}

/// Parameters of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct CreateQueuePair {
    /// Its transport.
    pub kind: QueuePairKind,
    /// Its protection domain.
    pub protection_domain: u16,
    /// The UAR of its doorbells.
    pub uar: u16,
    /// The completion queue of its send queue.
    pub send_completions: u32,
    /// The completion queue of its receive queue.
    pub receive_completions: u32,
    /// Number of entries of its send queue: a power of two, or 0 for no queue.
    pub send_entries: u32,
    /// Bytes of all entries of its send queue.
    pub send_bytes: u32,
    /// Address of its receive queue.
    pub receive_address: u64,
    /// Size of all descriptors of its receive queue in bytes: a power of two, or 0 for no queue.
    pub receive_bytes: u32,
    /// `true` if RDMA writes with immediate data consume no receive.
    pub unsolicited_writes: bool,
}

/// Changes of a queue pair. A field that is `None` leaves its value unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModifyQueuePair {
    /// Its state.
    pub state: Option<QueuePairState>,
    /// Its queue key.
    pub qkey: Option<u32>,
    /// The packet sequence number of its send queue, which is stored and not used.
    pub sq_psn: Option<u32>,
    /// Number of times that a message is sent again if there is no receive; 7 means without limit.
    pub rnr_retry: Option<u8>,
}

/// The attributes that a queue pair's driver can query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairAttributes {
    /// Its state.
    pub state: QueuePairState,
    /// Its queue key.
    pub qkey: u32,
    /// The packet sequence number of its send queue.
    pub sq_psn: u32,
    /// `true` if work requests from before the drain are in progress.
    pub is_draining: bool,
    /// Number of times that a message is sent again if there is no receive.
    pub rnr_retry: u8,
}

/// Number of slots that a UAR gets before it gets one of them again.
const SLOTS_BEFORE_REUSE: usize = 4;

/// Default number of times that a message is sent again if there is no receive.
const DEFAULT_RNR_RETRY: u8 = 3;
/// The largest such number, which means without limit.
pub(crate) const ENDLESS_RNR_RETRY: u8 = 7;

/// A queue pair.
pub(crate) struct QueuePair {
    pub(crate) number: u16,
    pub(crate) kind: QueuePairKind,
    pub(crate) protection_domain: u16,
    pub(crate) uar: u16,
    pub(crate) send_completions: u16,
    pub(crate) receive_completions: u16,
    pub(crate) unsolicited_writes: bool,
    pub(crate) state: QueuePairState,
    pub(crate) qkey: u32,
    sq_psn: u32,
    pub(crate) rnr_retry: u8,
    pub(crate) send: SendRing,
    pub(crate) receive: ReceiveRing,
    /// The event counters that count its events.
    pub(super) counters: Vec<Attachment>,
    /// The work requests of the send queue that are in progress.
    pub(crate) jobs: Jobs,
}

/// A work request that was dropped: the number of its queue pair, and its own number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DroppedRequest {
    pub(crate) pair: u16,
    pub(crate) request: u16,
}

impl QueuePair {
    /// Returns the requests that are dropped if the queue pair ends now.
    pub(super) fn requests_in_progress(&self) -> Vec<DroppedRequest> {
        let requests = self.jobs.numbers();
        let dropped = requests.map(|request| DroppedRequest {
            pair: self.number,
            request,
        });
        dropped.collect()
    }
}

/// Returns the slot of the queue pair of this number.
pub(crate) fn slot(number: u16) -> u16 {
    number % limits::QUEUE_PAIRS
}

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
        let slot = self.free_slot(uar)?;
        let send = SendRing::new(slot, parameters.send_entries, parameters.send_bytes)?;
        let receive = ReceiveRing::new(parameters.receive_address, parameters.receive_bytes)?;
        let number = self.next_number(slot);
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
        add_user(&mut self.protection_domains, protection_domain)?;
        add_user(&mut self.uars, uar)?;
        self.queue_pairs.put(slot, pair);
        if let Some(owner) = self.send_queue_uars.get_mut(usize::from(slot)) {
            *owner = Some(uar);
        }
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
        let pair = self.queue_pair_mut(number)?;
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
            let dropped = pair.requests_in_progress();
            pair.jobs = Jobs::default();
            pair.send.reset();
            pair.receive.reset();
            for doorbell in [
                Doorbell::Send(slot(number)),
                Doorbell::Receive(slot(number)),
            ] {
                doorbells.open(pair.uar, doorbell);
            }
            self.dropped.extend(dropped);
        }
        // Posted requests are sent, or flushed, from now on.
        doorbells.wake(slot(number));
        Ok(())
    }

    /// Returns the attributes of a queue pair.
    pub fn query_queue_pair(&self, number: u16) -> Result<QueuePairAttributes, ObjectError> {
        let pair = self.queue_pair(number)?;
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
        self.queue_pair(number)?;
        let slot = slot(number);
        self.doorbells.close(Doorbell::Send(slot));
        self.doorbells.close(Doorbell::Receive(slot));
        let pair = self.queue_pairs.remove(slot)?;
        self.dropped.extend(pair.requests_in_progress());
        self.detach_event_counters(&pair.counters);
        self.doorbells.wake_worker();
        if let Err(error) = self.clear_send_queue(slot) {
            log::error!("send queue {slot} is not cleared before it is used again: {error}");
        }
        remove_user(&mut self.protection_domains, pair.protection_domain);
        remove_user(&mut self.uars, pair.uar);
        Ok(())
    }

    /// Takes the work requests that were dropped.
    pub(crate) fn take_dropped(&mut self) -> Vec<DroppedRequest> {
        std::mem::take(&mut self.dropped)
    }

    /// Returns a free slot for a queue pair of this UAR: one that the UAR had before, or one
    /// without a UAR. A UAR gets several slots before it gets one again, so that numbers are reused
    /// late, and no process keeps more slots than it needs.
    fn free_slot(&self, uar: u16) -> Result<u16, ObjectError> {
        let owner = |slot: u16| {
            let owner = self.send_queue_uars.get(usize::from(slot));
            owner.copied().flatten()
        };
        let own = || {
            self.queue_pairs
                .free_number(|slot| owner(slot) == Some(uar))
        };
        let fresh = || self.queue_pairs.free_number(|slot| owner(slot).is_none());
        let owners = self.send_queue_uars.iter();
        if owners.filter(|owner| **owner == Some(uar)).count() >= SLOTS_BEFORE_REUSE {
            own().or_else(|_| fresh())
        } else {
            fresh().or_else(|_| own())
        }
    }

    /// Returns the queue pair of this number.
    pub(crate) fn queue_pair(&self, number: u16) -> Result<&QueuePair, ObjectError> {
        let pair = self.queue_pairs.get(slot(number)).ok();
        pair.filter(|pair| pair.number == number)
            .ok_or(unknown(number))
    }

    /// Returns the queue pair of this number.
    pub(crate) fn queue_pair_mut(&mut self, number: u16) -> Result<&mut QueuePair, ObjectError> {
        let pair = self.queue_pairs.get_mut(slot(number)).ok();
        pair.filter(|pair| pair.number == number)
            .ok_or(unknown(number))
    }

    /// Returns the number of the next queue pair of this slot. Numbers are reused as late as
    /// possible.
    fn next_number(&mut self, slot: u16) -> u16 {
        let Some(generation) = self.generations.get_mut(usize::from(slot)) else {
            return slot;
        };
        *generation = generation.checked_add(1).unwrap_or(1);
        u16::from(*generation) * limits::QUEUE_PAIRS + slot
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

fn unknown(number: u16) -> ObjectError {
    ObjectError::Unknown {
        kind: ObjectKind::QueuePair,
        number: number.into(),
    }
}
