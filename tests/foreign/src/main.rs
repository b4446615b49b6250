//! Serves a copy engine by vfio-user.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use peerbar_foreign::{Options, serve};

/// A PCI device that copies memory at a guest's order, made with the crate `vfio_user`.
#[derive(Parser)]
struct Arguments {
    /// Socket at which it listens; the file must not exist.
    #[arg(long)]
    socket_path: PathBuf,
    /// Milliseconds that each answer is late.
    #[arg(long, default_value_t = 0)]
    slow: u64,
    /// Die at the order that follows this number of copies.
    #[arg(long)]
    die_after: Option<u32>,
    /// Go on using memory that the client has unmapped.
    #[arg(long)]
    keep_mappings: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let options = Options {
        slow: Duration::from_millis(arguments.slow),
        die_after: arguments.die_after,
        keep_mappings: arguments.keep_mappings,
    };
    serve(&arguments.socket_path, options)
}
