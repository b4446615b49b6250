//! PID 1 of the guest: loads drivers, runs checks, reports KTAP.
//!
//! In order of a boot: `mounts` and `modules` make the guest usable, `port` brings the plan, `session` works it off, and
//! `power` ends it. Errors before there is a report are printed on the console.

#![deny(unsafe_code)]

mod checks;
mod counters;
mod decisions;
mod devices;
mod disk;
mod dma_buf_importer;
pub mod empty_init;
mod exec_server;
mod file_system;
mod fork;
mod gpu_channel;
mod gpu_user;
mod gpus;
mod guest_context;
mod held_back_reader;
mod interrupts;
mod kmemleak;
mod kmsg;
mod launcher;
mod mapped_buffer;
mod module_options;
mod modules;
mod mounts;
mod network;
mod nics;
mod p2pmem;
mod passthrough;
mod pci_function;
mod pci_tree;
mod pin_holder;
mod placeholders;
mod port;
mod power;
mod random_requests;
mod registers;
mod root;
mod session;
mod test_module;
mod tools;
mod trace;
mod udev;
mod udmabuf;
mod uevents;
mod user_drivers;
mod user_gpu;
mod vgem;
mod virtio_gpu;
mod watchdog;

use std::process::ExitCode;

/// The program: PID 1 of a guest with its child that runs the checks, or one of the processes that this child starts.
pub fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let role = arguments.next();
    let arguments: Vec<String> = arguments.collect();
    match role.as_deref() {
        Some(gpu_user::ROLE) => {
            return ended("a process that uses the GPU", gpu_user::main(&arguments));
        }
        Some(exec_server::ROLE) => {
            return ended("starting programs", exec_server::main(&arguments));
        }
        _ => {}
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

/// How a process of the agent's that is not PID 1 has ended.
fn ended(what: &str, outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else {
        return ExitCode::SUCCESS;
    };
    eprintln!("peerbar-agent: {what}: {error:#}");
    ExitCode::FAILURE
}
