//! The process that removes a server's socket file.
//!
//! A confined server must not delete files, so a child process, made before the confinement, does it. It waits until the server
//! drops its [`Remover`] or ends in any way. It takes no input, so a compromised server can have it remove the socket file only.

#![allow(unsafe_code, reason = "fork(2)")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, lstat, open, unlink};
use rustix::io::{Errno, read, retry_on_intr};
use rustix::net::{Shutdown, shutdown};

/// The child process. Dropped, it has removed the file and ended.
#[derive(Debug)]
pub(crate) struct Remover {
    pipe: UnixStream,
    child: libc::pid_t,
}

impl Remover {
    /// Starts the process. It removes the file at `path` only if its device and inode are `identity`, under the lock of
    /// `directory`.
    pub(crate) fn start(path: &Path, directory: &Path, identity: (u64, u64)) -> io::Result<Self> {
        let file = SocketPath {
            path: c_string(path)?,
            directory: c_string(directory)?,
            identity,
        };
        let (ours, its) = UnixStream::pair()?;
        // SAFETY: the child has only this thread. It does system calls, takes no lock, allocates nothing and leaves at once.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                if keep_only(its.as_raw_fd()) {
                    wait_for_end(&its);
                    let _ = file.remove();
                }
                // SAFETY: ends the process; nothing of this program runs after it.
                unsafe { libc::_exit(0) }
            }
            child => Ok(Self { pipe: ours, child }),
        }
    }
}

impl Drop for Remover {
    fn drop(&mut self) {
        let _ = shutdown(&self.pipe, Shutdown::Write);
        wait_for_end(&self.pipe);
        // A confined server may not wait for children. This one has ended, and init collects it.
        // SAFETY: no status is written.
        unsafe { libc::waitpid(self.child, std::ptr::null_mut(), 0) };
    }
}

/// The file that is removed. All of it is in memory before the fork.
struct SocketPath {
    path: CString,
    directory: CString,
    identity: (u64, u64),
}

impl SocketPath {
    /// Removes the file, if it is still the same one.
    fn remove(&self) -> Result<(), Errno> {
        let directory = open(&*self.directory, OFlags::RDONLY, Mode::empty())?;
        // Another server that replaces the file does so under this lock.
        flock(&directory, FlockOperation::LockExclusive)?;
        let status = lstat(&*self.path)?;
        if (status.st_dev, status.st_ino) == self.identity {
            unlink(&*self.path)?;
        }
        Ok(())
    }
}

/// Leaves the server's session, so that a terminal's or a process group's signals do not reach this process, and closes all
/// descriptors but `kept`, which would outlive the server. Returns whether that was possible.
fn keep_only(kept: RawFd) -> bool {
    let kept = kept.cast_unsigned();
    let ranges = [(0, kept.checked_sub(1)), (kept + 1, Some(u32::MAX))];
    let close = |(first, last): (u32, Option<u32>)| {
        // SAFETY: this process uses no descriptor but `kept` from here on.
        last.is_none_or(|last| unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0)
    };
    rustix::thread::set_name(c"socket-remover").is_ok()
        && rustix::process::setsid().is_ok()
        && ranges.into_iter().all(close)
}

/// Waits until the other end is shut down or closed.
fn wait_for_end(pipe: impl AsFd) {
    while retry_on_intr(|| read(&pipe, &mut [0_u8])).is_ok_and(|count| count > 0) {}
}

fn c_string(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}
