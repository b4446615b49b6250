//! A GPU without a thread of its own, for tests that must know what happens when.

use std::sync::Arc;

use peerbar_dma::MemoryFile;
use peerbar_endpoint::{Endpoint, StartError};

use crate::config::{Config, ConfigError};
use crate::engine::Engine;
use crate::gpu::Gpu;

/// A GPU whose engine works when its caller has it work.
pub struct SteppedGpu {
    /// The device on its bus.
    pub endpoint: Endpoint<Gpu>,
    engine: Engine,
}

impl SteppedGpu {
    /// A GPU with VRAM that is all zero.
    ///
    /// # Errors
    /// Those of [`Gpu::start`].
    pub fn start(config: &Config) -> Result<Self, StartError<ConfigError>> {
        let assembled = Gpu::assemble(config)?;
        Ok(Self {
            endpoint: assembled.endpoint,
            engine: assembled.engine,
        })
    }

    /// Its memory.
    pub fn vram(&self) -> &Arc<MemoryFile> {
        self.engine.vram()
    }

    /// Has the engine take its requests and carry out commands until there is nothing left to do.
    pub fn work(&mut self) {
        self.engine.work();
    }
}
