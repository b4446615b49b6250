//! The log of a server, on standard error.
//!
//! A guest or a client can provoke warnings at will, and the log is a file of the host. So each line of the code logs at most
//! [`BURST`] warnings and errors in an [`INTERVAL`], as with Linux' `printk_ratelimited` (lib/ratelimit.c). The first one of the
//! next interval, or the end of the server, reports how many were suppressed. Messages below a warning are not limited: only
//! `RUST_LOG` enables them.
#![forbid(unsafe_code)]

mod rate_limit;

use std::time::{Duration, Instant};

use env_logger::{Builder, Env};

use crate::rate_limit::RateLimit;

/// How many warnings and errors a line of the code logs in an interval.
pub const BURST: u32 = 10;

/// The interval, which begins with the first message.
pub const INTERVAL: Duration = Duration::from_secs(60);

/// The log of this process. Dropped, it reports what is suppressed.
#[derive(Debug)]
#[must_use = "what is suppressed is reported when this is dropped"]
pub struct ServerLog(());

impl ServerLog {
    /// Sets the logger of this process. `filter` is what is logged unless `RUST_LOG` says otherwise. A process that has a logger
    /// keeps it.
    pub fn start(filter: &str) -> Self {
        let logger = Builder::from_env(Env::default().default_filter_or(filter)).build();
        let level = logger.filter();
        if log::set_boxed_logger(Box::new(RateLimit::new(logger, Instant::now))).is_ok() {
            log::set_max_level(level);
        }
        Self(())
    }
}

impl Drop for ServerLog {
    fn drop(&mut self) {
        log::logger().flush();
    }
}
