//! Log pages (NVMe Base 2.0, 5.16.1). peerbar's vendor specific page is in [`crate::dma_log`].

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::completion::StatusField;

/// LID: Log Page Identifiers (NVMe Base 2.0, 5.16.1).
pub mod lid {
    /// [`crate::log::SupportedLogPages`].
    pub const SUPPORTED_LOG_PAGES: u8 = 0x00;
    /// A list of [`crate::log::ErrorEntry`].
    pub const ERROR: u8 = 0x01;
    /// [`crate::log::Smart`].
    pub const SMART: u8 = 0x02;
    /// [`crate::log::FirmwareSlot`].
    pub const FIRMWARE_SLOT: u8 = 0x03;
    /// [`crate::log::ChangedNamespaces`].
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// [`crate::log::CommandEffectsLog`].
    pub const COMMAND_EFFECTS: u8 = 0x05;
    /// [`crate::log::FeatureEffectsLog`].
    pub const FEATURE_EFFECTS: u8 = 0x12;
    /// [`crate::log::SanitizeStatus`].
    pub const SANITIZE_STATUS: u8 = 0x81;
}

/// Supported Log Pages (NVMe Base 2.0, 5.16.1.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SupportedLogPages {
    /// One for each LID.
    pub pages: [LogPageSupport; 256],
}

/// The support for one log page (NVMe Base 2.0, 5.16.1.1).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct LogPageSupport {
    /// LSUPP: the page is supported.
    pub lsupp: bool,
    /// IOS: an offset may be an index.
    pub ios: bool,
    #[bits(14)]
    __: u16,
    /// LID Specific Parameter.
    pub parameter: u16,
}

/// Error Information Log Entry (NVMe Base 2.0, 5.16.1.2). An entry of zeros is unused.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ErrorEntry {
    /// Error Count: the number of this error, counted from 1 since the first power-on.
    pub error_count: U64,
    /// Submission Queue ID, FFFFh if the error belongs to no command.
    pub sqid: U16,
    /// Command ID, FFFFh if the error belongs to no command.
    pub cid: U16,
    /// Status Field of the command.
    pub status: StatusField,
    /// Parameter Error Location: byte of the command in bits 7:0, bit in 10:8; FFFFh if there is
    /// none.
    pub parameter_error_location: U16,
    /// LBA: the first block that has the error.
    pub lba: U64,
    /// Namespace.
    pub nsid: U32,
    /// Vendor Specific Information Available: a LID, 0 if there is none.
    pub vendor_lid: u8,
    /// TRTYPE: Transport Type, 0 if the error has nothing to do with it.
    pub trtype: u8,
    _reserved_30: U16,
    /// Command Specific Information.
    pub command_specific: U64,
    /// Transport Type Specific Information.
    pub transport_specific: U16,
    _reserved_42: [u8; 22],
}

/// SMART / Health Information (NVMe Base 2.0, 5.16.1.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Smart {
    /// Critical Warning.
    pub critical_warning: CriticalWarning,
    /// Composite Temperature in kelvins.
    pub temperature: U16,
    /// Available Spare in percent.
    pub available_spare: u8,
    /// Available Spare Threshold in percent.
    pub available_spare_threshold: u8,
    /// Percentage Used of the device's life; may exceed 100.
    pub percentage_used: u8,
    /// Endurance Group Critical Warning Summary.
    pub endurance_group_warning: u8,
    _reserved_7: [u8; 25],
    /// Data Units Read: 512000 bytes each, rounded up.
    pub data_units_read: U128,
    /// Data Units Written: 512000 bytes each, rounded up.
    pub data_units_written: U128,
    /// Host Read Commands.
    pub host_reads: U128,
    /// Host Write Commands.
    pub host_writes: U128,
    /// Controller Busy Time in minutes.
    pub controller_busy_time: U128,
    /// Power Cycles.
    pub power_cycles: U128,
    /// Power On Hours.
    pub power_on_hours: U128,
    /// Unsafe Shutdowns.
    pub unsafe_shutdowns: U128,
    /// Media and Data Integrity Errors.
    pub media_errors: U128,
    /// Number of Error Information Log Entries since the first power-on.
    pub error_log_entries: U128,
    /// Warning Composite Temperature Time in minutes.
    pub warning_temperature_time: U32,
    /// Critical Composite Temperature Time in minutes.
    pub critical_temperature_time: U32,
    /// Temperature Sensors 1 to 8 in kelvins, 0 if there is none.
    pub temperature_sensors: [U16; 8],
    /// Thermal Management Temperature 1 and 2 Transition Counts.
    pub thermal_transitions: [U32; 2],
    /// Total Times for Thermal Management Temperature 1 and 2 in seconds.
    pub thermal_times: [U32; 2],
    _reserved_232: [u8; 280],
}

