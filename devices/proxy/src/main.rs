//! `peerbar-proxy`: another project's vfio-user server below a switch of ours.

use std::process::ExitCode;

use clap::Parser;
use peerbar_endpoint::DeviceOptions;
use peerbar_endpoint::daemon::{self, Fault};
use peerbar_proxy::{Config, Proxy, ProxyError};

/// The device of another project's vfio-user server, served over vfio-user until SIGTERM.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    device: DeviceOptions,
    #[command(flatten)]
    config: Config,
}

fn main() -> ExitCode {
    let Args { device, mut config } = Args::parse();
    config.count_all |= device.records_all();
    let start = || match device.offers_ats() {
        true => Err(ProxyError::Ats.into()),
        false => Proxy::start(&config),
    };
    daemon::run("peerbar-proxy", &device, &[], start, |error| match error {
        ProxyError::Ats => Fault::Usage,
        _ => Fault::Environment,
    })
}
