//! The requests of a function.

use std::sync::Arc;
use std::time::Duration;

use peerbar_pci::{Iova, Range};

use crate::buffer::Buffer;
use crate::client::PROBE;
use crate::error::DmaError;
use crate::peer_changes::PeerChanges;
use crate::route::Target;
use crate::tag::Tag;

use super::Requester;
use super::transfer::Transfer;

/// Time for which a request waits for a switch that does not say what has changed: 4 s of this
/// process's own time.
const LEARNING_STEPS: u32 = 400;
const LEARNING_STEP: Duration = Duration::from_millis(10);

impl Requester {
    /// Reads `data.len()` bytes at `address`.
    pub fn read(
        &self,
        tag: impl Into<Tag>,
        address: Iova,
        data: &mut [u8],
    ) -> Result<(), DmaError> {
        self.access(tag, address, Buffer::Read(data))
    }

    /// Reads the ranges of a scatter-gather list, addresses and lengths, as one request. Together
    /// they must be as long as `data`.
    pub fn gather(
        &self,
        tag: impl Into<Tag>,
        list: impl IntoIterator<Item = (Iova, usize)>,
        data: &mut [u8],
    ) -> Result<(), DmaError> {
        Transfer::new(self, tag.into()).run(list, Buffer::Read(data))
    }

    /// Writes `data` at `address`.
    pub fn write(&self, tag: impl Into<Tag>, address: Iova, data: &[u8]) -> Result<(), DmaError> {
        self.access(tag, address, Buffer::Write(data))
    }

    /// Writes the ranges of a scatter-gather list, addresses and lengths, as one request. Together
    /// they must be as long as `data`.
    pub fn scatter(
        &self,
        tag: impl Into<Tag>,
        list: impl IntoIterator<Item = (Iova, usize)>,
        data: &[u8],
    ) -> Result<(), DmaError> {
        Transfer::new(self, tag.into()).run(list, Buffer::Write(data))
    }

    /// Reads or writes at `address`.
    pub fn access(
        &self,
        tag: impl Into<Tag>,
        address: Iova,
        data: Buffer<'_>,
    ) -> Result<(), DmaError> {
        Transfer::new(self, tag.into()).run([(address, data.len())], data)
    }

    /// Waits until all earlier changes of the peers' windows are known. A switch that does not
    /// report its changes in time is lost. Returns `false` if the function may no longer issue
    /// requests.
    pub(crate) fn learn_changes(&self) -> bool {
        self.learn_changes_in(LEARNING_STEPS)
    }

    fn missed_changes(&self) -> Option<(Arc<PeerChanges>, u64)> {
        let routes = self.route_table();
        let changes = routes.compared_changes().filter(|_| routes.may_request())?;
        Some((Arc::clone(changes), changes.missed()?))
    }

    /// Returns the same as [`Requester::learn_changes`], in this number of steps.
    pub(super) fn learn_changes_in(&self, steps: u32) -> bool {
        let Some((changes, count)) = self.missed_changes() else {
            return true;
        };
        // In steps, so that a process that was stopped in between still has the time that it needs.
        for _ in 0..steps {
            if let Some(call) = self.on_missed_changes.get() {
                call();
            }
            if changes.wait(count, LEARNING_STEP) {
                return true;
            }
            if !self.may_request() {
                return false;
            }
        }
        self.leave_switch(&changes, count);
        true
    }

    /// Presents an errant request at `address` to the client, if the address is unmapped, so that
    /// the guest's IOMMU driver logs it. The client is asked to read a few bytes, which changes
    /// nothing.
    pub(super) fn show(&self, address: Iova) {
        let mut probe = [0; PROBE];
        let len = Range::all().clip(address, PROBE);
        let probe = Buffer::Read(&mut probe).take(len);
        let may_go_on = || self.may_request();
        let target = self
            .route_table()
            .route(address, len, probe.direction())
            .target;
        if matches!(target, Target::Unmapped) && self.client.ask(address, probe, &may_go_on).is_ok()
        {
            log::debug!("{address}: only the client knows this memory");
        }
    }
}
