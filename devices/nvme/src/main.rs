//! `peerbar-nvme`: an NVMe controller at a vfio-user socket.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use peerbar_endpoint::daemon;
use peerbar_nvme::{Config, Controller, Source, StartError};

/// Exit status for a command line that cannot be (sysexits(3) has 64; clap and this project use 2).
const USAGE: u8 = 2;
/// Exit status for a machine that lacks something (sysexits(3), EX_UNAVAILABLE).
const ENVIRONMENT: u8 = 69;

/// An NVMe controller with a Controller Memory Buffer, served over vfio-user until SIGTERM.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Where QEMU connects to
    #[arg(long, value_name = "PATH")]
    socket_path: PathBuf,
    /// Serial number, 1 to 20 characters
    #[arg(long)]
    serial: String,
    /// Size of the Controller Memory Buffer, a multiple of 2M [default: none]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    cmb: Option<u64>,
    /// Let queues lie in the Controller Memory Buffer
    #[arg(long, requires = "cmb")]
    cmb_queues: bool,
    /// A namespace: ram=SIZE or file=PATH; repeat it for more
    #[arg(long = "namespace", value_name = "SOURCE", value_parser = source, required = true)]
    namespaces: Vec<Source>,
    /// Bytes in a logical block: 512 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    block_size: u32,
    /// Maximum data transfer size as a power of two of 4 KiB pages, 1 to 10
    #[arg(long, value_name = "POWER", default_value_t = 8)]
    mdts: u8,
}

fn main() -> ExitCode {
    let args = Args::parse();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    let path = args.socket_path.clone();
    match serve(&path, &Config::from(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let usage = error.downcast_ref().is_some_and(is_usage);
            eprintln!("peerbar-nvme: {error:#}");
            ExitCode::from(if usage { USAGE } else { ENVIRONMENT })
        }
    }
}

fn serve(path: &std::path::Path, config: &Config) -> anyhow::Result<()> {
    let mut controller = Controller::start(config)?;
    daemon::serve(path, &mut controller.endpoint)?;
    Ok(())
}

/// Whether the command line, not the machine, is at fault.
fn is_usage(error: &StartError) -> bool {
    use peerbar_nvme::ConfigError::{Cmb, Image, Ram};
    matches!(error, StartError::Config(error) if !matches!(error, Image(_) | Ram { .. } | Cmb(peerbar_nvme::CmbError::Memory { .. })))
}

impl From<Args> for Config {
    fn from(args: Args) -> Self {
        Self {
            serial: args.serial,
            cmb_bytes: args.cmb,
            cmb_queues: args.cmb_queues,
            block_bytes: args.block_size,
            mdts: args.mdts,
            namespaces: args.namespaces,
        }
    }
}

/// A size in bytes, with K, M, G or T for powers of 1024.
fn size(text: &str) -> Result<u64, String> {
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

fn source(text: &str) -> Result<Source, String> {
    match text.split_once('=') {
        Some(("ram", bytes)) => size(bytes).map(Source::Ram),
        Some(("file", path)) if !path.is_empty() => Ok(Source::File(path.into())),
        _ => Err("is neither ram=SIZE nor file=PATH".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("1g"), Ok(1 << 30));
        for wrong in ["", "M", "1.5M", "-1", "1X", "99999999T", "1MiB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_source_is_ram_or_a_file() {
        assert_eq!(source("ram=2M"), Ok(Source::Ram(2 << 20)));
        assert_eq!(source("file=a=b.img"), Ok(Source::File("a=b.img".into())));
        for wrong in ["", "ram", "ram=", "file=", "disk=x"] {
            assert!(source(wrong).is_err(), "{wrong}");
        }
    }
}
