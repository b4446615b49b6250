//! One command: scenario -> devices + QEMU -> checks -> results.
//!
//! Results go to stdout, progress and errors to stderr. The exit code is one of [`exit`]'s.

#![deny(unsafe_code)]

mod accel;
mod artifacts;
mod bench;
mod child;
mod cli;
mod comparison;
mod console;
mod cpu;
mod daemons;
mod debugger;
mod dry_run;
mod exit;
mod explain;
mod fabric;
mod firmware;
mod folder;
mod guest;
mod inbox;
mod iommu;
mod leash;
mod matrix;
mod progress;
mod qemu;
mod report;
mod results;
mod run;
mod say;
mod scenario;
mod signals;
mod size;
mod socket_folder;
mod table;
mod timeout;
mod tsc;
mod verdict;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    let result = match Cli::parse().command {
        Command::Run(options) => run::run(&options),
        Command::Explain(options) => explain::explain(&options),
        Command::Matrix(options) => matrix::run(&options),
        Command::Iommu(options) => debugger::iommu(&options),
        Command::Bench(what) => bench::run(&what),
        Command::Leash { parent, words } => Err(leash::become_held(parent, &words)),
    };
    result.unwrap_or_else(|failure| failure.report())
}
