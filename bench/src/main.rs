//! Measures what the devices can do, and what the machine could.
//!
//! Every figure stands beside a limit that was measured in the same run, in turn with it: a bare loop, an empty ring,
//! another program's device. On a machine with other work the figure alone says little, the ratio still does. Figures
//! and what they were measured with make a [`Report`](report::Report), which is printed as a table and kept as JSON; [`compare`] sets
//! two of them side by side.
//!
//! The suite [`host`] needs no guest: `peerbar-nvme-driver` drives
//! a server over its socket, with queues and data in shared memory. It uses shadow doorbells and a doorbell page that
//! can be mapped where the server offers them, and messages for what is left. The suites in [`guests`] boot guests.

#![forbid(unsafe_code)]

mod cli;
mod compare;
mod controller;
mod cpu_time;
mod drive;
mod figure;
mod guests;
mod host;
mod jobs;
mod limits;
mod loaded_queue;
mod machine;
mod memory;
mod report;
mod run;
mod server;
mod setup;
mod spread;
mod suite;
mod table;
mod vfio_user;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    peerbar_server_log::log_without_limit("warn");
    let measured = run::run(&cli::Cli::parse().suite);
    measured.unwrap_or_else(|failure| failure.report())
}
