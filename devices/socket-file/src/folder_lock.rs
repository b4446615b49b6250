//! The lock of the folder of a socket file, flock(2), which two servers that start at once take in turn. Any process that may
//! read the folder can hold it, so nothing waits for it without limit.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The time between two attempts.
const INTERVAL: Duration = Duration::from_millis(5);

/// Locks `folder`; [`Errno::TIMEDOUT`] if another process holds the lock for as long as `patience`. It allocates nothing.
pub(crate) fn acquire(folder: impl AsFd, patience: Duration) -> Result<(), Errno> {
    let start = Instant::now();
    loop {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) if start.elapsed() < patience => {
                thread::sleep(INTERVAL);
            }
            Err(Errno::WOULDBLOCK) => return Err(Errno::TIMEDOUT),
            done => return done,
        }
    }
}
