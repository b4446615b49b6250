//! Get Features and Set Features (NVMe Base 2.0, 5.15 and 5.27; NVM Command Set 1.0, 4.1.3).
//!
//! No value is saved across a power cycle.

use peerbar_dma::Purpose;
use peerbar_nvme_spec::command::admin::{GetFeatures, SetFeatures};
use peerbar_nvme_spec::command::{NSID_ALL, SubmissionEntry};
use peerbar_nvme_spec::completion::Status;
use peerbar_nvme_spec::feature::{Capabilities, Select, VolatileWriteCache, fid};

use super::features::{Features, SUPPORTED, data_bytes};
use super::reply::Reply;
use crate::engine::Engine;

impl Engine {
    pub(super) fn get_features(&mut self, entry: &SubmissionEntry) -> Result<Reply, Status> {
        let invalid = Status::INVALID_FIELD.with_dnr(true);
        let command = GetFeatures::from(entry);
        let (fid, dword) = (command.fid, command.cdw11.get());
        if !SUPPORTED.contains(&fid) {
            return Err(invalid);
        }
        let as_it_came = Features::new(self.storage.namespaces.len(), 0);
        let features = match Select::try_from(command.select.sel()).map_err(|_| invalid)? {
            Select::Current => &self.admin.features,
            Select::Default | Select::Saved => &as_it_came,
            Select::SupportedCapabilities => {
                let specific = fid == fid::ERROR_RECOVERY;
                let capabilities = Capabilities::new()
                    .with_changeable(true)
                    .with_namespace_specific(specific);
                return Ok(Reply::Now(capabilities.into_bits()));
            }
        };
        let indices = self.storage.index_range(entry.nsid.get()).ok();
        let value = features.value(fid, dword, indices.map(|indices| indices.start))?;
        if let Some(bytes) = features.data(fid, dword) {
            self.data
                .send(Purpose::Control, entry, bytes.len(), |buffer| {
                    buffer.copy_from_slice(&bytes);
                    Ok(())
                })?;
        }
        Ok(Reply::Now(value))
    }

    pub(super) fn set_features(&mut self, entry: &SubmissionEntry) -> Result<Reply, Status> {
        let command = SetFeatures::from(entry);
        let (fid, dword) = (command.fid, command.cdw11.get());
        if !SUPPORTED.contains(&fid) {
            return Err(Status::INVALID_FIELD.with_dnr(true));
        }
        if command.save.sv() {
            return Err(Status::FEATURE_NOT_SAVEABLE.with_dnr(true));
        }
        let indexes = self.namespaces_of(fid, entry.nsid.get())?;
        if let Some(len) = data_bytes(fid, dword) {
            let data = self.data.receive(Purpose::Control, entry, len)?;
            self.admin.features.set_data(fid, data)?;
            return Ok(Reply::DONE);
        }
        if fid == fid::NUMBER_OF_QUEUES {
            let refused = Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr(true));
            return if self.directory.has_queues() {
                refused
            } else {
                self.admin.features.grant_queues(dword).map(Reply::Now)
            };
        }
        if fid == fid::VOLATILE_WRITE_CACHE && !VolatileWriteCache::from_bits(dword).wce() {
            // Without a cache the host sends no Flush, so cached data is flushed here.
            self.storage.set_write_cache(false);
            // On failure the cache stays as it was: on, or already off.
            let before = self.admin.features.write_cache();
            self.storage
                .flush_all()
                .inspect_err(|_| self.storage.set_write_cache(before))?;
        }
        let result = self.admin.features.set_value(fid, dword, indexes)?;
        self.apply_features();
        self.check_temperature();
        Ok(Reply::Now(result))
    }

    /// Applies the features' values to the workers.
    pub(crate) fn apply_features(&self) {
        let features = &self.admin.features;
        self.storage.set_write_cache(features.write_cache());
        let (settings, disabled) = features.coalescing();
        self.coalescing.set(settings, disabled);
    }

    /// Returns the namespaces that a feature is set for: one, or all with the broadcast value. A
    /// feature of the whole controller ignores the namespace.
    fn namespaces_of(&self, fid: u8, nsid: u32) -> Result<std::ops::Range<usize>, Status> {
        let of_namespace = fid == fid::ERROR_RECOVERY;
        if nsid == NSID_ALL || nsid == 0 && !of_namespace {
            return Ok(0..self.storage.namespaces.len());
        }
        let indices = self.storage.index_range(nsid)?;
        if !of_namespace {
            return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.with_dnr(true));
        }
        Ok(indices)
    }
}
