//! `peerbar-nvme`: an NVMe controller at a vfio-user socket.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use peerbar_endpoint::Recording;
use peerbar_endpoint::daemon::{self, Fault, LinkOptions, size};
use peerbar_nvme::{CmbError, Config, Controller, PollPolicy, SeededFault, Source, StartError};

/// An NVMe controller with a Controller Memory Buffer, served over vfio-user until SIGTERM.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Where QEMU connects to
    #[arg(long, value_name = "PATH")]
    socket_path: PathBuf,
    #[command(flatten)]
    link: LinkOptions,
    #[command(flatten)]
    recording: Recording,
    /// Serial number, 1 to 20 characters
    #[arg(long)]
    serial: String,
    /// Size of the Controller Memory Buffer, a multiple of 2M [default: none]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    cmb: Option<u64>,
    /// Let queues lie in the Controller Memory Buffer
    #[arg(long, requires = "cmb")]
    cmb_queues: bool,
    /// A namespace: ram=SIZE, file=PATH or null=SIZE, which drops what is written and whose reads transfer nothing; repeat
    /// it for more
    #[arg(long = "namespace", value_name = "SOURCE", value_parser = source, required = true)]
    namespaces: Vec<Source>,
    /// Bytes in a logical block: 512 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    block_size: u32,
    /// Maximum data transfer size as a power of two of 4 KiB pages, 1 to 10
    #[arg(long, value_name = "POWER", default_value_t = 8)]
    mdts: u8,
    /// Threads that share the I/O queues, 1 to 64
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    workers: u8,
    /// Poll policy of those threads: never (block when idle), adaptive (poll or sleep for a short time, then block), or always
    #[arg(long, value_name = "POLICY", default_value_t)]
    poll: PollPolicy,
    /// Read and write images by system calls, one command of a worker after the other, as where the kernel has no io_uring
    #[arg(long)]
    no_io_uring: bool,
    /// Do commands that start at this logical block wrong, to test the checks that find faults. KIND is unmapped,
    /// beyond-52-bits, wraps, after-unmap or past-end (a wrong address), or write-back (writes zeros where it should read);
    /// repeat it for more
    #[arg(long = "seed-fault", value_name = "KIND:BLOCK")]
    seeded_faults: Vec<SeededFault>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    let (path, link) = (args.socket_path.clone(), args.link.clone());
    let recording = args.recording.clone();
    match serve(&path, &link, &recording, &Config::from(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let fault = error.downcast_ref().map_or(Fault::Environment, fault);
            daemon::give_up("peerbar-nvme", error.as_ref(), fault)
        }
    }
}

fn serve(
    path: &std::path::Path,
    link: &LinkOptions,
    recording: &Recording,
    config: &Config,
) -> anyhow::Result<()> {
    let mut controller = Controller::start(config)?;
    recording.start(&controller.endpoint)?;
    link.apply(&mut controller.endpoint, path)?;
    daemon::serve(path, &mut controller.endpoint)?;
    Ok(())
}

/// Whether the command line or the machine is at fault.
fn fault(error: &StartError) -> Fault {
    use peerbar_nvme::ConfigError::{Cmb, Image, Ram};
    match error {
        StartError::Config(Image(_) | Ram { .. } | Cmb(CmbError::Memory { .. })) => {
            Fault::Environment
        }
        StartError::Config(_) => Fault::Usage,
        StartError::Bar(_) | StartError::Doorbells(_) | StartError::Thread(_) => Fault::Environment,
    }
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
            workers: args.workers,
            poll: args.poll,
            io_uring: !args.no_io_uring,
            seeded_faults: args.seeded_faults,
        }
    }
}

fn source(text: &str) -> Result<Source, String> {
    match text.split_once('=') {
        Some(("ram", bytes)) => size(bytes).map(Source::Ram),
        Some(("null", bytes)) => size(bytes).map(Source::Null),
        Some(("file", path)) if !path.is_empty() => Ok(Source::File(path.into())),
        _ => Err("is none of ram=SIZE, file=PATH and null=SIZE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_is_ram_a_file_or_null() {
        assert_eq!(source("ram=2M"), Ok(Source::Ram(2 << 20)));
        assert_eq!(source("null=1G"), Ok(Source::Null(1 << 30)));
        assert_eq!(source("file=a=b.img"), Ok(Source::File("a=b.img".into())));
        for wrong in ["", "ram", "ram=", "file=", "disk=x"] {
            assert!(source(wrong).is_err(), "{wrong}");
        }
    }
}
