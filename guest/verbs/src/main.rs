//! `peerbar-verbs`: what the RDMA checks do in the guest, by the guest's own libibverbs. It reports KTAP.

#![forbid(unsafe_code)]

mod checks;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use peerbar_rdma_end::{Amid, Loss, Part};

use crate::checks::memory::MemoryKind;
use crate::checks::rate::Kind;
use crate::checks::report::Report;
use crate::checks::{
    chain, completions, completions_lost, counters, end, lost, probe, rate, refusals, refused,
    transfers, vram,
};

/// RDMA between queue pairs, with memory of the host or of a GPU.
#[derive(Parser)]
#[command(name = "peerbar-verbs", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Is one end of a transfer, which a conductor asks by lines on the standard input (`peerbar_rdma_end`).
    End {
        /// The kernel's name of the adapter.
        #[arg(long, value_name = "DEVICE")]
        nic: String,
        /// The memory: `host`, or the number of a GPU's device file.
        #[arg(long, value_name = "MEMORY")]
        memory: MemoryKind,
        /// How much memory in bytes, rounded up to whole pages.
        #[arg(long, value_name = "BYTES")]
        size: u64,
    },
    /// Tries DMA to a GPU's memory and from there, and prints a line of JSON for each (`peerbar_report::Transfer`).
    Probe {
        /// The kernel's name of the adapter.
        #[arg(long, value_name = "DEVICE")]
        nic: String,
        /// The number of the GPU's device file.
        #[arg(long, value_name = "NUMBER")]
        gpu: u32,
        /// Bytes of each transfer.
        #[arg(long, value_name = "BYTES")]
        size: u32,
    },
    /// Has an adapter carry out requests of one kind, 16 in progress, and prints how many as a line of JSON (`peerbar_report::RdmaRate`).
    Rate {
        /// The kernel's name of the adapter that asks.
        #[arg(long, value_name = "DEVICE")]
        nic: String,
        /// The kernel's name of the other adapter, or of the same one.
        #[arg(long, value_name = "DEVICE")]
        peer: String,
        /// The memory of the one that asks: `host`, or the number of a GPU's device file.
        #[arg(long, value_name = "MEMORY")]
        from: MemoryKind,
        /// The memory of the other one.
        #[arg(long, value_name = "MEMORY")]
        to: MemoryKind,
        /// Bytes of each request.
        #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=LARGEST))]
        size: u32,
        /// What it asks for.
        #[arg(long, value_name = "REQUESTS", value_enum)]
        by: Kind,
        /// For how long it posts requests.
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=60))]
        seconds: u32,
    },
    #[command(flatten)]
    Check(Check),
}

/// Most bytes of a request whose rate is measured: 16 of them fit into a small GPU's memory.
const LARGEST: i64 = 1 << 20;

/// What is reported as KTAP.
#[derive(Subcommand)]
enum Check {
    /// Sends, writes and reads, and compares each byte.
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
        sizes: Vec<u32>,
    },
    /// Moves the start of a disk by way of a GPU, two adapters and another GPU to another disk.
    Chain {
        /// The kernel's name of the first disk's adapter.
        #[arg(long, value_name = "DEVICE")]
        nic: String,
        /// The number of the device file of the first disk's GPU.
        #[arg(long, value_name = "NUMBER")]
        gpu: u32,
        /// The first disk's block device.
        #[arg(long, value_name = "PATH")]
        source: PathBuf,
        /// The kernel's name of the second disk's adapter.
        #[arg(long, value_name = "DEVICE")]
        peer: String,
        /// The number of the device file of the second disk's GPU.
        #[arg(long, value_name = "NUMBER")]
        peer_gpu: u32,
        /// The second disk's block device.
        #[arg(long, value_name = "PATH")]
        target: PathBuf,
        /// Sizes of the transfers in bytes, which follow each other on the disks; all of them are made twice.
        #[arg(long, value_name = "BYTES", value_delimiter = ',', required = true)]
        sizes: Vec<u32>,
    },
    /// Has one adapter write to another's memory, read it, or send to it, until a part of the transfer dies, and tries what is left.
    Lost {
        /// The kernel's name of the adapter that asks.
        #[arg(long, value_name = "DEVICE")]
        nic: String,
        /// The kernel's name of the other adapter.
        #[arg(long, value_name = "DEVICE")]
        peer: String,
        /// The memory of the one that asks: `host`, or the number of a GPU's device file.
        #[arg(long, value_name = "MEMORY")]
        from: MemoryKind,
        /// The memory of the other one.
        #[arg(long, value_name = "MEMORY")]
        to: MemoryKind,
        /// What dies, once the line "# under load" is printed.
        #[arg(long, value_name = "PART")]
        loses: Part,
        /// What it asks for.
        #[arg(long, value_name = "REQUESTS", default_value_t = Amid::Writes)]
        by: Amid,
    },
    /// Has an adapter count completed work requests in words of memory, and compares them. Needs Linux 7.3.
    Counters {
        /// The kernel's name of the adapter.
        #[arg(long, value_name = "DEVICE")]
        nic: String,
        /// The memory of the words: `host`, or the number of a GPU's device file.
        #[arg(long, value_name = "MEMORY")]
        memory: MemoryKind,
    },
    /// Has completion queues in a buffer, and polls them there. Needs Linux 7.3.
    Completions {
        /// The kernel's name of the adapter.
        #[arg(long, value_name = "DEVICE")]
        nic: String,
        /// The memory of the queues: `host`, or the number of a GPU's device file.
        #[arg(long, value_name = "MEMORY")]
        memory: MemoryKind,
        /// The memory dies once the line "# under load" is printed.
        #[arg(long)]
        loses: bool,
    },
    /// Asks for what an adapter must refuse.
    Refused {
        /// The kernel's name of the adapter.
        #[arg(long, value_name = "DEVICE")]
        nic: String,
        /// The kernel's name of the adapter that is asked, if it is another one.
        #[arg(long, value_name = "DEVICE")]
        peer: Option<String>,
        /// The number of the device file of a GPU, whose memory the one that is asked has.
        #[arg(long, value_name = "NUMBER")]
        gpu: Option<u32>,
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

/// How a command ends whose standard output is for its lines alone.
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
        Check::Chain {
            nic,
            gpu,
            source,
            peer,
            peer_gpu,
            target,
            sizes,
        } => {
            let side = |nic, gpu, disk| chain::Side { nic, gpu, disk };
            let (near, far) = (side(nic, gpu, source), side(peer, peer_gpu, target));
            chain::run(&near, &far, &sizes, report)
        }
        Check::Lost {
            nic,
            peer,
            from,
            to,
            loses,
            by,
        } => {
            let loss = Loss {
                part: loses,
                amid: by,
            };
            lost::run(&nic, &peer, [from, to], loss, report)
        }
        Check::Counters { nic, memory } => counters::run(&nic, memory, report),
        Check::Completions {
            nic,
            memory,
            loses: false,
        } => completions::run(&nic, memory, report),
        Check::Completions {
            nic,
            memory,
            loses: true,
        } => completions_lost::run(&nic, memory, report),
        Check::Refused { nic, peer, gpu } => {
            let peer = peer.as_ref().unwrap_or(&nic);
            refusals::run(&nic, report)?;
            let memory = gpu.map_or(MemoryKind::Host, MemoryKind::Vram);
            refused::run(&nic, peer, memory, report)?;
            gpu.map_or(Ok(()), |gpu| vram::run(peer, gpu, report))
        }
    }
}
