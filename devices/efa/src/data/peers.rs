//! The other adapters: the wire to them, the staging buffers, and the requests that they have not
//! answered yet.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use peerbar_dma::Session;
use peerbar_fabric::SendError;

use super::wire::{Mailbox, Token, Wire};
use crate::objects::{Gid, QueuePairs};
use crate::work::packet::{self, Packet, Refusal, Verb};
use crate::work::request::Part;
use crate::work::staging::{Slot, Staging};

/// The other adapters.
pub(super) struct Peers {
    /// The way to them, once there is one.
    pub(super) wire: Arc<OnceLock<Arc<dyn Wire>>>,
    /// Mail from there.
    pub(super) mailbox: Arc<Mailbox>,
    /// The staging buffers that this adapter shares with them.
    pub(super) staging: Staging,
    /// Unanswered requests.
    pub(super) in_flight: HashMap<Token, InFlight>,
    /// Number of jobs and requests so far.
    ids: u64,
}

/// An unanswered request to another adapter.
#[derive(Debug)]
pub(super) enum InFlight {
    /// A packet of a work request.
    Packet(SentPacket),
    /// A staging buffer.
    Buffer { gid: Gid, number: u32 },
}

/// An unanswered packet of a work request.
#[derive(Debug)]
pub(super) struct SentPacket {
    pub(super) pair: u16,
    pub(super) job: u64,
    pub(super) gid: Gid,
    pub(super) verb: Verb,
    /// The part of the transfer.
    pub(super) part: Part,
    /// The slot of its payload.
    pub(super) slot: Option<Slot>,
}

impl Peers {
    pub(super) fn new(wire: Arc<OnceLock<Arc<dyn Wire>>>, mailbox: Arc<Mailbox>) -> Self {
        Self {
            wire,
            mailbox,
            staging: Staging::default(),
            in_flight: HashMap::new(),
            ids: 0,
        }
    }

    /// Returns a number that has not been used.
    pub(super) fn next_id(&mut self) -> u64 {
        self.ids = self.ids.wrapping_add(1);
        self.ids
    }

    /// Sends a request to an adapter. Its answer has the token that this returns.
    pub(super) fn request(
        &mut self,
        gid: Gid,
        data: &[u8],
        descriptors: Vec<Arc<OwnedFd>>,
    ) -> Result<Token, SendError> {
        let token = Token(self.next_id());
        let wire = self.wire.get().ok_or(SendError::Lost)?;
        wire.request(gid, data, descriptors, token)?;
        Ok(token)
    }

    /// Returns `true` if memory may be shared with an adapter.
    fn shares_memory(&self, gid: Gid) -> bool {
        let wire = self.wire.get();
        wire.is_some_and(|wire| wire.shares_memory(gid))
    }

    /// Returns `true` if payload to that adapter goes through a staging buffer, which is shared
    /// first if necessary.
    pub(super) fn stages(&mut self, gid: Gid, session: &mut Session, now: Instant) -> bool {
        let Some(wire) = self.wire.get() else {
            return false;
        };
        let ask = || {
            session.release();
            wire.shares_memory(gid)
        };
        let stages = self.staging.stages(gid, now, ask);
        if stages.is_none() {
            session.release();
            self.share_buffer(gid, now);
        }
        stages == Some(true)
    }

    /// Shares a new buffer with an adapter. Payload goes in packets until the adapter confirms the
    /// buffer.
    fn share_buffer(&mut self, gid: Gid, now: Instant) {
        let Some((number, fd)) = self.staging.new_buffer(gid) else {
            return;
        };
        let mut packet = Packet {
            verb: Verb::Share,
            ..Packet::default()
        };
        packet.part.address = number.into();
        match self.request(gid, &packet.encode(&[]), vec![Arc::new(fd)]) {
            Ok(token) => {
                let buffer = InFlight::Buffer { gid, number };
                self.in_flight.insert(token, buffer);
            }
            Err(_) => self.staging.give_up(gid, number, now),
        }
    }

    /// Takes a buffer that another adapter shares.
    pub(super) fn share_arrived(
        &mut self,
        packet: &Packet,
        from: Gid,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Vec<u8>, Refusal> {
        let shares = self.shares_memory(from);
        let fd = descriptors.into_iter().next().filter(|_| shares);
        let number = u32::try_from(packet.part.address).ok();
        let taken = number
            .zip(fd)
            .is_some_and(|(number, fd)| self.staging.take_buffer(from, number, fd));
        taken.then(|| packet::done(&[])).ok_or(Refusal::NotStaged)
    }

    /// Wakes work requests that wait for free slots. They run before all others.
    pub(super) fn wake_slot_waiters(&mut self, pairs: &mut QueuePairs) {
        let woken = self.staging.wake_waiters(|pair, gid| {
            let pair = pairs.get_mut(pair);
            pair.is_ok_and(|pair| pair.jobs.wake_slot_waiter(gid))
        });
        for pair in woken.into_iter().rev() {
            pairs.make_ready_first(pair);
        }
    }
}
