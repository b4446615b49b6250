//! The process that cleans up after a server: it ends the connection that a killed server leaves,
//! and removes the socket file.
//!
//! A confined server must not delete files, and a killed one ends nothing, so a child process, made
//! before the confinement, does both. It waits until the server drops its [`Cleanup`] or ends in
//! any way. The server gives it one connection to hold, and the shared memory that `end` reads. So
//! a compromised server can only make it end a connection, remove the socket file, or do neither
//! and stay.

#![allow(unsafe_code, reason = "fork(2)")]

use std::ffi::CString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::cmsg_space;
use rustix::fs::{Mode, OFlags, fstat, lstat, open, unlink};
use rustix::io::{Errno, read, retry_on_intr, write};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, Shutdown, recvmsg, shutdown};

use crate::socket_file::{closing, descriptors, file_lock};

/// Time for which the process waits for the lock of the folder, and the server's end with it. After
/// that the file stays: it is stale, and the next server replaces it.
const LOCK_TIME_OUT: Duration = Duration::from_millis(500);

/// The child process. When this is dropped, the child has removed the file and ended.
#[derive(Debug)]
pub(crate) struct Cleanup {
    pipe: UnixStream,
    child: libc::pid_t,
}

impl Cleanup {
    /// Starts the process. Once this returns, the process has closed all descriptors of the server,
    /// so that a server that is killed leaves no file locked. The process removes the file at
    /// `path` only if it is still the file that `file` refers to, under the lock of `directory`.
    /// Then it calls `end` with the connection that it holds when the server ends, if it holds one.
    /// `end` must not take a lock or allocate, because other threads of this process may be doing
    /// either during the fork.
    pub(crate) fn start(
        path: &Path,
        directory: &Path,
        file: OwnedFd,
        end: impl FnOnce(OwnedFd),
    ) -> io::Result<Self> {
        let file = SocketPath {
            path: c_string(path)?,
            directory: c_string(directory)?,
            file,
        };
        let (ours, its) = UnixStream::pair()?;
        // SAFETY: the child has only this thread. It only makes system calls, takes no lock, does
        // not allocate and ends without returning.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                if keep_only(&its, &file.file) {
                    // Fails if the server has been killed since the fork.
                    let _ = write(&its, &[0]);
                    let connection = held_at_end(&its);
                    // Removed first, since `end` may wait for the client.
                    let _ = file.remove();
                    if let Some(connection) = connection {
                        end(connection);
                    }
                }
                // SAFETY: ends the process; nothing of this program runs after it.
                unsafe { libc::_exit(0) }
            }
            child => {
                // The descriptor belongs to the child alone, and ends with it.
                drop(its);
                let begun = retry_on_intr(|| read(&ours, &mut [0_u8]))?;
                let cleanup = Self { pipe: ours, child };
                match begun {
                    0 => Err(io::Error::other(
                        "the process that cleans up ended at its start: it needs close_range(2), of Linux 5.9",
                    )),
                    _ => Ok(cleanup),
                }
            }
        }
    }

    /// Makes the process hold this connection, or none, instead of the previous one. It never
    /// waits.
    pub(crate) fn hold(&self, connection: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        descriptors::send(&self.pipe, &[IoSlice::new(&[0])], connection.as_slice()).map(drop)
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _ = shutdown(&self.pipe, Shutdown::Write);
        wait_for_end(&self.pipe);
        // A confined server may not wait for children. This one has ended, and init collects it.
        // SAFETY: no status is written.
        unsafe { libc::waitpid(self.child, std::ptr::null_mut(), 0) };
    }
}

/// The file to remove. All fields are in memory before the fork.
struct SocketPath {
    path: CString,
    directory: CString,
    /// Keeps the inode from being freed, and thus from being reused for another server's socket.
    file: OwnedFd,
}

impl SocketPath {
    /// Removes the file, if it is still the same one.
    fn remove(&self) -> Result<(), Errno> {
        let directory = open(&*self.directory, OFlags::RDONLY, Mode::empty())?;
        // Another server that replaces the file does so under this lock.
        file_lock::acquire(&directory, LOCK_TIME_OUT)?;
        let (there, ours) = (lstat(&*self.path)?, fstat(&self.file)?);
        if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino) {
            unlink(&*self.path)?;
        }
        Ok(())
    }
}

