//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use peerbar_lab::artifacts::Own;

/// Measures what the devices of peerbar can do.
#[derive(Parser)]
#[command(name = "peerbar-bench", version)]
pub(crate) struct Cli {
    /// What to measure.
    #[command(subcommand)]
    pub suite: Suite,
}

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum Suite {
    /// Drives the controller's server from the host, without a guest: rates, latencies, bandwidth.
    Host(HostOptions),
    /// Loads our controller and QEMU's own with fio, in turn in one guest.
    Guest(GuestOptions),
    /// Transfers between devices, beside the ways around: through guest RAM, and by messages through QEMU.
    P2p(GuestOptions),
    /// RDMA between the memories of GPUs, beside memcpy, guest RAM and the kernel's software RoCE.
    Rdma(GuestOptions),
    /// Boots a plain guest with an empty init and ours in turn, and compares the times until each is ready.
    Boot(BootOptions),
    /// Sets two results side by side.
    Compare {
        /// A results.json, or the folder that it is in.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
}

/// Drives the controller's server from the host.
#[derive(Args)]
pub(crate) struct HostOptions {
    /// How much.
    #[command(flatten)]
    pub extent: Extent,
    /// Words for the server's command line, separated by blanks, as `--server "--poll always"`.
    #[arg(
        long,
        value_name = "WORDS",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub server: String,
}

/// Loads controllers in a guest.
#[derive(Args)]
pub(crate) struct GuestOptions {
    /// How much.
    #[command(flatten)]
    pub extent: Extent,
    /// The user's own pieces.
    #[command(flatten)]
    pub own: Own,
}

/// How much to measure, and where results go.
#[derive(Args)]
pub(crate) struct Extent {
    /// Few figures, each measured once and short.
    #[arg(long)]
    pub quick: bool,
    /// Only figures with this in their name.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
    /// Folder that gets a folder for each measurement.
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub runs: PathBuf,
}

/// Boots a plain guest with an empty init and ours in turn.
#[derive(Args)]
pub(crate) struct BootOptions {
    /// Boots of each kind; one with `--quick`.
    #[arg(short = 'n', long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub boots: u32,
    /// How much, and in what guest.
    #[command(flatten)]
    pub guest: GuestOptions,
}
