//! State that all threads share which execute commands: the namespaces, their health and their statistics.

use std::sync::atomic::{AtomicBool, Ordering};

use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::completion::Status;

use crate::health::Health;
use crate::namespace::Namespace;

/// The namespaces of a controller, from NSID 1 on.
pub(crate) struct Storage {
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) health: Health,
    write_cache: AtomicBool,
}

impl Storage {
    pub(crate) fn new(namespaces: Vec<Namespace>) -> Self {
        Self {
            namespaces,
            health: Health::new(),
            write_cache: AtomicBool::new(true),
        }
    }

    /// Volatile Write Cache: whether writes may wait for a Flush.
    pub(crate) fn write_cache(&self) -> bool {
        self.write_cache.load(Ordering::Acquire)
    }

    /// Turns the volatile write cache on or off.
    pub(crate) fn set_write_cache(&self, on: bool) {
        self.write_cache.store(on, Ordering::Release);
    }

    /// Logs a command that has failed; its status, which points to the log (NVMe Base 2.0, 5.16.1.2).
    pub(crate) fn failed(&self, sqid: u16, entry: &SubmissionEntry, status: Status) -> Status {
        log::debug!(
            "queue {sqid}, command {}: opcode {:#04x} fails: {status:?}",
            entry.cid,
            entry.opcode
        );
        let status = status.with_more(true);
        self.health.failed(sqid, entry, status);
        status
    }

    /// Flushes all namespaces, as far as they can be.
    pub(crate) fn flush_all(&self) {
        for namespace in &self.namespaces {
            if let Err(error) = namespace.backend().flush() {
                namespace.complain("flushed", &error);
            }
        }
    }
}