/// Critical Warning of the SMART log (NVMe Base 2.0, 5.16.1.3, byte 0).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct CriticalWarning {
    /// Spare capacity is below its threshold.
    pub spare: bool,
    /// A temperature is beyond its threshold.
    pub temperature: bool,
    /// The NVM subsystem is less reliable than it was.
    pub reliability: bool,
    /// All media is read only.
    pub read_only: bool,
    /// The backup of volatile memory has failed.
    pub backup: bool,
    /// The Persistent Memory Region is read only or unreliable.
    pub pmr: bool,
    #[bits(2)]
    __: u8,
}

/// Firmware Slot Information (NVMe Base 2.0, 5.16.1.4).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FirmwareSlot {
    /// AFI: Active Firmware Info.
    pub afi: ActiveFirmware,
    _reserved_1: [u8; 7],
    /// FRS1 to FRS7: the revision in each slot, ASCII; zeroes if the slot is empty.
    pub frs: [[u8; 8]; 7],
    _reserved_64: [u8; 448],
}

/// AFI: Active Firmware Info (NVMe Base 2.0, 5.16.1.4, byte 0).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ActiveFirmware {
    /// The slot that the controller runs, from 1.
    #[bits(3)]
    pub active: u8,
    #[bits(1)]
    __: u8,
    /// The slot that the next reset activates, 0 if not reported.
    #[bits(3)]
    pub next: u8,
    #[bits(1)]
    __: u8,
}

/// Changed Namespace List (NVMe Base 2.0, 5.16.1.5).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ChangedNamespaces {
    /// NSIDs in increasing order, then zeroes; the first is FFFFFFFFh if there are more than fit.
    pub nsids: [U32; 1024],
}

/// Commands Supported and Effects (NVMe Base 2.0, 5.16.1.6).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommandEffectsLog {
    /// ACS0 to ACS255: one for each admin opcode.
    pub admin: [CommandEffects; 256],
    /// IOCS0 to IOCS255: one for each I/O opcode.
    pub io: [CommandEffects; 256],
    _reserved_2048: [u8; 2048],
}

/// The effects of one command, in addition to its purpose (NVMe Base 2.0, 5.16.1.6).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct CommandEffects {
    /// CSUPP: the command is supported.
    pub csupp: bool,
    /// LBCC: the command may change the contents of blocks.
    pub lbcc: bool,
    /// NCC: the command may change the capabilities of a namespace.
    pub ncc: bool,
    /// NIC: the command may change the inventory of namespaces.
    pub nic: bool,
    /// CCC: the command may change the capabilities of the controller.
    pub ccc: bool,
    #[bits(11)]
    __: u16,
    /// CSE: 0 no restriction, 1 no other command for the same namespace may be in flight, 2 no
    /// other command for any namespace.
    #[bits(3)]
    pub cse: u8,
    /// USS: the command uses the UUID Index.
    pub uss: bool,
    #[bits(12)]
    __: u16,
}

/// Sanitize Status (NVMe Base 2.0, 5.16.1.25).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SanitizeStatus {
    /// SPROG: progress in units of 1/65536, or [`SanitizeStatus::NOT_IN_PROGRESS`].
    pub sprog: U16,
    /// SSTAT.
    pub sstat: SanitizeState,
    /// SCDW10: CDW10 of the command that started the last operation.
    pub scdw10: U32,
    /// Estimated times of an overwrite, a block erase and a crypto erase in seconds, then the same
    /// without deallocation; [`SanitizeStatus::NO_ESTIMATE`] if not reported.
    pub estimates: [U32; 6],
    _reserved_32: [u8; 480],
}

impl SanitizeStatus {
    /// SPROG while no operation is in progress.
    pub const NOT_IN_PROGRESS: u16 = 0xffff;
    /// No estimate is reported.
    pub const NO_ESTIMATE: u32 = 0xffff_ffff;
}

