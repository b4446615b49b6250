//! `peerbar` with the programs that `scripts/build` makes, mostly in real guests: `scripts/test` runs it, after that.

mod bisect;
mod chapter;
mod commands;
mod devices;
mod explain;
mod failures;
mod guest_root;
mod in_guest;
mod kernel;
mod launched;
mod matrix;
mod own_guest;
mod parallel;
mod report;
mod timeline;
mod your_program;

const PEERBAR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/peerbar/peerbar");
