//! Locks of files and folders, flock(2): the lock of a socket file's folder, which two servers that
//! start at once take in turn, and the lock of an image. Any process that may read the file can
//! hold it, so every wait for it is limited.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Time that a server waits for the lock of a file whose previous owner was just killed. The kernel
/// keeps files for a while after their process has ended, because io_uring frees requests in a
/// separate thread: for 30 to 80 ms on a busy machine.
pub const LONGEST_AFTER_A_KILL: Duration = Duration::from_secs(2);

/// The time between two attempts.
const INTERVAL: Duration = Duration::from_millis(5);

/// Locks `file`.
///
/// It does not allocate.
///
/// # Errors
/// [`Errno::TIMEDOUT`] if another process holds the lock for all of `time_out`; otherwise the error
/// of flock(2).
pub fn acquire(file: impl AsFd, time_out: Duration) -> Result<(), Errno> {
    let start = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) if start.elapsed() < time_out => {
                thread::sleep(INTERVAL);
            }
            Err(Errno::WOULDBLOCK) => return Err(Errno::TIMEDOUT),
            done => return done,
        }
    }
}
