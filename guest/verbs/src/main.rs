//! `peerbar-verbs`: what the RDMA checks do in the guest, by the guest's own libibverbs. It reports KTAP.

#![forbid(unsafe_code)]

mod checks;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::checks::memory::MemoryKind;
use crate::checks::report::Report;
use crate::checks::{refusals, transfers, vram};

/// RDMA between queue pairs, with memory of the host or of a GPU.
#[derive(Parser)]
#[command(name = "peerbar-verbs", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
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
    /// Asks for what an adapter must refuse.
    Refused {
        /// The kernel's name of the adapter.
        #[arg(long, value_name = "DEVICE")]
        nic: String,
        /// The number of the device file of a GPU whose memory is used, too.
        #[arg(long, value_name = "NUMBER")]
        gpu: Option<u32>,
    },
}

fn main() -> ExitCode {
    let mut report = Report::default();
    let ran = match Arguments::parse().command {
        Command::Transfer {
            nic,
            peer,
            from,
            to,
            sizes,
        } => transfers::run(&nic, &peer, [from, to], &sizes, &mut report),
        Command::Refused { nic, gpu } => {
            let of_host = refusals::run(&nic, &mut report);
            match gpu {
                Some(gpu) => of_host.and_then(|()| vram::run(&nic, gpu, &mut report)),
                None => of_host,
            }
        }
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
