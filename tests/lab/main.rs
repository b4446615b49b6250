//! Tests of drivers and devices by the public API of `peerbar-lab`, as other developers write them,
//! in real guests. `scripts/test` runs them after `scripts/build`.

#![allow(clippy::unwrap_used, reason = "a test panics if it fails")]

mod faults;
mod guests;
mod impairments;
mod intruder;
mod peer_to_peer;
mod requests;

use peerbar_lab::scenario::Scenario;
use peerbar_lab::{Lab, LabOptions};

/// Starts a lab that keeps its records where `peerbar` does.
fn start(scenario: Scenario) -> Lab {
    options().start(scenario).unwrap()
}

fn options() -> LabOptions {
    LabOptions::default().runs(concat!(env!("CARGO_MANIFEST_DIR"), "/../runs"))
}
