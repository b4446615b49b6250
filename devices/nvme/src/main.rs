//! `peerbar-nvme`: an NVMe controller at a vfio-user socket.

use std::process::ExitCode;

use clap::Parser;
use peerbar_endpoint::DeviceOptions;
use peerbar_endpoint::daemon::{self, Fault};
use peerbar_nvme::{CmbError, Config, ConfigError, Controller, PmrError};

/// An NVMe controller with a Controller Memory Buffer and a Persistent Memory Region, served over
/// vfio-user until SIGTERM.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    device: DeviceOptions,
    #[command(flatten)]
    config: Config,
}

fn main() -> ExitCode {
    use ConfigError::{Cmb, Image, Pmr, Ram};
    let Args { device, config } = Args::parse();
    let fault = |error: &ConfigError| match error {
        Pmr(PmrError::Size { .. }) => Fault::Usage,
        Pmr(_) | Image(_) | Ram { .. } | Cmb(CmbError::Memory { .. }) => Fault::Environment,
        _ => Fault::Usage,
    };
    daemon::run(
        "peerbar-nvme",
        &device,
        &config.files(),
        || Controller::start(&config),
        fault,
    )
}
