//! `peerbar-selftest`: tests of the GPU's driver and of the module for further NVMe queues. It runs
//! in a guest, as the program of a check, and reports KTAP.
//!
//! Each argument is a test and its parameters, as in `pins={gpu0},{disk0}`: GPUs and disks in the
//! order in which the test expects them, and numbers.

mod access;
mod atomics;
mod batch;
mod beside_nvme;
mod beyond_aperture;
mod channel;
mod compute;
mod copy;
mod dma_buf;
mod dma_buf_ranges;
mod drm_card;
mod expect;
mod export;
mod faults;
mod fences;
mod fork;
mod held_back_reader;
mod interrupts;
mod lifetimes;
mod load;
mod long;
mod lost;
mod mapping;
mod owners;
mod pin_holder;
mod pins;
mod queue_requests;
mod random_requests;
mod requests;
mod reset;
mod scattered;
mod test;
mod time_out;
mod udmabuf;
mod unaligned;
mod unload;
mod user;
mod vgem;
mod virtio;

use std::process::ExitCode;

use peerbar_agent::guest_context::GuestContext;

use self::test::{Test, TestFunction, say};

/// Page size of the guest in bytes.
const PAGE: u64 = 4096;

/// All tests. Each fails with what it expected and saw.
const TESTS: [(&str, TestFunction); 27] = [
    ("atomics", atomics::run),
    ("batch", batch::run),
    ("beside-nvme", beside_nvme::run),
    ("beside-nvme-amid-reads", beside_nvme::amid_reads),
    ("beside-nvme-refused", beside_nvme::refused),
    ("beyond-aperture", beyond_aperture::run),
    ("compute", compute::run),
    ("copy", copy::run),
    ("dma-buf", dma_buf::run),
    ("dma-buf-ranges", dma_buf_ranges::run),
    ("export", export::run),
    ("faults", faults::run),
    ("fences", fences::run),
    ("lifetimes", lifetimes::run),
    ("long", long::run),
    ("lost", lost::run),
    ("mapping", mapping::run),
    ("owners", owners::run),
    ("pins", pins::run),
    ("queue-requests", queue_requests::run),
    ("requests", requests::run),
    ("reset", reset::run),
    ("scattered", scattered::run),
    ("time-out", time_out::run),
    ("unaligned", unaligned::run),
    ("unload", unload::run),
    ("virtio", virtio::run),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.split_first() {
        Some((role, arguments)) if role == user::ROLE => {
            user::main(arguments).map(|()| ExitCode::SUCCESS)
        }
        Some(_) => run_all(&arguments),
        None => {
            let names = TESTS.map(|(name, _)| name).join(", ");
            eprintln!("Usage: peerbar-selftest TEST=DEVICE,...\nTests: {names}");
            Ok(ExitCode::from(2))
        }
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("peerbar-selftest: {error:#}");
        ExitCode::FAILURE
    })
}

/// Runs the tests that `arguments` name, one after the other.
fn run_all(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let guest = GuestContext::of_program()?;
    println!("KTAP version 1\n1..{}", arguments.len());
    let mut status = ExitCode::SUCCESS;
    for (number, argument) in (1..).zip(arguments) {
        let test = Test::read(&guest, argument);
        let name = test
            .as_ref()
            .map_or_else(|_| argument.clone(), Test::to_string);
        let outcome = test.and_then(|test| test.run());
        if let Err(error) = &outcome {
            say(&format!("{error:#}"));
            status = ExitCode::FAILURE;
        }
        let word = if outcome.is_ok() { "ok" } else { "not ok" };
        println!("{word} {number} {name}");
    }
    Ok(status)
}
