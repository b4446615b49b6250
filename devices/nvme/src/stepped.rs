//! A controller without threads, for tests that need a deterministic order of events.

use std::io;

use peerbar_dma::{MemoryError, MemoryFile};
use peerbar_endpoint::{Endpoint, StartError};
use peerbar_file_ring::RingFile;

use crate::config::{Config, ConfigError};
use crate::controller::Controller;
use crate::engine::Engine;
use crate::namespace::{Backend, DirectAccess, Namespace};
use crate::worker_pool::WorkerPool;

/// A controller whose engine and workers run on the caller's thread, when the caller calls them.
pub struct SteppedController {
    /// The device on its bus.
    pub endpoint: Endpoint<Controller>,
    engine: Engine,
}

impl SteppedController {
    /// Makes a controller with namespaces on these disks, then those of `config`.
    ///
    /// # Errors
    /// Those of [`Controller::start`].
    pub fn start(
        config: &Config,
        disks: Vec<Box<dyn Disk>>,
    ) -> Result<Self, StartError<ConfigError>> {
        let mut opened = config.open().map_err(StartError::Config)?;
        let mut namespaces = Vec::new();
        for disk in disks {
            let disk = backend(disk).map_err(StartError::Doorbells)?;
            let is_shared = config.workers > 1;
            namespaces.push(Namespace::new(disk, config.block_bytes, is_shared));
        }
        namespaces.append(&mut opened.namespaces);
        opened.namespaces = namespaces;
        let (endpoint, function) = Controller::assemble(config, &mut opened)?;
        let engine = function.engine(config, opened, |notifier, count, make| {
            Ok(WorkerPool::stepped(notifier, count, make))
        });
        let engine = engine.map_err(StartError::Thread)?;
        Ok(Self { endpoint, engine })
    }

    /// Lets engine and workers take requests and execute commands until they have nothing left to
    /// do.
    pub fn work(&mut self) {
        self.engine.work();
    }

    /// Forgets that the disks have lost data, as a restart of the server does.
    pub fn renew_disks(&mut self) {
        for namespace in &self.engine.storage.namespaces {
            namespace.syncs().forgive();
        }
    }
}

/// The storage of a namespace, such as an image of the host. Offsets and lengths are bytes inside
/// its size.
pub trait Disk: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// Fills `data` from `offset` on.
    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()>;
    /// Stores `data` from `offset` on.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Makes a range, an offset and a length, read as zero.
    fn zero(&self, range: (u64, u64)) -> io::Result<()>;
    /// Brings every completed write to stable storage.
    fn flush(&self) -> io::Result<()>;
}

/// A disk as a backend. Data goes through the controller's buffer, like that of an image on a
/// kernel without io_uring.
fn backend(disk: Box<dyn Disk>) -> Result<Box<dyn Backend>, MemoryError> {
    const SIZE: u64 = 4096;
    let file = MemoryFile::create("disk", SIZE)?;
    let file = file.file().try_clone().map_err(|source| MemoryError::Os {
        action: "duplicate its descriptor",
        size: SIZE,
        source,
    })?;
    Ok(Box::new(DiskBackend {
        disk,
        file: RingFile::new(file),
    }))
}

struct DiskBackend {
    disk: Box<dyn Disk>,
    /// A placeholder for the image. Without io_uring it is neither read nor written.
    file: RingFile,
}

impl Backend for DiskBackend {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn direct(&self) -> DirectAccess<'_> {
        DirectAccess::File(&self.file)
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, data)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.write(offset, data)
    }

    fn zero(&self, range: (u64, u64), _deallocate: bool) -> io::Result<()> {
        self.disk.zero(range)
    }

    fn flush(&self) -> io::Result<()> {
        self.disk.flush()
    }
}
