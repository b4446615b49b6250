//! An adapter without threads, for tests that control the order of events.

use std::sync::Arc;
use std::time::Instant;

use peerbar_endpoint::{Endpoint, StartError, Vectors};

use crate::config::{Config, ConfigError};
use crate::data::{DataPath, NextTurn, Worker};
use crate::efa::{Efa, VECTORS, setup};
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

impl Efa {
    /// Makes an adapter without a fabric, whose engine and worker run only when its caller calls
    /// them.
    pub fn stepped(config: &Config) -> Result<SteppedEfa, StartError<ConfigError>> {
        let gid = config.gid().map_err(StartError::Config)?;
        let vectors = Arc::new(Vectors::new(VECTORS).map_err(StartError::Interrupts)?);
        let setup = setup(config, gid, vectors.clone())?;
        let mut worker = None;
        let efa = Self::new(setup, |setup| {
            let (data, other) = DataPath::parts(setup).map_err(StartError::Thread)?;
            worker = Some(other);
            Ok::<_, StartError<ConfigError>>(data)
        })?;
        Ok(SteppedEfa {
            engine: efa.engine(gid),
            endpoint: efa.on_bus(vectors)?,
            worker,
        })
    }
}

impl SteppedEfa {
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
