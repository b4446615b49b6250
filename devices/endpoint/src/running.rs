//! A running device: its endpoint, and the thread of its engine.

use std::error::Error;
use std::io;
use std::thread::JoinHandle;

use peerbar_dma::MemoryError;
use peerbar_pci::{BarError, Function};
use peerbar_sandbox::Connections;
use peerbar_vfio_user::{Device, Options};
use thiserror::Error;

use crate::Endpoint;

/// Is called after fault rules may have changed.
pub type FaultObserver = Box<dyn Fn() + Send + Sync>;

/// A device that a daemon serves ([`crate::daemon::run`]).
pub trait Served {
    /// The function behind its endpoint.
    type Function: Function + 'static;

    /// Returns its endpoint on the bus.
    fn endpoint(&mut self) -> &mut Endpoint<Self::Function>;

    /// Returns the device that clients see.
    fn device(&mut self) -> &mut dyn Device;

    /// Returns the connections that it makes while it is served.
    fn connections(&self) -> Connections {
        Connections::None
    }

    /// Returns a function that is called after the fault rules may have changed.
    fn fault_observer(&self) -> FaultObserver {
        Box::new(|| {})
    }

    /// Is called before it is served, with the options of each session. Their stop ends the daemon.
    fn prepare(&mut self, _options: &mut Options) {}

    /// Returns the reason for which it can no longer be served, after it has ended the daemon.
    fn failure(&self) -> Option<Box<dyn Error>> {
        None
    }
}

/// The reason why a device cannot be started. `C` is the error of its configuration.
#[derive(Debug, Error)]
pub enum StartError<C: Error + 'static> {
    /// Its configuration is invalid.
    #[error(transparent)]
    Config(C),
    /// A BAR is invalid.
    #[error(transparent)]
    Bar(#[from] BarError),
    /// There is not enough memory for its doorbells.
    #[error("no memory for the doorbells")]
    Doorbells(#[source] MemoryError),
    /// The kernel offers no way to signal interrupts.
    #[error(
        "no context of asynchronous I/O (io_setup) for the interrupts: raise /proc/sys/fs/aio-max-nr, or allow it in the container"
    )]
    Interrupts(#[source] io::Error),
    /// One of its threads cannot be started.
    #[error("cannot start a thread of the device")]
    Thread(#[source] io::Error),
}

/// A running device. Its engine is stopped when this is dropped.
pub struct Running<F> {
    /// The device on its bus.
    pub endpoint: Endpoint<F>,
    /// The connections that the device makes while it is served.
    connections: Connections,
    stop: Box<dyn Fn() + Send>,
    engine: Option<JoinHandle<()>>,
}

impl<F> Running<F> {
    /// Starts the thread of a device's engine, which `stop` ends.
    pub fn start(
        endpoint: Endpoint<F>,
        engine: impl FnOnce() + Send + 'static,
        stop: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let thread = std::thread::Builder::new().name("engine".to_owned());
        Ok(Self {
            endpoint,
            connections: Connections::None,
            stop: Box::new(stop),
            engine: Some(thread.spawn(engine)?),
        })
    }

    /// Declares that the device connects to Unix sockets other than its switch's while it is
    /// served.
    pub fn with_unix_connections(mut self) -> Self {
        self.connections = Connections::Unix;
        self
    }
}

impl<F: Function + 'static> Served for Running<F> {
    type Function = F;

    fn endpoint(&mut self) -> &mut Endpoint<F> {
        &mut self.endpoint
    }

    fn device(&mut self) -> &mut dyn Device {
        &mut self.endpoint
    }

    fn connections(&self) -> Connections {
        self.connections
    }
}

impl<F> Drop for Running<F> {
    fn drop(&mut self) {
        (self.stop)();
        if self
            .engine
            .take()
            .is_some_and(|engine| engine.join().is_err())
        {
            log::error!("the device's engine has panicked");
        }
    }
}
