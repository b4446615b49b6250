//! An adapter without threads, for tests that control the order of events.

use std::time::Instant;

use peerbar_endpoint::Endpoint;

use crate::data::{NextTurn, Worker};
use crate::efa::Efa;
use crate::engine::Engine;

/// Turns of the worker in one call: a long transfer continues in the next one.
const TURNS: usize = 64;

/// An adapter whose engine and worker run only when its caller calls them.
pub struct SteppedEfa {
    /// The device on its bus.
    pub endpoint: Endpoint<Efa>,
    engine: Engine,
    worker: Option<Worker>,
}

impl SteppedEfa {
    pub(crate) fn new(endpoint: Endpoint<Efa>, engine: Engine, worker: Option<Worker>) -> Self {
        Self {
            endpoint,
            engine,
            worker,
        }
    }

    /// Lets the engine execute all admin commands, then lets the worker take a number of slices.
    /// Every slice takes place at `now`, so no outcome depends on the speed of the machine.
    pub fn work(&mut self, now: Instant) {
        self.engine.work();
        if let Some(worker) = &mut self.worker {
            let mut turns = (0..TURNS).map(|_| worker.turn(now));
            turns.find(|next| matches!(next, NextTurn::Wait(_)));
        }
    }
}
