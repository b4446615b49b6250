//! The rest of a daemon's `main`: from a device to a socket that serves it until a signal comes.

use std::io::{self, Write};
use std::path::Path;

use peerbar_vfio_user::{BindError, Device, ListenError, Listener, Options, Stop};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use thiserror::Error;

/// Why a device is not, or no longer, served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The socket cannot be made.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// No further client can be accepted.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Signals cannot be handled, or standard output is gone.
    #[error("cannot set the daemon up")]
    SetUp(#[from] io::Error),
}

/// Serves a device at `socket_path`, to one client after another, until SIGTERM or SIGINT. Writes the line `ready` to
/// standard output once clients can connect.
pub fn serve(socket_path: &Path, device: &mut dyn Device) -> Result<(), ServeError> {
    let stop = Stop::new().map_err(io::Error::from)?;
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let handle = signals.handle();
    let triggered = stop.clone();
    let watcher = std::thread::spawn(move || signals.forever().for_each(|_| triggered.trigger()));
    let listener = Listener::bind(socket_path)?;
    let mut out = io::stdout();
    writeln!(out, "ready").and_then(|()| out.flush())?;
    let served = listener.run(device, &Options::new(stop));
    handle.close();
    if watcher.join().is_err() {
        log::error!("the thread that waits for signals has panicked");
    }
    Ok(served?)
}
