//! `peerbar-verbs`: the guest's side of the RDMA checks, by the guest's own libibverbs. It reports
//! KTAP.

#![forbid(unsafe_code)]

mod checks;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::checks::memory::MemoryKind;
use crate::checks::rate::Kind;
use crate::checks::report::Report;
use crate::checks::{counters, end, probe, rate, transfers};

/// RDMA between queue pairs, with memory of the host or of a GPU.
#[derive(Parser)]
#[command(name = "peerbar-verbs", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve one end of a transfer, for a conductor that sends lines to the standard input
    /// (`peerbar_rdma_end`).
    End {
        /// The kernel's name of the adapter.
        #[arg(long, value_name = "DEVICE")]
        nic: String,
        /// The memory: `host`, or the number of a GPU's device file.
        #[arg(long, value_name = "MEMORY")]
        memory: MemoryKind,
        /// Size of the memory in bytes, rounded up to whole pages.
        #[arg(long, value_name = "BYTES")]
        size: u64,
    },
    /// Try DMA to a GPU's memory and from there, and print a line of JSON for each
    /// (`peerbar_report::Transfer`).
    Probe {
        /// The kernel's name of the adapter.
        #[arg(long, value_name = "DEVICE")]
        nic: String,
        /// The number of the GPU's device file.
        #[arg(long, value_name = "NUMBER")]
        gpu: u32,
        /// Size of each transfer in bytes.
        #[arg(long, value_name = "BYTES")]
        size: u32,
    },
    /// Let an adapter execute requests of one kind, 16 in progress, and print their rate as a line
    /// of JSON (`peerbar_report::RdmaRate`).
    Rate {
        /// The kernel's name of the requester's adapter.
        #[arg(long, value_name = "DEVICE")]
        nic: String,
        /// The kernel's name of the other adapter, or of the same one.
        #[arg(long, value_name = "DEVICE")]
        peer: String,
        /// The memory of the requester: `host`, or the number of a GPU's device file.
        #[arg(long, value_name = "MEMORY")]
        from: MemoryKind,
        /// The memory of the other adapter.
        #[arg(long, value_name = "MEMORY")]
        to: MemoryKind,
        /// Size of each request in bytes.
        #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=LARGEST))]
        size: u32,
        /// Kind of the requests.
        #[arg(long, value_name = "REQUESTS", value_enum)]
        by: Kind,
        /// Time for which it posts requests, in seconds.
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=60))]
        seconds: u32,
    },
    #[command(flatten)]
    Check(Check),
}

/// Maximum size of a request whose rate is measured: 16 of them fit into a small GPU's memory.
const LARGEST: i64 = 1 << 20;

/// The checks, whose results are reported as KTAP.
#[derive(Subcommand)]
enum Check {
    /// Send, write and read, and compare each byte.
    Transfer {
        /// The kernel's name of the sender's adapter.
        #[arg(long, value_name = "DEVICE")]
        nic: String,
        /// The kernel's name of the receiver's adapter.
        #[arg(long, value_name = "DEVICE")]
        peer: String,
        /// The sender's memory: `host`, or the number of a GPU's device file.
        #[arg(long, value_name = "MEMORY")]
        from: MemoryKind,
        /// The receiver's memory.
        #[arg(long, value_name = "MEMORY")]
        to: MemoryKind,
        /// Sizes of the transfers in bytes.
        #[arg(long, value_name = "BYTES", value_delimiter = ',', required = true)]
        sizes: Vec<u64>,
    },
    /// Let an adapter count completed work requests in words of memory, and compare them. Requires
    /// Linux 7.3.
    Counters {
        /// The kernel's name of the adapter.
        #[arg(long, value_name = "DEVICE")]
        nic: String,
        /// The memory of the words: `host`, or the number of a GPU's device file.
        #[arg(long, value_name = "MEMORY")]
        memory: MemoryKind,
    },
}

fn main() -> ExitCode {
    let mut report = Report::default();
    let ran = match Arguments::parse().command {
        Command::End { nic, memory, size } => return ended(end::run(&nic, memory, size)),
        Command::Probe { nic, gpu, size } => return ended(probe::run(&nic, gpu, size)),
        Command::Rate {
            nic,
            peer,
            from,
            to,
            size,
            by,
            seconds,
        } => {
            let time = Duration::from_secs(seconds.into());
            return ended(rate::run(&nic, &peer, [from, to], (by, size), time));
        }
        Command::Check(check) => run(check, &mut report),
    };
    if let Err(error) = ran {
        report.add("the checks run", Err(error));
    }
    print!("{report}");
    if report.has_failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Converts the result of a command whose standard output is only for its lines.
fn ended(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peerbar-verbs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(check: Check, report: &mut Report) -> anyhow::Result<()> {
    match check {
        Check::Transfer {
            nic,
            peer,
            from,
            to,
            sizes,
        } => transfers::run(&nic, &peer, [from, to], &sizes, report),
        Check::Counters { nic, memory } => counters::run(&nic, memory, report),
    }
}
