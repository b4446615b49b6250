//! Waiting for a command.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::driver::Driver;
use crate::{Error, Fault, Result, uapi};

/// A submitted command. Dropping the fence does not cancel the command.
#[derive(Debug)]
#[must_use = "the command may go on after its buffers are freed"]
pub struct Fence {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) value: u64,
}

impl Fence {
    /// Waits until the command is done. Returns its result, or 0 if it has none.
    ///
    /// # Errors
    /// [`Error::Fault`] if the GPU could not execute it; [`Error::TimedOut`], after which it can be
    /// waited for again; [`Error::Driver`].
    pub fn wait(&self, time_out: Duration) -> Result<u64> {
        let deadline = Instant::now().checked_add(time_out);
        loop {
            let left = deadline.map_or(time_out, |end| {
                end.saturating_duration_since(Instant::now())
            });
            let mut wait = uapi::Wait {
                fence: self.value,
                timeout_ns: u64::try_from(left.as_nanos()).unwrap_or(u64::MAX),
                ..uapi::Wait::default()
            };
            match self.driver.wait(&mut wait) {
                Ok(()) if wait.error == 0 => return Ok(wait.result),
                Ok(()) => return Err(Error::Fault(Fault::from(wait.error))),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => return Err(Error::TimedOut(time_out)),
                Err(source) => {
                    return Err(Error::driver("wait for a command", source));
                }
            }
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ETIME | libc::ETIMEDOUT))
}
