//! A GPU without a thread, for tests that need a deterministic order of events.

use std::sync::Arc;

use peerbar_dma::MemoryFile;
use peerbar_endpoint::{Endpoint, StartError};

use crate::config::{Config, ConfigError};
use crate::engine::Engine;
use crate::gpu::Gpu;

/// A GPU whose engine works when its caller tells it to.
pub struct SteppedGpu {
    /// The device on its bus.
    pub endpoint: Endpoint<Gpu>,
    engine: Engine,
}

impl SteppedGpu {
    /// Makes a GPU with VRAM that is all zero.
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

    /// Returns its memory.
    pub fn vram(&self) -> &Arc<MemoryFile> {
        self.engine.vram()
    }

    /// Lets the engine take its requests and execute commands until there is no work left.
    pub fn work(&mut self) {
        self.engine.work();
    }
}
