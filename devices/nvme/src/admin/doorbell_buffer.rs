//! Doorbell Buffer Config (NVMe Base 2.0, 5.8).

use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::completion::Status;
use peerbar_nvme_spec::registers::Doorbell;
use peerbar_pci::Iova;

use super::reply::Reply;
use crate::engine::Engine;
use crate::io_queue::doorbell::ShadowBuffer;
use crate::io_queue::request::WorkerRequest;
use crate::prp::PAGE;
use crate::registers::QUEUE_PAIRS;

impl Engine {
    /// Returns `true` if the guest may keep doorbells in its own memory. A guest that uses the INTx
    /// pin may not: the pin is deasserted when a head doorbell is rung, so a head that is only
    /// written to memory would leave it asserted and cause spurious interrupts.
    pub(super) fn offers_doorbell_buffer(&self) -> bool {
        self.admin.identity.offers_shadow_doorbells() && self.notifier.sends_messages()
    }

    /// Makes the workers poll the I/O queues' doorbells in a page of the guest's memory. Refuses
    /// pages that can only be reached by messages to the client: each poll would cost a message.
    pub(super) fn configure_doorbell_buffer(
        &mut self,
        entry: &SubmissionEntry,
    ) -> Result<Reply, Status> {
        if !self.offers_doorbell_buffer() {
            return Err(Status::INVALID_OPCODE.with_dnr(true));
        }
        let shadow = ShadowBuffer {
            values: Iova(entry.prp1.get()),
            events: Iova(entry.prp2.get()),
        };
        let pages = [shadow.values, shadow.events];
        if pages.iter().any(|page| !page.is_aligned(PAGE)) {
            return Err(Status::INVALID_PRP_OFFSET.with_dnr(true));
        }
        let session = &mut self.data.session;
        session.learn();
        let last = Doorbell::CompletionHead(QUEUE_PAIRS - 1);
        let reached = shadow.is_mapped(session, [Doorbell::SubmissionTail(0), last]);
        session.release();
        if !reached {
            return Err(Status::INVALID_FIELD.with_dnr(true));
        }
        self.workers.request_all(|| WorkerRequest::Shadow(shadow));
        Ok(Reply::DONE)
    }
}