/// SSTAT of the Sanitize Status log (NVMe Base 2.0, 5.16.1.25).
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct SanitizeState {
    /// Status of the last operation: 0 if there was none, or for example
    /// [`SanitizeState::COMPLETED`].
    #[bits(3)]
    pub status: u8,
    /// Completed passes of an overwrite.
    #[bits(5)]
    pub passes: u8,
    /// Global Data Erased: no data has been written since.
    pub global_data_erased: bool,
    #[bits(7)]
    __: u8,
}

impl SanitizeState {
    /// The last operation has succeeded.
    pub const COMPLETED: u8 = 1;
    /// The last operation has failed.
    pub const FAILED: u8 = 3;
}

/// Feature Identifiers Supported and Effects (NVMe Base 2.0, 5.16.1.19).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FeatureEffectsLog {
    /// FIS0 to FIS255: one for each FID.
    pub features: [FeatureEffects; 256],
}

/// The effects of changing one feature, in addition to its purpose (NVMe Base 2.0, 5.16.1.19).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct FeatureEffects {
    /// FSUPP: the feature is supported.
    pub fsupp: bool,
    /// UDCC: the change may affect user data.
    pub udcc: bool,
    /// NCC: the change may affect the capabilities of a namespace.
    pub ncc: bool,
    /// NIC: the change may affect the inventory of namespaces.
    pub nic: bool,
    /// CCC: the change may affect the capabilities of the controller.
    pub ccc: bool,
    #[bits(14)]
    __: u16,
    /// USS: the feature uses the UUID Index.
    pub uss: bool,
    /// FSP: one value for each namespace.
    pub namespace_scope: bool,
    /// FSP: one value for each controller.
    pub controller_scope: bool,
    /// FSP: one value for each NVM Set.
    pub nvm_set_scope: bool,
    /// FSP: one value for each Endurance Group.
    pub endurance_group_scope: bool,
    /// FSP: one value for each domain.
    pub domain_scope: bool,
    /// FSP: one value for the NVM subsystem.
    pub subsystem_scope: bool,
    #[bits(6)]
    __: u8,
}

#[cfg(test)]
mod tests {
    use core::mem::{align_of, offset_of};

    use super::*;

    #[test]
    fn sanitize_status_is_as_linux_describes_it() {
        assert_eq!(size_of::<SanitizeStatus>(), 512); // struct nvme_sanitize_log_page
        assert_eq!(core::mem::offset_of!(SanitizeStatus, scdw10), 4);
        assert_eq!(core::mem::offset_of!(SanitizeStatus, estimates), 8);
        let bits = |state: SanitizeState| state.into_bits().get();
        assert_eq!(bits(SanitizeState::new().with_status(7)), 7); // libnvme NVME_SANITIZE_SSTAT_STATUS_MASK
        assert_eq!(bits(SanitizeState::new().with_passes(1)), 1 << 3); // libnvme NVME_SANITIZE_SSTAT_COMPLETED_PASSES_SHIFT
        let erased = SanitizeState::new().with_global_data_erased(true);
        assert_eq!(bits(erased), 1 << 8); // libnvme NVME_SANITIZE_SSTAT_GLOBAL_DATA_ERASED_SHIFT
    }

    #[test]
    fn lid_is_linux_nvme_log() {
        assert_eq!(lid::SUPPORTED_LOG_PAGES, 0x00); // libnvme NVME_LOG_LID_SUPPORTED_LOG_PAGES
        assert_eq!(lid::ERROR, 0x01); // NVME_LOG_ERROR
        assert_eq!(lid::SMART, 0x02); // NVME_LOG_SMART
        assert_eq!(lid::FIRMWARE_SLOT, 0x03); // NVME_LOG_FW_SLOT
        assert_eq!(lid::CHANGED_NAMESPACES, 0x04); // NVME_LOG_CHANGED_NS
        assert_eq!(lid::COMMAND_EFFECTS, 0x05); // NVME_LOG_CMD_EFFECTS
        assert_eq!(lid::FEATURE_EFFECTS, 0x12); // libnvme NVME_LOG_LID_FID_SUPPORTED_EFFECTS
    }

