//! `peerbar-efa`: an Elastic Fabric Adapter at a vfio-user socket.

use std::process::ExitCode;

use clap::Parser;
use peerbar_efa::{AttachError, Config, ConfigError, Efa};
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
    let fault = |error: &ConfigError| match error {
        ConfigError::Gid(_) | ConfigError::Fabric(AttachError::Name(_)) => Fault::Usage,
        ConfigError::Fabric(_) => Fault::Environment,
    };
    daemon::run("peerbar-efa", &device, &[], || Efa::start(&config), fault)
}
