//! A client's answers to the device's requests for memory.

use std::fmt::{self, Debug};

use parking_lot::{Condvar, Mutex};
use peerbar_nvme_driver::DmaMemory;
use rustix::io::Errno;

use crate::TIME_OUT;
use crate::guest_ram::GuestRam;

/// A DMA_READ or DMA_WRITE from the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamRequest {
    pub(crate) id: u16,
    /// The address of the first byte.
    pub address: u64,
    /// The number of bytes.
    pub len: usize,
    /// The data to write, or `None` for a read.
    pub data: Option<Vec<u8>>,
}

impl UpstreamRequest {
    /// Executes the request on `memory`. Writes are in units of 8 bytes, as by QEMU: a phase tag is
    /// written last.
    pub fn transfer(&self, memory: &GuestRam) -> Answer {
        let Some(data) = &self.data else {
            let data = memory.bytes_at(self.address, self.len);
            return Answer::Data(data.unwrap());
        };
        for (at, word) in (self.address..).step_by(8).zip(data.chunks(8)) {
            memory.write(at, word).unwrap();
        }
        Answer::AllAs(0)
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request succeeds; a read returns this.
    Data(Vec<u8>),
    /// The request succeeds; a read returns only this byte.
    AllAs(u8),
    /// The request fails with this errno.
    Refused(Errno),
    /// The request waits until the test answers.
    Late,
    /// The answer is too long.
    Nonsense,
}

impl Answer {
    /// QEMU's answer for an address that is not mapped.
    pub const UNMAPPED: Self = Self::Refused(Errno::NODEV);
}

type Rule = Box<dyn FnMut(&UpstreamRequest) -> Answer + Send>;

/// The client's rule, and every request so far.
pub struct Upstream {
    rule: Mutex<Rule>,
    seen: Mutex<Vec<UpstreamRequest>>,
    late: Mutex<Vec<UpstreamRequest>>,
    arrived: Condvar,
}

impl Upstream {
    /// Makes a client that serves no request.
    pub(crate) fn new() -> Self {
        Self {
            rule: Mutex::new(Box::new(|_| Answer::UNMAPPED)),
            seen: Mutex::new(Vec::new()),
            late: Mutex::new(Vec::new()),
            arrived: Condvar::new(),
        }
    }

    /// Sets the rule that answers requests from now on.
    pub fn answer_with(&self, rule: impl FnMut(&UpstreamRequest) -> Answer + Send + 'static) {
        *self.rule.lock() = Box::new(rule);
    }

    /// Serves requests for these memories from now on, and no others.
    pub fn answer_from(&self, memories: Vec<GuestRam>) {
        self.answer_with(move |request| {
            let mut memories = memories.iter();
            let memory = memories.find(|memory| memory.contains(request.address));
            memory.map_or(Answer::UNMAPPED, |memory| request.transfer(memory))
        });
    }

    /// Returns every request so far.
    pub fn seen(&self) -> Vec<UpstreamRequest> {
        self.seen.lock().clone()
    }

    /// Waits until there have been `count` requests.
    #[track_caller]
    pub fn wait_for(&self, count: usize) -> Vec<UpstreamRequest> {
        let mut seen = self.seen.lock();
        let is_short = |seen: &mut Vec<_>| seen.len() < count;
        let waited = self.arrived.wait_while_for(&mut seen, is_short, TIME_OUT);
        let came = seen.len();
        assert!(!waited.timed_out(), "only {came} of {count} requests came");
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
