//! One command: scenario -> devices + QEMU -> checks -> results.
//!
//! Results go to stdout, progress and errors to stderr. The exit code is one of [`peerbar_lab::exit`]'s.

#![deny(unsafe_code)]

mod attached;
mod bisect;
mod cache;
mod check;
mod cli;
mod comparison;
mod completion;
mod cp;
mod devices;
mod doctor;
mod dry_run;
mod exec;
mod explain;
mod fetch;
mod group;
mod guest_folder;
mod guest_session;
mod help;
mod init;
mod inject;
mod iommu;
mod jobs;
mod keep;
mod kernel;
mod list;
mod matrix;
mod p2p;
mod qemu;
mod relay;
mod report;
mod results;
mod run;
mod runnable;
mod series;
mod ssh;
mod table;
mod trace;
mod twin;
mod vfio_user;

use std::process::ExitCode;

use peerbar_lab::parent_death;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    completion::answer();
    peerbar_host::server_log::log_without_limit("warn");
    let result = match Cli::of_process().command {
        Command::Run(options) => series::run(&options),
        Command::Shell(options) => exec::shell(&options),
        Command::Exec(options) => exec::exec(&options),
        Command::Cp(options) => cp::cp(&options),
        Command::SshConfig(options) => ssh::config(&options),
        Command::SshProxy { folder } => ssh::proxy(&folder),
        Command::Explain(options) => explain::explain(&options),
        Command::P2p(options) => p2p::p2p(&options),
        Command::Matrix(options) => matrix::run(&options),
        Command::Iommu(options) => iommu::iommu(&options),
        Command::Report(options) => report::report(&options),
        Command::Trace(options) => trace::trace(&options),
        Command::VfioUser(command) => vfio_user::vfio_user(&command),
        Command::Kernel(command) => kernel::kernel(&command),
        Command::Bisect(options) => bisect::bisect(&options),
        Command::BisectStep(options) => Ok(bisect::step(&options)),
        Command::Inject(options) => inject::inject(&options),
        Command::Check { files } => check::check(&files),
        Command::List(options) => list::list(&options),
        Command::Devices(options) => devices::devices(&options),
        Command::Qemu { arguments } => qemu::qemu(&arguments),
        Command::Doctor(options) => doctor::doctor(&options),
        Command::Fetch(options) => fetch::fetch(&options),
        Command::Cache(command) => cache::cache(&command),
        Command::Init(options) => init::init(&options),
        Command::Completions { shell } => help::completions(shell),
        Command::Man { folder } => help::man(&folder),
        Command::DieWithParent {
            confined,
            writable,
            parent,
            words,
        } => Err(parent_death::become_program(
            parent, confined, &writable, &words,
        )),
    };
    result.unwrap_or_else(|failure| failure.report())
}
