//! `peerbar` with the programs that `scripts/build` makes, mostly in real guests: `scripts/test` runs it, after that.

mod explain;
mod failures;
mod kernel;
mod launched;
mod matrix;

const PEERBAR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/peerbar/peerbar");