    #[test]
    fn supported_log_pages_is_libnvme_nvme_supported_log_pages() {
        assert_eq!(size_of::<SupportedLogPages>(), 1024);
        // nvme-cli: lsupp at bit 0, ios at bit 1, the parameter in 31:16
        assert_eq!(LogPageSupport::new().with_lsupp(true).into_bits().get(), 1);
        assert_eq!(LogPageSupport::new().with_ios(true).into_bits().get(), 2);
        assert_eq!(
            LogPageSupport::new().with_parameter(1).into_bits().get(),
            1 << 16
        );
    }

    #[test]
    fn error_entry_is_linux_nvme_error_slot() {
        assert_eq!(size_of::<ErrorEntry>(), 64);
        assert_eq!(align_of::<ErrorEntry>(), 1);
        assert_eq!(offset_of!(ErrorEntry, sqid), 8);
        assert_eq!(offset_of!(ErrorEntry, cid), 10); // cmdid
        assert_eq!(offset_of!(ErrorEntry, status), 12); // status_field
        assert_eq!(offset_of!(ErrorEntry, parameter_error_location), 14); // param_error_location
        assert_eq!(offset_of!(ErrorEntry, lba), 16);
        assert_eq!(offset_of!(ErrorEntry, nsid), 24);
        assert_eq!(offset_of!(ErrorEntry, vendor_lid), 28); // vs
        assert_eq!(offset_of!(ErrorEntry, trtype), 29); // libnvme
        assert_eq!(offset_of!(ErrorEntry, command_specific), 32); // cs
        assert_eq!(offset_of!(ErrorEntry, transport_specific), 40); // libnvme trtype_spec_info
    }

    #[test]
    fn smart_is_linux_nvme_smart_log() {
        assert_eq!(size_of::<Smart>(), 512);
        assert_eq!(align_of::<Smart>(), 1);
        assert_eq!(offset_of!(Smart, temperature), 1);
        assert_eq!(offset_of!(Smart, available_spare), 3); // avail_spare
        assert_eq!(offset_of!(Smart, available_spare_threshold), 4); // spare_thresh
        assert_eq!(offset_of!(Smart, percentage_used), 5); // percent_used
        assert_eq!(offset_of!(Smart, endurance_group_warning), 6); // endu_grp_crit_warn_sumry
        assert_eq!(offset_of!(Smart, data_units_read), 32);
        assert_eq!(offset_of!(Smart, data_units_written), 48);
        assert_eq!(offset_of!(Smart, host_reads), 64);
        assert_eq!(offset_of!(Smart, host_writes), 80);
        assert_eq!(offset_of!(Smart, controller_busy_time), 96); // ctrl_busy_time
        assert_eq!(offset_of!(Smart, power_cycles), 112);
        assert_eq!(offset_of!(Smart, power_on_hours), 128);
        assert_eq!(offset_of!(Smart, unsafe_shutdowns), 144);
        assert_eq!(offset_of!(Smart, media_errors), 160);
        assert_eq!(offset_of!(Smart, error_log_entries), 176); // num_err_log_entries
        assert_eq!(offset_of!(Smart, warning_temperature_time), 192); // warning_temp_time
        assert_eq!(offset_of!(Smart, critical_temperature_time), 196); // critical_comp_time
        assert_eq!(offset_of!(Smart, temperature_sensors), 200); // temp_sensor
        assert_eq!(offset_of!(Smart, thermal_transitions), 216); // thm_temp1_trans_count
        assert_eq!(offset_of!(Smart, thermal_times), 224); // thm_temp1_total_time
    }

    #[test]
    fn critical_warning_is_linux_nvme_smart_crit() {
        assert_eq!(CriticalWarning::new().with_spare(true).into_bits(), 1 << 0); // NVME_SMART_CRIT_SPARE
        assert_eq!(
            CriticalWarning::new().with_temperature(true).into_bits(),
            1 << 1
        ); // NVME_SMART_CRIT_TEMPERATURE
        assert_eq!(
            CriticalWarning::new().with_reliability(true).into_bits(),
            1 << 2
        ); // NVME_SMART_CRIT_RELIABILITY
        assert_eq!(
            CriticalWarning::new().with_read_only(true).into_bits(),
            1 << 3
        ); // NVME_SMART_CRIT_MEDIA
        assert_eq!(CriticalWarning::new().with_backup(true).into_bits(), 1 << 4); // NVME_SMART_CRIT_VOLATILE_MEMORY
        assert_eq!(CriticalWarning::new().with_pmr(true).into_bits(), 1 << 5); // libnvme NVME_SMART_CRIT_PMR_RO
    }

