//! The smallest first program of a guest: it reports that it runs, and powers off.
//!
//! `peerbar-bench boot` measures against it.

use std::io::{self, Write};

use rustix::system::{RebootCommand, reboot};

/// `peerbar-bench boot` waits for this text.
const MARKER: &str = "peerbar: empty init";

/// Reports that it runs, and powers off.
///
/// # Errors
/// A console that takes no text, or a kernel that refuses to power off.
pub fn run() -> io::Result<()> {
    let mut console = io::stdout();
    writeln!(console, "{MARKER}")?;
    console.flush()?;
    reboot(RebootCommand::PowerOff)?;
    Ok(())
}
