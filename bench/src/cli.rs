//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use peerbar_lab::artifacts::Own;

/// Measure the performance of peerbar's devices.
#[derive(Parser)]
#[command(name = "peerbar-bench", version)]
pub(crate) struct Cli {
    /// The suite to run.
    #[command(subcommand)]
    pub suite: Suite,
}

/// The suite to run.
#[derive(Subcommand)]
pub(crate) enum Suite {
    /// Drive the controller's server from the host, without a guest: rates, latencies, bandwidth.
    Host(HostOptions),
    /// Load our controller and QEMU's own with fio, in turn in one guest.
    Guest(GuestOptions),
    /// Measure transfers between devices, compared with those through guest RAM and by messages
    /// through QEMU.
    P2p(GuestOptions),
    /// Measure RDMA between GPUs' memory, compared with memcpy, guest RAM and the kernel's software
    /// RoCE.
    Rdma(GuestOptions),
    /// Boot a plain guest with an empty init and ours in turn, and compare the times until each is
    /// ready.
    Boot(BootOptions),
    /// Compare two results.
    Compare {
        /// A results.json, or its folder.
        first: PathBuf,
        /// The other results.json, or its folder.
        second: PathBuf,
    },
}

/// Drive the controller's server from the host.
#[derive(Args)]
pub(crate) struct HostOptions {
    /// Extent of the measurement.
    #[command(flatten)]
    pub extent: Extent,
    /// Further arguments of the server, separated by blanks, as `--server "--poll always"`.
    #[arg(
        long,
        value_name = "WORDS",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub server: String,
}

/// Load controllers in a guest.
#[derive(Args)]
pub(crate) struct GuestOptions {
    /// Extent of the measurement.
    #[command(flatten)]
    pub extent: Extent,
    /// The user's own QEMU, kernel and the like.
    #[command(flatten)]
    pub own: Own,
}

/// Extent of a measurement, and the folder for results.
#[derive(Args)]
pub(crate) struct Extent {
    /// Measure few figures, each once and for a short time.
    #[arg(long)]
    pub quick: bool,
    /// Measure only figures with this in their name.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
    /// Folder for the folders of the measurements.
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub runs: PathBuf,
}

/// Boot a plain guest with an empty init and ours in turn.
#[derive(Args)]
pub(crate) struct BootOptions {
    /// Number of boots of each kind; one with `--quick`.
    #[arg(short = 'n', long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub boots: u32,
    /// Extent of the measurement, and its guest.
    #[command(flatten)]
    pub guest: GuestOptions,
}
