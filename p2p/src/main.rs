//! `peerbar-p2p`: `peerbar p2p` as a program of its own, for machines on which nothing else of
//! peerbar is wanted.

#![forbid(unsafe_code)]

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;
use peerbar_p2p::cli::{CliError, Options, answer, printable};

/// Show which PCI devices of a machine can reach each other by peer-to-peer DMA, why not, and what
/// to change.
#[derive(Parser)]
#[command(name = "peerbar-p2p", version)]
struct Cli {
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let failed = match answer(&Cli::parse().options, columns()) {
        Ok(text) => match io::stdout().write_all(text.as_bytes()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => CliError::Failed(
                anyhow::Error::new(error).context("cannot write to standard output"),
            ),
            _ => return ExitCode::SUCCESS,
        },
        Err(error) => error,
    };
    eprintln!("peerbar-p2p: {}", printable(&failed.to_string()));
    ExitCode::from(failed.code())
}

/// Returns the width of the terminal, or `None` if the answer goes elsewhere.
fn columns() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col)
}
