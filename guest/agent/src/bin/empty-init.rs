//! The least that can be a guest's first program: it says that it runs, and powers off.
//!
//! `peerbar-bench boot` measures against it.

#![forbid(unsafe_code)]

use std::io::Write;

use rustix::system::{RebootCommand, reboot};

/// `peerbar-bench boot` waits for this text.
const MARKER: &str = "peerbar: empty init";

fn main() -> std::io::Result<()> {
    let mut console = std::io::stdout();
    writeln!(console, "{MARKER}")?;
    console.flush()?;
    reboot(RebootCommand::PowerOff)?;
    Ok(())
}
