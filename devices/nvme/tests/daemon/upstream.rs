//! A client's answers to the device's requests for memory.

use std::fmt::{self, Debug};

use parking_lot::{Condvar, Mutex};

use crate::TIMEOUT;

/// A DMA_READ or DMA_WRITE from the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpstreamRequest {
    pub(crate) id: u16,
    pub(crate) address: u64,
    pub(crate) len: usize,
    /// The data to write, or `None` for a read.
    pub(crate) data: Option<Vec<u8>>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The request succeeds; a read returns this.
    Data(Vec<u8>),
    /// The request succeeds; a read returns only this byte.
    AllAs(u8),
    /// The request fails with this errno.
    Refused(u32),
    /// The request waits until the test answers.
    Late,
    /// The answer is too long.
    Nonsense,
}

type Rule = Box<dyn FnMut(&UpstreamRequest) -> Answer + Send>;

/// The client's rule, and every request so far.
pub(crate) struct Upstream {
    rule: Mutex<Rule>,
    seen: Mutex<Vec<UpstreamRequest>>,
    late: Mutex<Vec<UpstreamRequest>>,
    arrived: Condvar,
}

impl Upstream {
    /// ENODEV, which QEMU answers for an address that is not mapped.
    pub(crate) const UNMAPPED: Answer = Answer::Refused(19);

    /// Makes a client that serves no request.
    pub(crate) fn new() -> Self {
        Self {
            rule: Mutex::new(Box::new(|_| Self::UNMAPPED)),
            seen: Mutex::new(Vec::new()),
            late: Mutex::new(Vec::new()),
            arrived: Condvar::new(),
        }
    }

    /// Sets the rule that answers requests from now on.
    pub(crate) fn answer_with(
        &self,
        rule: impl FnMut(&UpstreamRequest) -> Answer + Send + 'static,
    ) {
        *self.rule.lock() = Box::new(rule);
    }

    /// Returns every request so far.
    pub(crate) fn seen(&self) -> Vec<UpstreamRequest> {
        self.seen.lock().clone()
    }

    /// Waits until there have been `count` requests.
    #[track_caller]
    pub(crate) fn wait_for(&self, count: usize) -> Vec<UpstreamRequest> {
        let mut seen = self.seen.lock();
        let waited = self
            .arrived
            .wait_while_for(&mut seen, |seen| seen.len() < count, TIMEOUT);
        assert!(
            !waited.timed_out(),
            "only {} of {count} requests came",
            seen.len()
        );
        seen.clone()
    }

    /// Returns the requests that wait for an answer.
    pub(crate) fn take_late(&self) -> Vec<UpstreamRequest> {
        std::mem::take(&mut *self.late.lock())
    }

    pub(crate) fn judge(&self, request: &UpstreamRequest) -> Answer {
        let answer = self.rule.lock()(request);
        if answer == Answer::Late {
            self.late.lock().push(request.clone());
        }
        self.seen.lock().push(request.clone());
        self.arrived.notify_all();
        answer
    }
}

impl Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}
