//! Work in a child process, where it may die.

#![expect(unsafe_code)]

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::process::WaitOptions;

/// Does `work` in a child, and returns how the child ended: with `work`'s result as its exit code, or by a signal.
///
/// The child has only this thread: `work` must take no lock and no memory, so it does loads, stores and system calls.
pub(crate) fn in_child(work: impl FnOnce() -> u8) -> anyhow::Result<ExitStatus> {
    // SAFETY: the child does nothing but `work`, which is as the documentation demands, and leaves at once.
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

/// Leaves PID 1 to collect processes whose parents are gone, at once, and goes on in a child. A process that waits for its own children could
/// not do both.
///
/// This process must have no other thread. If the child ends, PID 1 does, and the kernel panics.
pub(crate) fn leave_pid_1() -> anyhow::Result<()> {
    // SAFETY: there is no other thread, so the child may do whatever this process may.
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

fn wait(child: libc::pid_t) -> anyhow::Result<ExitStatus> {
    loop {
        let mut status = 0;
        // SAFETY: the call writes to `status` alone.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_child_is_reported() {
        assert_eq!(in_child(|| 7).unwrap().code(), Some(7));
        let killed = in_child(|| {
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
            0
        });
        assert_eq!(killed.unwrap().signal(), Some(libc::SIGKILL));
    }
}
