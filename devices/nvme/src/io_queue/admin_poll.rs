//! Polling the admin doorbells for the engine, where the guest may map them.

use peerbar_nvme_spec::registers::Doorbell;

use super::poll::PollPolicy;
use crate::doorbell_page::Owner;
use crate::notifier::{ENGINE, Notifier};

/// The worker that polls them.
const POLLER: Owner = Owner(1);

/// The admin doorbells, as a worker polls them.
pub(super) struct AdminDoorbells {
    /// Whether this worker polls them.
    is_polled: bool,
    /// The values that the engine was notified of.
    seen: [u32; 2],
}

impl AdminDoorbells {
    pub(super) fn new(owner: Owner, policy: PollPolicy) -> Self {
        Self {
            is_polled: policy == PollPolicy::Always && owner == POLLER,
            seen: [0; 2],
        }
    }

    /// Reads them, which the guest may write without a notification, however busy the worker is.
    pub(super) fn poll(&mut self, notifier: &Notifier) {
        if self.is_polled {
            let doorbells = [Doorbell::SubmissionTail(0), Doorbell::CompletionHead(0)];
            let values = doorbells.map(|doorbell| notifier.doorbells.value(doorbell));
            if std::mem::replace(&mut self.seen, values) != values {
                notifier.events(ENGINE).notify();
            }
        }
    }

    /// The controller was reset, and they with it.
    pub(super) fn forget(&mut self) {
        self.seen = [0; 2];
    }
}
