//! Get Log Page (NVMe Base 2.0, 5.16).

use peerbar_dma::Purpose;
use peerbar_nvme_spec::command::admin::GetLogPage;
use peerbar_nvme_spec::command::{AdminOpcode, NSID_ALL, NvmOpcode, SubmissionEntry};
use peerbar_nvme_spec::completion::Status;
use peerbar_nvme_spec::dma_log;
use peerbar_nvme_spec::feature::fid;
use peerbar_nvme_spec::identify::csi;
use peerbar_nvme_spec::log::{
    ActiveFirmware, ChangedNamespaces, CommandEffects, CommandEffectsLog, FeatureEffects,
    FeatureEffectsLog, FirmwareSlot, LogPageSupport, SupportedLogPages, lid,
};
use zerocopy::{FromZeros, IntoBytes};

use super::features::SUPPORTED as FEATURES;
use super::identify_controller::firmware;
use super::reply::Reply;
use crate::engine::Engine;
use crate::health::ERROR_ENTRIES;

/// The supported pages.
const PAGES: [u8; 10] = [
    lid::SUPPORTED_LOG_PAGES,
    lid::ERROR,
    lid::SMART,
    lid::FIRMWARE_SLOT,
    lid::CHANGED_NAMESPACES,
    lid::COMMAND_EFFECTS,
    lid::FEATURE_EFFECTS,
    lid::SANITIZE_STATUS,
    dma_log::LID,
    dma_log::ATS_LID,
];

/// The supported admin commands.
const ADMIN: [AdminOpcode; 10] = [
    AdminOpcode::DeleteSubmissionQueue,
    AdminOpcode::CreateSubmissionQueue,
    AdminOpcode::GetLogPage,
    AdminOpcode::DeleteCompletionQueue,
    AdminOpcode::CreateCompletionQueue,
    AdminOpcode::Identify,
    AdminOpcode::Abort,
    AdminOpcode::SetFeatures,
    AdminOpcode::GetFeatures,
    AdminOpcode::AsyncEventRequest,
];

/// The supported I/O commands; `true` for one that changes a namespace's contents.
const IO: [(NvmOpcode, bool); 7] = [
    (NvmOpcode::Flush, false),
    (NvmOpcode::Write, true),
    (NvmOpcode::Read, false),
    (NvmOpcode::Compare, false),
    (NvmOpcode::WriteZeroes, true),
    (NvmOpcode::DatasetManagement, true),
    (NvmOpcode::Verify, false),
];

impl Engine {
    pub(super) fn get_log_page(&mut self, entry: &SubmissionEntry) -> Result<Reply, Status> {
        let invalid = Status::INVALID_FIELD.with_dnr(true);
        let command = GetLogPage::from(entry);
        // No log page is specific to a namespace (Identify Controller, LPA).
        if command.lid == lid::SMART && !matches!(entry.nsid.get(), 0 | NSID_ALL) {
            return Err(invalid);
        }
        let page = self.log_page(&command)?;
        let offset = usize::try_from(command.lpo.get()).map_err(|_| invalid)?;
        let len = usize::try_from(command.bytes()).map_err(|_| invalid)?;
        if command.offset_type.ot() || offset % 4 != 0 {
            return Err(invalid);
        }
        let part = page.get(offset..).ok_or(invalid)?;
        self.data.send(Purpose::Control, entry, len, |buffer| {
            buffer.fill(0);
            for (to, from) in buffer.iter_mut().zip(part) {
                *to = *from;
            }
            Ok(())
        })?;
        if !command.flags.rae() {
            self.admin.events.clear(command.lid);
        }
        Ok(Reply::DONE)
    }

