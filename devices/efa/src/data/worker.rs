//! The worker: one thread that takes doorbells and gives each queue pair a slice in turn.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

use super::local::Local;
use super::peers::Peers;
use super::statistics::Statistics;
use super::turn::Turn;
use crate::doorbells::{Doorbells, Rung};
use crate::memory_bar::Doorbell;
use crate::objects::{Objects, QueuePair};

/// The worker of an adapter.
pub(crate) struct Worker {
    pub(super) objects: Arc<Mutex<Objects>>,
    pub(super) doorbells: Arc<Doorbells>,
    pub(super) statistics: Arc<Mutex<Statistics>>,
    pub(super) local: Local,
    pub(super) peers: Peers,
    /// Takes work requests of a queue pair out of their order, if set.
    pub(super) order: Option<fastrand::Rng>,
}

/// The worker's next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextTurn {
    /// Another turn at once.
    AtOnce,
    /// Wait for a doorbell, or until this time.
    Wait(Option<Instant>),
}

impl Worker {
    /// Works until it is stopped.
    pub(crate) fn run(mut self) {
        while !self.doorbells.is_stopped() {
            if let NextTurn::Wait(until) = self.turn(Instant::now()) {
                // Packets wait, too, while nothing can be written to memory.
                let is_on = self.local.transfers.is_bus_master();
                let wire = self.peers.wire.get().filter(|_| is_on);
                self.doorbells
                    .wait(wire.and_then(|wire| wire.readable()), until);
            }
        }
    }

    /// Takes the doorbells, and gives the next queue pair a slice if bus mastering is on. Then
    /// releases the lock of the objects, so that another thread waits for at most one slice.
    pub(crate) fn turn(&mut self, now: Instant) -> NextTurn {
        let has_bus_back = self.local.transfers.begin_turn();
        let mut objects = self.objects.lock();
        let mut turn = Turn {
            objects: &mut objects,
            local: &mut self.local,
            peers: &mut self.peers,
            order: self.order.as_mut(),
            now,
        };
        turn.end_dropped();
        turn.take_doorbells(&self.doorbells);
        if has_bus_back {
            turn.completions().write_kept();
        }
        let next = match turn.local.transfers.is_bus_master() {
            true => turn.go_on(),
            false => NextTurn::Wait(None),
        };
        self.local.transfers.session.release();
        *self.statistics.lock() = Statistics {
            bounced_bytes: self.local.transfers.bounced,
            refused_buffers: self.peers.staging.refusals,
            ..self.local.statistics
        };
        MutexGuard::unlock_fair(objects);
        next
    }
}

impl Turn<'_> {
    /// Takes mail, and gives the next queue pair a slice.
    fn go_on(&mut self) -> NextTurn {
        self.take_mail();
        let ready = self.objects.queue_pairs.next_ready();
        if let Some(pair) = ready.filter(|pair| self.serve(*pair)) {
            self.objects.queue_pairs.make_ready(pair);
        }
        self.next()
    }

    fn take_doorbells(&mut self, doorbells: &Doorbells) {
        doorbells.take(|rung| match rung {
            Rung::Doorbell(Doorbell::Completion(queue), value) => {
                self.completions().take_completion_doorbell(queue, value);
            }
            Rung::Doorbell(Doorbell::Send(slot), value) => {
                let posted = |pair: &mut QueuePair| pair.send.set_posted(value);
                self.objects.queue_pairs.change(slot, posted);
            }
            Rung::Doorbell(Doorbell::Receive(slot), value) => {
                let posted = |pair: &mut QueuePair| pair.receive.set_posted(value);
                self.objects.queue_pairs.change(slot, posted);
            }
            Rung::Changed(slot) => self.objects.queue_pairs.change(slot, |_| {}),
            Rung::EventQueue(number) => self.completions().arm_event_queue(number),
        });
    }

    /// Returns the worker's next action. A queue pair whose work requests wait is ready again when
    /// the first of them is due.
    fn next(&mut self) -> NextTurn {
        let first = self.objects.queue_pairs.make_due_ready(self.now);
        let is_idle = self.peers.mailbox.is_empty() && !self.peers.staging.can_wake();
        if is_idle && !self.objects.queue_pairs.has_ready() {
            NextTurn::Wait(first)
        } else {
            NextTurn::AtOnce
        }
    }
}
