//! PID 1 of the guest: loads drivers, runs checks, reports KTAP.
//!
//! In order of a boot: `mounts` and `modules` make the guest usable, `port` receives the plan,
//! `session` executes it, and `power` ends it. Errors before there is a report are printed on the
//! console.

#![deny(unsafe_code)]

pub mod checks;
pub mod counters;
mod decisions;
pub mod devices;
pub mod disk;
pub mod dma_buf_copies;
pub mod dma_buf_importer;
pub mod empty_init;
mod end_process;
mod exec_server;
mod file_system;
mod foreign;
mod fork;
pub mod gpus;
pub mod guest_context;
mod kmemleak;
pub mod kmsg;
pub mod launcher;
pub mod mapped_buffer;
mod module_options;
pub mod modules;
mod mounts;
mod network;
mod nics;
pub mod p2pmem;
mod passthrough;
pub mod pci_function;
mod pci_tree;
mod placeholders;
mod port;
mod power;
mod program_socket;
pub mod registers;
mod root;
mod session;
pub mod test_module;
mod tools;
mod trace;
mod udev;
pub mod uevents;
pub mod user_drivers;
mod user_gpu;
mod watchdog;

use std::process::ExitCode;

/// Returns the program: PID 1 of a guest with its child that runs the checks, or one of the
/// processes that this child starts.
pub fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let role = arguments.next();
    let arguments: Vec<String> = arguments.collect();
    if role.as_deref() == Some(exec_server::ROLE) {
        return ended("starting programs", exec_server::main(&arguments));
    }
    if std::process::id() != 1 {
        eprintln!(
            "peerbar-agent: this is PID 1 of a peerbar guest; it mounts and powers off, so it does not run here"
        );
        return ExitCode::from(2);
    }
    if let Err(error) = fork::leave_pid_1() {
        eprintln!("peerbar-agent: {error:#}");
        power::off();
    }
    match std::panic::catch_unwind(session::run) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => eprintln!("peerbar-agent: {error:#}"),
        // The panic's own message is on the console already.
        Err(_) => eprintln!("peerbar-agent: it panicked, so the guest is powered off"),
    }
    power::off()
}

/// Reports the end of a process of the agent that is not PID 1.
fn ended(what: &str, outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else {
        return ExitCode::SUCCESS;
    };
    eprintln!("peerbar-agent: {what}: {error:#}");
    ExitCode::FAILURE
}