    fn log_page(&self, command: &GetLogPage) -> Result<Vec<u8>, Status> {
        Ok(match command.lid {
            lid::SUPPORTED_LOG_PAGES => supported_pages().as_bytes().to_vec(),
            lid::ERROR => self.errors(),
            lid::SMART => self
                .storage
                .health
                .smart(self.warning())
                .as_bytes()
                .to_vec(),
            lid::FIRMWARE_SLOT => firmware_slots().as_bytes().to_vec(),
            // Namespaces are never added, removed or changed.
            lid::CHANGED_NAMESPACES => ChangedNamespaces::new_zeroed().as_bytes().to_vec(),
            lid::COMMAND_EFFECTS => {
                let mut log = command_effects(command.csi)?;
                let config = AdminOpcode::DoorbellBufferConfig as usize;
                if let Some(entry) = log.admin.get_mut(config) {
                    *entry = CommandEffects::new().with_csupp(self.offers_doorbell_buffer());
                }
                log.as_bytes().to_vec()
            }
            lid::FEATURE_EFFECTS => feature_effects().as_bytes().to_vec(),
            lid::SANITIZE_STATUS => self.admin.sanitize.page().as_bytes().to_vec(),
            dma_log::LID => self.data.requester().ledger().counters().page(),
            dma_log::ATS_LID => self.data.requester().ats_counts().page(),
            _ => return Err(Status::INVALID_LOG_PAGE.with_dnr(true)),
        })
    }

    /// Returns the error log: the latest errors first, then zeros (NVMe Base 2.0, 5.16.1.2).
    fn errors(&self) -> Vec<u8> {
        let mut page: Vec<u8> = self
            .storage
            .health
            .recent_errors()
            .iter()
            .flat_map(|entry| entry.as_bytes().to_vec())
            .collect();
        page.resize(ERROR_ENTRIES * 64, 0);
        page
    }
}

fn supported_pages() -> SupportedLogPages {
    let mut log = SupportedLogPages::new_zeroed();
    for page in PAGES {
        if let Some(entry) = log.pages.get_mut(usize::from(page)) {
            *entry = LogPageSupport::new().with_lsupp(true);
        }
    }
    log
}

fn firmware_slots() -> FirmwareSlot {
    let mut log = FirmwareSlot::new_zeroed();
    log.afi = ActiveFirmware::new().with_active(1);
    if let Some(slot) = log.frs.first_mut() {
        *slot = firmware();
    }
    log
}

/// Returns the effects of the commands, for I/O those of the requested command set (NVMe Base 2.0,
/// 5.16.1.6).
fn command_effects(command_set: u8) -> Result<CommandEffectsLog, Status> {
    if command_set != csi::NVM {
        return Err(Status::INVALID_IO_COMMAND_SET.with_dnr(true));
    }
    let mut log = CommandEffectsLog::new_zeroed();
    let supported = CommandEffects::new().with_csupp(true);
    for opcode in ADMIN {
        if let Some(entry) = log.admin.get_mut(opcode as usize) {
            *entry = supported;
        }
    }
    if let Some(entry) = log.admin.get_mut(AdminOpcode::Sanitize as usize) {
        // No other command may be in flight for any namespace.
        *entry = supported.with_lbcc(true).with_cse(2);
    }
    for (opcode, changes) in IO {
        if let Some(entry) = log.io.get_mut(opcode as usize) {
            *entry = supported.with_lbcc(changes);
        }
    }
    Ok(log)
}

fn feature_effects() -> FeatureEffectsLog {
    let mut log = FeatureEffectsLog::new_zeroed();
    for feature in FEATURES {
        if let Some(entry) = log.features.get_mut(usize::from(feature)) {
            let of_namespace = feature == fid::ERROR_RECOVERY;
            *entry = FeatureEffects::new()
                .with_fsupp(true)
                .with_namespace_scope(of_namespace)
                .with_controller_scope(!of_namespace);
        }
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effects_name_every_command_and_which_change_data() {
        let log = command_effects(csi::NVM).unwrap();
        let bytes = log.as_bytes();
        let at =
            |index: usize| u32::from_le_bytes(bytes[index * 4..index * 4 + 4].try_into().unwrap());
        assert_eq!(at(0x06), 1, "NVME_CMD_EFFECTS_CSUPP of Identify");
        assert_eq!(at(0x84), 3 | 2 << 16, "CSUPP | LBCC, CSE of Sanitize");
        assert_eq!(at(0x80), 0, "Format NVM is not supported");
        assert_eq!(at(256 + 1), 3, "NVME_CMD_EFFECTS_CSUPP | LBCC of Write");
        assert_eq!(at(256 + 2), 1, "CSUPP of Read");
        assert!(command_effects(csi::ZONED).is_err());
    }
}
