//! An adapter without threads of its own, for tests that must know what happens when.

use std::time::Instant;

use peerbar_endpoint::Endpoint;

use crate::data::{NextTurn, Worker};
use crate::efa::Efa;
use crate::engine::Engine;

/// Turns of the worker in one go: a long transfer goes on in the next one.
const TURNS: usize = 64;

/// An adapter whose engine and worker work when its caller has them work.
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

    /// Has the engine carry out all admin commands, then the worker a number of slices, of which each takes place at `now`: no
    /// outcome depends on how fast the machine is.
    pub fn work(&mut self, now: Instant) {
        self.engine.work();
        if let Some(worker) = &mut self.worker {
            let mut turns = (0..TURNS).map(|_| worker.turn(now));
            turns.find(|next| matches!(next, NextTurn::Wait(_)));
        }
    }
}
