//! Sanitize (NVMe Base 2.0, 5.24 and 8.21): Block Erase, of all namespaces and of the Persistent
//! Memory Region.
//!
//! The engine erases while no I/O command is in progress, and completes the command afterwards. So
//! no other admin command sees the operation in progress; I/O commands that arrive during it are
//! aborted.

use peerbar_dma::WindowId;
use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::command::admin::SanitizeControl;
use peerbar_nvme_spec::completion::Status;
use peerbar_nvme_spec::event::AsyncEvent;
use peerbar_nvme_spec::log::SanitizeState;

use super::last_sanitize::LastSanitize;
use super::reply::Reply;
use crate::engine::Engine;
use crate::io_queue::request::WorkerRequest;
use crate::registers::Registers;
use crate::storage::Media;

impl Engine {
    pub(super) fn sanitize(&mut self, entry: &SubmissionEntry) -> Result<Reply, Status> {
        let control = SanitizeControl::from_bits(entry.cdw10.get());
        match control.sanact() {
            SanitizeControl::EXIT_FAILURE_MODE => self.exit_failure_mode(),
            SanitizeControl::BLOCK_ERASE => self.block_erase(control),
            _ => Err(Status::INVALID_FIELD.with_dnr(true)),
        }
    }

    /// Exit Failure Mode, which is permitted if the failed operation was unrestricted (AUSE).
    fn exit_failure_mode(&mut self) -> Result<Reply, Status> {
        if self.storage.media() != Media::Failed {
            return Ok(Reply::DONE);
        }
        if !self.admin.sanitize.control.ause() {
            return Err(Status::SANITIZE_FAILED.with_dnr(true));
        }
        self.storage.set_media(Media::Usable);
        Ok(Reply::DONE)
    }

    fn block_erase(&mut self, control: SanitizeControl) -> Result<Reply, Status> {
        if !self.notifier.report(Registers::hold_pmr) {
            return Err(Status::SANITIZE_PROHIBITED_BY_PMR);
        }
        let before = self.storage.media();
        self.storage.set_media(Media::BeingSanitized);
        self.workers.request_all(|| WorkerRequest::Finish);
        if self.notifier.urgent() || self.notifier.quiet() {
            // A reset or a fatal status arrived, and the kernel may still write for commands. The
            // operation has not begun.
            self.storage.set_media(before);
            self.release_pmr();
            return Err(Status::ABORT_REQUESTED);
        }
        let erased = self.storage.erase(!control.ndas());
        self.persist();
        let (state, media) = match erased {
            Ok(()) if !self.storage.pmr_has_failed() => (SanitizeState::COMPLETED, Media::Usable),
            _ => (SanitizeState::FAILED, Media::Failed),
        };
        self.admin.sanitize = LastSanitize {
            state: SanitizeState::new().with_status(state),
            control,
        };
        self.storage.set_media(media);
        self.release_pmr();
        self.admin.events.raise(AsyncEvent::SANITIZE_COMPLETED);
        Ok(Reply::DONE)
    }

    /// Releases the Persistent Memory Region. It becomes ready if the host has enabled it during
    /// the operation.
    fn release_pmr(&self) {
        let _ending = self.notifier.report(|registers| {
            registers.release_pmr();
            registers.pmr().map(|_| {
                let window = registers.pmr_window();
                self.data.requester().set_window(WindowId::Pmr, window)
            })
        });
    }
}
