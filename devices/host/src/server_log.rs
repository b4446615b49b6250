//! The log of a server or of another program, on standard error.
//!
//! A guest or a client can provoke warnings at will, and the log is a file of the host. So each
//! line of the code logs at most [`BURST`] warnings and errors in an [`INTERVAL`], as with Linux's
//! `printk_ratelimited` (lib/ratelimit.c). The first one of the next interval, or the end of the
//! server, reports how many were suppressed. Messages below a warning are not limited: only
//! `RUST_LOG` enables them.
//!
//! The log, like other files of a program, may reach the size limit of `ulimit -f`. SIGXFSZ, which
//! would then end the process without a message, is handled, so that a write fails with EFBIG
//! instead (setrlimit(2), RLIMIT_FSIZE).

#[cfg(test)]
mod kept;
mod once;
mod rate_limit;
mod stderr_logger;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::server_log::once::Once;
use crate::server_log::rate_limit::RateLimit;
pub use crate::server_log::rate_limit::{BURST, INTERVAL};
use crate::server_log::stderr_logger::StderrLogger;

/// The log of this process. When it is dropped, it reports suppressed messages.
#[derive(Debug)]
#[must_use = "what is suppressed is reported when this is dropped"]
pub struct ServerLog(());

impl ServerLog {
    /// Sets the logger of this process. `filter` applies unless `RUST_LOG` is set. A process that
    /// has a logger keeps it.
    pub fn start(filter: &str) -> Self {
        outlive_file_size_limit();
        let logger = StderrLogger::from_env(filter);
        let level = logger.most();
        if log::set_boxed_logger(Box::new(RateLimit::new(logger, Instant::now))).is_ok() {
            log::set_max_level(level);
        }
        Self(())
    }
}

/// Sets the logger of a program that a person starts: without a limit, but with each warning once,
/// because all guests and runs of a command may have the same. For `filter` see
/// [`ServerLog::start`].
pub fn log_without_limit(filter: &str) {
    outlive_file_size_limit();
    let logger = StderrLogger::from_env(filter);
    let level = logger.most();
    if log::set_boxed_logger(Box::new(Once::new(logger))).is_ok() {
        log::set_max_level(level);
    }
}

/// Makes writes beyond the largest permitted size of a file fail instead of ending the process.
/// Programs that the process starts have the default again.
fn outlive_file_size_limit() {
    // A handler must exist, but has no work to do. Only signals that cannot be handled are refused.
    let _ = signal_hook::flag::register(libc::SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

impl Drop for ServerLog {
    fn drop(&mut self) {
        log::logger().flush();
    }
}
