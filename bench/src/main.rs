//! Measures the performance of the devices, and the limits of the machine.
//!
//! Every figure has a baseline that was measured in the same run, in turn with it: a bare loop, an
//! empty ring, another program's device. On a busy machine the figure alone says little, but the
//! ratio still does. The figures, with versions and settings, make a [`Report`](report::Report),
//! which is printed as a table and kept as JSON. [`compare`] compares two of them.
//!
//! The suite [`host`] needs no guest: `peerbar-nvme-driver` drives a server over its socket, with
//! queues and data in shared memory. It uses shadow doorbells and a mapped doorbell page if the
//! server offers them, and messages for everything else. The suites in [`guests`] boot guests.

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
    peerbar_host::server_log::log_without_limit("warn");
    let measured = run::run(&cli::Cli::parse().suite);
    measured.unwrap_or_else(|failure| failure.report())
}
