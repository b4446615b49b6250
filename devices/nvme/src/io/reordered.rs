//! Reads whose data follows their completion: a fault.

use peerbar_dma::Purpose;
use peerbar_fault::{Action, Kind};
use peerbar_nvme_spec::completion::Status;

use super::Io;
use super::status::read_error;
use crate::job::InProgress;
use crate::late_data::LateData;
use crate::namespace::Extent;

impl Io {
    /// Executes a Read without its data if a rule asks for late data. Returns `true` in that case.
    pub(super) fn read_reordered(
        &mut self,
        command: &InProgress<'_>,
        extent: Extent,
        len: usize,
    ) -> Result<bool, Status> {
        let InProgress { queue, entry, .. } = *command;
        let storage = self.storage.clone();
        let namespace = storage.find(entry.nsid.get())?;
        // Without a free slot the rule counts no match.
        let Some(slot) = self.late_slots.take() else {
            return Ok(false);
        };
        if self.data.injected(Kind::Data, queue, entry) != Some(Action::Reorder) {
            return Ok(false);
        }
        self.data.locate(Purpose::Payload, entry, len)?;
        self.data.session.release();
        let mut bytes = vec![0; len];
        let read = namespace.backend().read(extent.offset, &mut bytes);
        read.map_err(read_error(namespace))?;
        let (origin, ranges) = self.data.located(&mut bytes);
        self.tally.read(extent.len);
        self.late = Some(Box::new(LateData {
            queue,
            origin,
            ranges,
            bytes,
            slot,
        }));
        Ok(true)
    }
}
