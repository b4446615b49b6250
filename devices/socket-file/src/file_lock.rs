//! Locks of files and folders, flock(2): that of a socket file's folder, which two servers that start at once take in turn, and that of an
//! image. Any process that may read the file can hold it, so nothing waits for it without limit.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// How long a server waits for the lock of a file that a killed one has just left. The kernel keeps files for a while after their process has
/// ended: 30 to 80 ms on a busy machine, amid transfers (io_uring frees requests in a thread of its own).
pub const LONGEST_AFTER_A_KILL: Duration = Duration::from_secs(2);

/// The time between two attempts.
const INTERVAL: Duration = Duration::from_millis(5);

/// Locks `file`.
///
/// It allocates nothing.
///
/// # Errors
/// [`Errno::TIMEDOUT`] if another process holds the lock for as long as `time_out`; otherwise what flock(2) says.
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
