//! The daemon as a process behind its socket: with an independent client, with a client of
//! hand-made bytes that answers the daemon's requests for memory as a test chooses, and with
//! invalid command lines.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test panics if it fails, and its numbers are small"
)]

mod cmb_legacy;
mod command_line;
mod errant;
mod faults;
mod flight;
mod foreign;
mod hostile;
mod lifetime;
mod lingering;
mod pmr;
mod process;
mod requests;
mod resampling;
mod sgls;
mod silent_file;
mod spdk;

use peerbar_rig::nvme::{self, Driver};
use peerbar_rig::{Client, Daemon, Guest};

/// Status of a completion as Linux has it, without phase, More and Do Not Retry.
const SUCCESS: u16 = 0;

/// The driver of a daemon's controller.
type DaemonDriver = Driver<Guest<Client>>;

/// Connects to a daemon, and lends it guest RAM.
#[track_caller]
fn connect(daemon: &Daemon) -> Guest<Client> {
    nvme::connect(daemon.socket())
}

/// Connects to a daemon, and brings its controller up.
#[track_caller]
fn driver(daemon: &Daemon) -> DaemonDriver {
    Driver::enabled(connect(daemon))
}
