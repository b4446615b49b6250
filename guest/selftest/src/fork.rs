//! Runs work in a child process, where it may die.

#![expect(unsafe_code)]

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use anyhow::{Context, bail};

/// Runs `work` in a child, and returns the child's status: the result of `work` as its exit code,
/// or a signal.
///
/// The child has only this thread: `work` must take no lock and allocate no memory, so it makes
/// only loads, stores and system calls.
pub(crate) fn in_child(work: impl FnOnce() -> u8) -> anyhow::Result<ExitStatus> {
    // SAFETY: the child only runs `work`, which satisfies the documentation, and leaves at once.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(io::Error::last_os_error()).context("cannot fork"),
        0 => {
            let code = work();
            // SAFETY: ends the process; nothing of this program runs after it.
            unsafe { libc::_exit(code.into()) }
        }
        child => wait(child),
    }
}

fn wait(child: libc::pid_t) -> anyhow::Result<ExitStatus> {
    loop {
        let mut status = 0;
        // SAFETY: the call writes only to `status`.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        if ended == child {
            return Ok(ExitStatus::from_raw(status));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            bail!("cannot wait for a child: {error}");
        }
    }
}
