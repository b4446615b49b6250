//! `peerbar-efa`: an Elastic Fabric Adapter at a vfio-user socket.

use std::process::ExitCode;

use clap::Parser;
use peerbar_efa::{Config, Efa};
use peerbar_endpoint::DeviceOptions;
use peerbar_endpoint::daemon::{self, Fault};

/// An Elastic Fabric Adapter (EFA), served over vfio-user until SIGTERM.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    device: DeviceOptions,
    #[command(flatten)]
    config: Config,
}

fn main() -> ExitCode {
    let Args { device, config } = Args::parse();
    daemon::run(
        "peerbar-efa",
        &device,
        &[],
        || Efa::start(&config),
        |_| Fault::Usage,
    )
}
