//! `peerbar-gpu`: a GPU at a vfio-user socket.

use std::process::ExitCode;

use clap::Parser;
use peerbar_endpoint::DeviceOptions;
use peerbar_endpoint::daemon::{self, Fault};
use peerbar_gpu::{Config, ConfigError, Gpu};

/// A GPU whose memory is a PCI BAR, served over vfio-user until SIGTERM.
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
        ConfigError::Memory { .. } => Fault::Environment,
        _ => Fault::Usage,
    };
    daemon::run("peerbar-gpu", &device, &[], || Gpu::start(&config), fault)
}