/// Leaves the server's session, so that a terminal's or a process group's signals do not reach this
/// process, and closes all descriptors except two, because they would outlive the server. Returns
/// `true` if that succeeded.
fn keep_only(one: &impl AsRawFd, other: &impl AsRawFd) -> bool {
    let (one, other) = (one.as_raw_fd(), other.as_raw_fd());
    let (low, high) = (one.min(other), one.max(other));
    let ranges = [(0, low), (low + 1, high), (high + 1, RawFd::MAX)];
    let close = |(first, end): (RawFd, RawFd)| {
        // SAFETY: from here on this process uses no descriptor except these two.
        first == end || unsafe { libc::syscall(libc::SYS_close_range, first, end - 1, 0) } == 0
    };
    rustix::thread::set_name(c"server-cleanup").is_ok()
        && rustix::process::setsid().is_ok()
        && ranges.into_iter().all(close)
}

/// Waits until the other end is shut down or closed. Returns the connection that came with the last
/// byte.
fn held_at_end(pipe: &UnixStream) -> Option<OwnedFd> {
    let mut held = None;
    loop {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut bytes = [IoSliceMut::new(&mut byte)];
        match recvmsg(pipe, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) if received.bytes > 0 => {
                held = closing::rights(&mut control).next();
            }
            Err(Errno::INTR) => {}
            Ok(_) => return held,
            // The server may be alive.
            Err(_) => return None,
        }
    }
}

/// Waits until the other end is shut down or closed.
fn wait_for_end(pipe: impl AsFd) {
    while retry_on_intr(|| read(&pipe, &mut [0_u8])).is_ok_and(|count| count > 0) {}
}

fn c_string(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::fs::{FlockOperation, flock};
    use rustix::net::SocketType;
    use rustix::process::{Pid, Signal, kill_process};

    use super::*;
    use crate::socket_file::{BindError, SocketFile};

    fn make(path: &Path) -> Result<(SocketFile, OwnedFd), BindError> {
        SocketFile::make(path, SocketType::STREAM, 1)
    }

    fn folder_of(path: &Path) -> OwnedFd {
        open(path.parent().unwrap(), OFlags::RDONLY, Mode::empty()).unwrap()
    }

    #[test]
    fn cleanup_process_has_closed_its_server_s_descriptors() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..20 {
            let (server, _socket) = make(&folder.path().join("s")).unwrap();
            let open = std::fs::read_dir(format!("/proc/{}/fd", server.cleanup.child)).unwrap();
            assert_eq!(open.count(), 2);
        }
    }

    #[test]
    fn late_cleanup_spares_the_successor_s_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (SocketFile { cleanup, .. }, socket) = make(&path).unwrap();
        file_lock::acquire(folder_of(&path), Duration::ZERO).unwrap();
        let child = Pid::from_raw(cleanup.child).unwrap();
        kill_process(child, Signal::STOP).unwrap();
        // The same happens when the server is killed.
        shutdown(&cleanup.pipe, Shutdown::Write).unwrap();
        drop(socket);
        let successor = make(&path);
        kill_process(child, Signal::CONT).unwrap();
        drop(cleanup);
        assert!(path.exists());
        drop(successor.unwrap());
        assert!(!path.exists());
    }

    /// Returns the data that the other side of the last connection in `held` receives once the
    /// server has ended. The process says "end" to a connection that it holds.
    fn said_at_the_end(held: &[Option<&UnixStream>], mut client: UnixStream) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let end = |connection: OwnedFd| {
            rustix::io::write(&connection, b"end").unwrap();
        };
        let server = SocketFile::make_with(&path, SocketType::STREAM, 1, end).unwrap();
        for connection in held {
            server.0.hold(connection.map(AsFd::as_fd)).unwrap();
        }
        drop(server);
        client.set_nonblocking(true).unwrap();
        let mut said = [0; 8];
        let count = client.read(&mut said).unwrap_or(0);
        String::from_utf8(said[..count].to_vec()).unwrap()
    }

    #[test]
    fn connection_that_is_held_last_is_ended() {
        let ((one, of_one), (other, of_other)) =
            (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        assert_eq!(said_at_the_end(&[Some(&one)], of_one), "end");
        let twice = [Some(&one), Some(&other)];
        assert_eq!(
            said_at_the_end(&twice, of_other.try_clone().unwrap()),
            "end"
        );
        let released = [Some(&other), None];
        assert_eq!(said_at_the_end(&released, of_other), "");
    }

    #[test]
    fn lock_of_another_process_does_not_stop_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let server = make(&path).unwrap();
        let directory = folder_of(&path);
        flock(&directory, FlockOperation::LockShared).unwrap();
        drop(server);
        assert!(path.exists(), "stale");
        drop(directory);
        drop(make(&path).unwrap());
        assert!(!path.exists());
    }
}
