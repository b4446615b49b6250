//! The rest of a daemon's `main`: from a device to a socket that serves it until a signal comes.

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use peerbar_dma::{Bandwidth, Latency, Link, LinkSpeed, MemoryError};
use peerbar_pci::Function;
use peerbar_switch::AttachError;
use peerbar_vfio_user::{BindError, Device, ListenError, Listener, Options, Stop};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use thiserror::Error;

use crate::Endpoint;

/// Exit status for a command line that cannot be (sysexits(3) has 64; clap and this project use 2).
const USAGE: u8 = 2;
/// Exit status for a machine that lacks something (sysexits(3), EX_UNAVAILABLE).
const ENVIRONMENT: u8 = 69;

/// The device's PCIe link: a part of every daemon's command line.
#[derive(Clone, Debug, clap::Args)]
pub struct LinkOptions {
    /// Socket of the peerbar-switch that the device is below [default: none]
    #[arg(long, value_name = "PATH")]
    pub switch: Option<PathBuf>,
    /// Name of the device at the switch, of its own there [default: that of its socket, without the ending]
    #[arg(long, value_name = "NAME", requires = "switch")]
    pub port_name: Option<String>,
    /// Time that every transfer takes on the device's link, such as 2us [default: none]
    #[arg(long, value_name = "TIME")]
    pub link_latency: Option<Latency>,
    /// What the device's link carries in each direction, such as 4GiB/s [default: as much as can be]
    #[arg(long, value_name = "RATE")]
    pub link_bandwidth: Option<Bandwidth>,
    /// Offer address translation services (ATS): the device asks for translations and keeps them, if the guest wants it
    #[arg(long)]
    pub ats: bool,
}

/// Why a device has no link.
#[derive(Debug, Error)]
pub enum LinkError {
    /// Its link's meters could not be made.
    #[error("cannot make the meters of the link")]
    Link(#[from] MemoryError),
    /// It cannot attach to its switch.
    #[error(transparent)]
    Switch(#[from] AttachError),
}

impl LinkOptions {
    /// Gives the link to a device that will be served at `socket_path`.
    pub fn apply<F: Function + 'static>(
        &self,
        endpoint: &mut Endpoint<F>,
        socket_path: &Path,
    ) -> Result<(), LinkError> {
        let speed = LinkSpeed {
            latency: self.link_latency.unwrap_or_default(),
            bandwidth: self.link_bandwidth,
        };
        if speed.takes_time() {
            endpoint.set_link(Link::new(speed)?);
        }
        if self.ats {
            endpoint.offer_ats();
        }
        let Some(switch) = &self.switch else {
            return Ok(());
        };
        let name = self.port_name.clone().unwrap_or_else(|| {
            let stem = socket_path.file_stem().unwrap_or_default();
            stem.to_string_lossy().into_owned()
        });
        Ok(endpoint.attach_to_switch(switch, &name)?)
    }
}

/// The cause of a daemon's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The command line.
    Usage,
    /// The machine.
    Environment,
}

/// Why a device is not served, or not any more.
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

/// Says in one line on standard error why `daemon` ends, causes included, and gives the exit status for it.
pub fn give_up(daemon: &str, error: &dyn Error, fault: Fault) -> ExitCode {
    let mut line = format!("{daemon}: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(&format!(": {error}"));
        cause = error.source();
    }
    eprintln!("{line}");
    ExitCode::from(match fault {
        Fault::Usage => USAGE,
        Fault::Environment => ENVIRONMENT,
    })
}

/// A size in bytes on the command line, with K, M, G or T for powers of 1024. The message continues after the value.
pub fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().next_back() {
        Some((end, unit)) if unit.is_ascii_alphabetic() => {
            let shift = match unit.to_ascii_uppercase() {
                'K' => 10,
                'M' => 20,
                'G' => 30,
                'T' => 40,
                _ => return Err(format!("unit {unit} is none of K, M, G, T")),
            };
            (text.get(..end).unwrap_or_default(), shift)
        }
        _ => (text, 0),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "is no number with an optional K, M, G or T".to_owned())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "is more than 2^64 bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_with_binary_unit_is_parsed() {
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("1g"), Ok(1 << 30));
        for wrong in ["", "M", "1.5M", "-1", "1X", "99999999T", "1MiB", "8\u{fc}"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
