//! The errors of a system that temporarily has no descriptor or memory for a connection or a
//! message.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

/// Time that a server waits before it tries again.
pub const BACK_OFF: Duration = Duration::from_millis(100);

pub(crate) const ERRORS: [Errno; 4] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];

/// Returns `true` if the system lacks descriptors or memory.
pub fn is_exhaustion(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|error| ERRORS.contains(&error))
}
