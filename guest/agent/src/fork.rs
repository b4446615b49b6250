//! The process that reaps orphans.

#![expect(unsafe_code)]

use std::io;

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::process::WaitOptions;

/// Leaves PID 1 to reap orphaned processes at once, and continues in a child. A process that waits
/// for its own children could not do both.
///
/// This process must have no other thread. If the child ends, PID 1 ends too, and the kernel
/// panics.
pub(crate) fn leave_pid_1() -> anyhow::Result<()> {
    // SAFETY: there is no other thread, so the child may do everything that this process may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).context("cannot fork"),
        0 => Ok(()),
        child => loop {
            match rustix::process::wait(WaitOptions::empty()) {
                Ok(Some((ended, status))) if ended.as_raw_pid() == child => {
                    std::process::exit(status.exit_status().unwrap_or(1));
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => bail!("cannot wait for a child: {error}"),
            }
        },
    }
}
