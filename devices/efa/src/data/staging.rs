//! Staging buffers, as the worker shares them and copies payload through their slots.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use peerbar_dma::{Span, Tag};
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_fabric::SendError;

use super::remote::InFlight;
use super::transfers::StagingError;
use super::turn::Turn;
use super::wire::Token;
use crate::objects::{BusSegment, Gid};
use crate::work::packet::{self, Packet, Refusal, Verb};

impl Turn<'_> {
    /// Returns `true` if payload to that adapter goes through a staging buffer, which is shared
    /// first if necessary.
    pub(super) fn stages(&mut self, gid: Gid) -> bool {
        let Some(wire) = self.state.wire.get() else {
            return false;
        };
        let ask = || {
            self.state.transfers.session.release();
            wire.shares_memory(gid)
        };
        let stages = self.state.staging.stages(gid, self.now, ask);
        if stages.is_none() {
            self.share_buffer(gid);
        }
        stages == Some(true)
    }

    /// Wakes work requests that wait for free slots. They run before all others.
    pub(super) fn wake_slot_waiters(&mut self) {
        let wake = |pair, gid| {
            let pair = self.objects.queue_pairs.get_mut(pair);
            pair.is_ok_and(|pair| pair.jobs.wake_slot_waiter(gid))
        };
        let woken = self.state.staging.wake_waiters(wake);
        for pair in woken.into_iter().rev() {
            self.objects.queue_pairs.make_ready_first(pair);
        }
    }

    /// Shares a new buffer with an adapter. Payload goes in packets until the adapter confirms the
    /// buffer.
    fn share_buffer(&mut self, gid: Gid) {
        let Some((number, fd)) = self.state.staging.new_buffer(gid) else {
            return;
        };
        self.state.transfers.session.release();
        let token = Token(self.state.next_id());
        let packet = Packet::of_adapter(Verb::Share, number.into()).encode(&[]);
        let wire = self.state.wire.get().ok_or(SendError::Lost);
        match wire.and_then(|wire| wire.request(gid, &packet, vec![Arc::new(fd)], token)) {
            Ok(()) => drop(
                self.state
                    .sent
                    .insert(token, InFlight::Buffer { gid, number }),
            ),
            Err(_) => self.state.staging.give_up(gid, self.now),
        }
    }

    /// Takes a buffer that another adapter shares.
    pub(super) fn share_arrived(
        &mut self,
        packet: &Packet,
        from: Gid,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Vec<u8>, Refusal> {
        let shares = self.state.wire.get();
        let shares = shares.is_some_and(|wire| wire.shares_memory(from));
        let fd = descriptors.into_iter().next().filter(|_| shares);
        let number = u32::try_from(packet.part.address).ok();
        let taken = number
            .zip(fd)
            .is_some_and(|(number, fd)| self.state.staging.take_buffer(from, number, fd));
        taken.then(|| packet::done(&[])).ok_or(Refusal::NotStaged)
    }

    /// Copies payload from a slot into memory. The status says that the memory cannot be written.
    pub(super) fn take_from_slot(
        &mut self,
        tag: Tag,
        slot: &Span,
        to: &[BusSegment],
        status: CompletionStatus,
    ) -> Result<(), Refusal> {
        let copied = self.state.transfers.take_from(tag, slot, to);
        self.staged(copied, to, status)
    }

    /// Copies memory into a slot. The status says that the memory cannot be read.
    pub(super) fn put_into_slot(
        &mut self,
        tag: Tag,
        from: &[BusSegment],
        slot: &Span,
        status: CompletionStatus,
    ) -> Result<(), Refusal> {
        let copied = self.state.transfers.put_into(tag, from, slot);
        self.staged(copied, from, status)
    }

    fn staged(
        &mut self,
        copied: Result<(), StagingError>,
        segments: &[BusSegment],
        status: CompletionStatus,
    ) -> Result<(), Refusal> {
        self.state.transfers.session.release();
        self.state.staged += super::transfers::total(segments) as u64;
        copied.map_err(|error| match error {
            StagingError::Memory => status.into(),
            StagingError::Slot => Refusal::NotStaged,
        })
    }
}