    #[test]
    fn firmware_slot_is_linux_nvme_fw_slot_info_log() {
        assert_eq!(size_of::<FirmwareSlot>(), 512);
        assert_eq!(offset_of!(FirmwareSlot, frs), 8);
        assert_eq!(ActiveFirmware::new().with_active(7).into_bits(), 0x07); // nvme_get_fw_slot_info: afi & 0x7
        assert_eq!(ActiveFirmware::new().with_next(7).into_bits(), 0x70); // nvme_get_fw_slot_info: afi >> 4 & 0x7
    }

    #[test]
    fn changed_namespaces_holds_linux_nvme_max_changed_namespaces() {
        assert_eq!(size_of::<ChangedNamespaces>(), 1024 * 4); // NVME_MAX_CHANGED_NAMESPACES
    }

    #[test]
    fn command_effects_are_linux_nvme_cmd_effects() {
        assert_eq!(size_of::<CommandEffectsLog>(), 4096); // nvme_effects_log
        assert_eq!(offset_of!(CommandEffectsLog, io), 1024); // iocs
        assert_eq!(
            CommandEffects::new().with_csupp(true).into_bits().get(),
            1 << 0
        ); // NVME_CMD_EFFECTS_CSUPP
        assert_eq!(
            CommandEffects::new().with_lbcc(true).into_bits().get(),
            1 << 1
        ); // NVME_CMD_EFFECTS_LBCC
        assert_eq!(
            CommandEffects::new().with_ncc(true).into_bits().get(),
            1 << 2
        ); // NVME_CMD_EFFECTS_NCC
        assert_eq!(
            CommandEffects::new().with_nic(true).into_bits().get(),
            1 << 3
        ); // NVME_CMD_EFFECTS_NIC
        assert_eq!(
            CommandEffects::new().with_ccc(true).into_bits().get(),
            1 << 4
        ); // NVME_CMD_EFFECTS_CCC
        assert_eq!(CommandEffects::new().with_cse(7).into_bits().get(), 7 << 16); // NVME_CMD_EFFECTS_CSE_MASK
        assert_eq!(
            CommandEffects::new().with_uss(true).into_bits().get(),
            1 << 19
        ); // NVME_CMD_EFFECTS_UUID_SEL
    }

    #[test]
    fn feature_effects_are_libnvme_nvme_fid_supported_effects() {
        let bits = |effects: FeatureEffects| effects.into_bits().get();
        let none = FeatureEffects::new();
        assert_eq!(size_of::<FeatureEffectsLog>(), 1024); // nvme_fid_supported_effects_log
        assert_eq!(bits(none.with_fsupp(true)), 1 << 0); // NVME_FID_SUPPORTED_EFFECTS_FSUPP
        assert_eq!(bits(none.with_udcc(true)), 1 << 1); // NVME_FID_SUPPORTED_EFFECTS_UDCC
        assert_eq!(bits(none.with_ncc(true)), 1 << 2); // NVME_FID_SUPPORTED_EFFECTS_NCC
        assert_eq!(bits(none.with_nic(true)), 1 << 3); // NVME_FID_SUPPORTED_EFFECTS_NIC
        assert_eq!(bits(none.with_ccc(true)), 1 << 4); // NVME_FID_SUPPORTED_EFFECTS_CCC
        assert_eq!(bits(none.with_uss(true)), 1 << 19); // NVME_FID_SUPPORTED_EFFECTS_UUID_SEL
        assert_eq!(bits(none.with_namespace_scope(true)), 1 << 20); // ..._SCOPE_SHIFT, ..._SCOPE_NS
        assert_eq!(bits(none.with_controller_scope(true)), 1 << 21); // ..._SCOPE_CTRL
        assert_eq!(bits(none.with_nvm_set_scope(true)), 1 << 22); // ..._SCOPE_NVM_SET
        assert_eq!(bits(none.with_endurance_group_scope(true)), 1 << 23); // ..._SCOPE_ENDGRP
        assert_eq!(bits(none.with_domain_scope(true)), 1 << 24); // ..._SCOPE_DOMAIN
        assert_eq!(bits(none.with_subsystem_scope(true)), 1 << 25); // ..._SCOPE_NSS
    }
}
