//! The way to the client, which executes the requests that do not reach memory here.

use std::sync::Arc;

use parking_lot::RwLock;
use peerbar_pci::Iova;

use crate::buffer::Buffer;
use crate::error::DmaFault;
use crate::upstream::{Upstream, UpstreamError, UpstreamRequest};

/// Bytes of the first request to the client at an unmapped address. The guest's virtio-iommu logs
/// one fault for every 4 bytes of a refused request, so a fault is presented with as few as
/// possible.
pub(crate) const PROBE: usize = 4;

/// Size of the largest word that is accessed as a whole.
const WORD: usize = 8;

/// The client of a function, if it has one. Its methods call `may_go_on` before each message: see
/// [`Upstream::carry_out`].
#[derive(Default)]
pub(crate) struct Client(RwLock<Option<Arc<dyn Upstream>>>);

impl Client {
    /// Sets or removes the way to the client.
    pub(crate) fn set(&self, upstream: Option<Arc<dyn Upstream>>) {
        *self.0.write() = upstream;
    }

    /// Returns the way to the client.
    pub(crate) fn upstream(&self) -> Option<Arc<dyn Upstream>> {
        self.0.read().clone()
    }

    /// Lets the client execute all of `requests`.
    pub(crate) fn carry_out(
        &self,
        requests: &mut [UpstreamRequest<'_>],
        may_go_on: &dyn Fn() -> bool,
    ) {
        match (self.upstream(), requests) {
            (Some(upstream), requests) => upstream.carry_out(requests, may_go_on),
            (None, [first, ..]) => first.outcome = Some(Err(UpstreamError::Gone)),
            (None, []) => {}
        }
    }

    /// Lets the client execute one request.
    pub(crate) fn ask(
        &self,
        address: Iova,
        data: Buffer<'_>,
        may_go_on: &dyn Fn() -> bool,
    ) -> Result<(), DmaFault> {
        let mut request = [UpstreamRequest::new(address, data)];
        self.carry_out(&mut request, may_go_on);
        let [request] = request;
        settled(request.outcome)
    }

    /// Lets the client execute a request at an unmapped address: a few bytes first, and the rest if
    /// those succeed. An aligned read of 8 bytes is sent as a whole: it may be a counter, whose
    /// halves must be of one value.
    pub(crate) fn explore(
        &self,
        address: Iova,
        part: &mut Buffer<'_>,
        may_go_on: &dyn Fn() -> bool,
    ) -> Result<(), DmaFault> {
        let mut rest = part.reborrow();
        let is_read = matches!(rest, Buffer::Read(_));
        let is_word = is_read && rest.len() == WORD && address.is_aligned(WORD as u64);
        let few = rest.take(if is_word { WORD } else { PROBE });
        let behind = address.wrapping_add(few.len() as u64);
        self.ask(address, few, may_go_on)?;
        if rest.is_empty() {
            return Ok(());
        }
        self.ask(behind, rest, may_go_on)
    }

    /// Asks the client for a few bytes that its mapping does not permit, for its IOMMU to report.
    /// Always fails.
    pub(crate) fn deny(
        &self,
        address: Iova,
        part: &mut Buffer<'_>,
        may_go_on: &dyn Fn() -> bool,
    ) -> Result<(), DmaFault> {
        self.ask(address, part.reborrow().take(PROBE), may_go_on)?;
        Err(DmaFault::Forbidden)
    }
}

/// Returns the outcome of a request to the client. Only the function itself stops requests without
/// a failure, and a request that was not sent must not pass as done.
pub(crate) fn settled(outcome: Option<Result<(), UpstreamError>>) -> Result<(), DmaFault> {
    match outcome {
        None | Some(Err(UpstreamError::Stopped)) => Err(DmaFault::NotMaster),
        Some(outcome) => outcome.map_err(DmaFault::Upstream),
    }
}
