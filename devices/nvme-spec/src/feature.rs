//! Features: their identifiers, and the values that Get Features and Set Features carry for each
//! (NVMe Base 2.0, 5.27.1).

use bitfield_struct::bitfield;
use thiserror::Error;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned, try_transmute,
};

/// FID: Feature Identifiers (NVMe Base 2.0, 5.27.1 and NVM Command Set 1.0, 4.1.3).
pub mod fid {
    /// [`crate::feature::Arbitration`].
    pub const ARBITRATION: u8 = 0x01;
    /// [`crate::feature::PowerManagement`].
    pub const POWER_MANAGEMENT: u8 = 0x02;
    /// [`crate::feature::TemperatureThreshold`].
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    /// [`crate::feature::ErrorRecovery`].
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// [`crate::feature::VolatileWriteCache`].
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// [`crate::feature::NumberOfQueues`].
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// [`crate::feature::InterruptCoalescing`].
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    /// [`crate::feature::InterruptVectorConfiguration`].
    pub const INTERRUPT_VECTOR_CONFIGURATION: u8 = 0x09;
    /// Write Atomicity Normal (NVM Command Set 1.0, 4.1.3).
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// [`crate::feature::AsyncEventConfiguration`].
    pub const ASYNC_EVENT_CONFIGURATION: u8 = 0x0b;
    /// [`crate::feature::Timestamp`].
    pub const TIMESTAMP: u8 = 0x0e;
    /// Host Behavior Support (NVMe Base 2.0, 5.27.1.18).
    pub const HOST_BEHAVIOR_SUPPORT: u8 = 0x16;
    /// Software Progress Marker (NVMe Base 2.0, 5.27.1).
    pub const SOFTWARE_PROGRESS_MARKER: u8 = 0x80;
    /// [`crate::feature::HostIdentifier`].
    pub const HOST_IDENTIFIER: u8 = 0x81;
}

/// SEL: selects the value that Get Features returns (NVMe Base 2.0, 5.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(u8)]
pub enum Select {
    /// The value in effect.
    Current = 0,
    /// The default value.
    Default = 1,
    /// The value that a power cycle restores.
    Saved = 2,
    /// No value; [`Capabilities`] instead.
    SupportedCapabilities = 3,
}

/// A SEL that NVMe 2.0 does not define.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("reserved select {0}")]
pub struct ReservedSelect(pub u8);

impl TryFrom<u8> for Select {
    type Error = ReservedSelect;

    fn try_from(sel: u8) -> Result<Self, ReservedSelect> {
        try_transmute!(sel).map_err(|_| ReservedSelect(sel))
    }
}

/// The data of Get Features for [`Select::SupportedCapabilities`] (NVMe Base 2.0, 5.15.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Capabilities {
    /// The value can be saved.
    pub saveable: bool,
    /// Each namespace has its own value.
    pub namespace_specific: bool,
    /// The value can be changed.
    pub changeable: bool,
    #[bits(29)]
    __: u32,
}

/// Arbitration (NVMe Base 2.0, 5.27.1.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Arbitration {
    /// AB: Arbitration Burst: `1 << ab` commands, 7 no limit.
    #[bits(3)]
    pub ab: u8,
    #[bits(5)]
    __: u8,
    /// LPW: Low Priority Weight, 0's based.
    pub lpw: u8,
    /// MPW: Medium Priority Weight, 0's based.
    pub mpw: u8,
    /// HPW: High Priority Weight, 0's based.
    pub hpw: u8,
}

/// Power Management (NVMe Base 2.0, 5.27.1.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct PowerManagement {
    /// PS: Power State.
    #[bits(5)]
    pub ps: u8,
    /// WH: Workload Hint.
    #[bits(3)]
    pub wh: u8,
    #[bits(24)]
    __: u32,
}

/// Temperature Threshold (NVMe Base 2.0, 5.27.1.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct TemperatureThreshold {
    /// TMPTH: the threshold in kelvins.
    pub tmpth: u16,
    /// TMPSEL: 0 the composite temperature, 1 to 8 a sensor, 15 all of them (Set Features).
    #[bits(4)]
    pub tmpsel: u8,
    /// THSEL: 0 over, 1 under temperature.
    #[bits(2)]
    pub thsel: u8,
    #[bits(10)]
    __: u16,
}

/// Error Recovery (NVM Command Set 1.0, 4.1.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ErrorRecovery {
    /// TLER: Time Limited Error Recovery in units of 100 ms, 0 no limit.
    pub tler: u16,
    /// DULBE: reading deallocated or unwritten blocks is an error.
    pub dulbe: bool,
    #[bits(15)]
    __: u16,
}

/// Volatile Write Cache (NVMe Base 2.0, 5.27.1.4).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct VolatileWriteCache {
    /// WCE: the cache is in use.
    pub wce: bool,
    #[bits(31)]
    __: u32,
}

/// Number of Queues (NVMe Base 2.0, 5.27.1.5): requested in dword 11, granted in the completion's
/// dword 0.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct NumberOfQueues {
    /// NSQR or NSQA: I/O submission queues, 0's based.
    pub nsq: u16,
    /// NCQR or NCQA: I/O completion queues, 0's based.
    pub ncq: u16,
}

/// Interrupt Coalescing (NVMe Base 2.0, 5.27.1.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct InterruptCoalescing {
    /// THR: Aggregation Threshold in completions, 0's based.
    pub thr: u8,
    /// TIME: Aggregation Time in units of 100 microseconds, 0 for no delay.
    pub time: u8,
    #[bits(16)]
    __: u16,
}

/// Interrupt Vector Configuration (NVMe Base 2.0, 5.27.1.7).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct InterruptVectorConfiguration {
    /// IV: the vector.
    pub iv: u16,
    /// CD: no coalescing on this vector.
    pub cd: bool,
    #[bits(15)]
    __: u16,
}

/// Asynchronous Event Configuration: the events to report (NVMe Base 2.0, 5.27.1.8).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AsyncEventConfiguration {
    /// The bits of [`crate::log::CriticalWarning`] to report.
    pub critical_warnings: u8,
    /// Namespace Attribute Notices.
    pub namespace_attribute: bool,
    /// Firmware Activation Notices.
    pub firmware_activation: bool,
    /// Telemetry Log Notices.
    pub telemetry: bool,
    /// Asymmetric Namespace Access Change Notices.
    pub ana_change: bool,
    /// Predictable Latency Event Aggregate Log Change Notices.
    pub predictable_latency: bool,
    /// LBA Status Information Notices.
    pub lba_status: bool,
    /// Endurance Group Event Aggregate Log Page Change Notices.
    pub endurance_group: bool,
    /// Normal NVM Subsystem Shutdown.
    pub normal_shutdown: bool,
    #[bits(16)]
    __: u16,
}

/// Timestamp, the data of both commands (NVMe Base 2.0, 5.27.1.11).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Timestamp {
    milliseconds: [u8; 6],
    /// The origin of the time (Get Features).
    pub attributes: TimestampAttributes,
    _reserved_7: u8,
}

impl Timestamp {
    /// Returns a timestamp of `milliseconds`, or `None` if they do not fit 48 bits.
    pub fn new(milliseconds: u64, attributes: TimestampAttributes) -> Option<Self> {
        let [a, b, c, d, e, f, 0, 0] = milliseconds.to_le_bytes() else {
            return None;
        };
        Some(Self {
            milliseconds: [a, b, c, d, e, f],
            attributes,
            _reserved_7: 0,
        })
    }

    /// Returns milliseconds since the start of 1970 UTC, or since a reset, according to
    /// `attributes`.
    pub fn milliseconds(&self) -> u64 {
        let [a, b, c, d, e, f] = self.milliseconds;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }
}

/// The origin of a timestamp (NVMe Base 2.0, 5.27.1.11).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct TimestampAttributes {
    /// The controller's clock may have stopped since the time was set.
    pub stopped: bool,
    /// Timestamp Origin: 0 a reset of the controller, 1 Set Features.
    #[bits(3)]
    pub origin: u8,
    #[bits(4)]
    __: u8,
}

/// Host Identifier: dword 11; the identifier itself is data of 8 or 16 bytes (NVMe Base 2.0,
/// 5.27.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct HostIdentifier {
    /// EXHID: the identifier has 16 bytes, not 8.
    pub exhid: bool,
    #[bits(31)]
    __: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fid_is_linux_nvme_feat() {
        assert_eq!(fid::ARBITRATION, 0x01); // NVME_FEAT_ARBITRATION
        assert_eq!(fid::POWER_MANAGEMENT, 0x02); // NVME_FEAT_POWER_MGMT
        assert_eq!(fid::TEMPERATURE_THRESHOLD, 0x04); // NVME_FEAT_TEMP_THRESH
        assert_eq!(fid::ERROR_RECOVERY, 0x05); // NVME_FEAT_ERR_RECOVERY
        assert_eq!(fid::VOLATILE_WRITE_CACHE, 0x06); // NVME_FEAT_VOLATILE_WC
        assert_eq!(fid::NUMBER_OF_QUEUES, 0x07); // NVME_FEAT_NUM_QUEUES
        assert_eq!(fid::INTERRUPT_COALESCING, 0x08); // NVME_FEAT_IRQ_COALESCE
        assert_eq!(fid::INTERRUPT_VECTOR_CONFIGURATION, 0x09); // NVME_FEAT_IRQ_CONFIG
        assert_eq!(fid::WRITE_ATOMICITY, 0x0a); // NVME_FEAT_WRITE_ATOMIC
        assert_eq!(fid::ASYNC_EVENT_CONFIGURATION, 0x0b); // NVME_FEAT_ASYNC_EVENT
        assert_eq!(fid::TIMESTAMP, 0x0e); // NVME_FEAT_TIMESTAMP
        assert_eq!(fid::HOST_BEHAVIOR_SUPPORT, 0x16); // NVME_FEAT_HOST_BEHAVIOR
        assert_eq!(fid::SOFTWARE_PROGRESS_MARKER, 0x80); // NVME_FEAT_SW_PROGRESS
        assert_eq!(fid::HOST_IDENTIFIER, 0x81); // NVME_FEAT_HOST_ID
    }

    #[test]
    fn select_is_libnvme_nvme_get_features_sel() {
        assert_eq!(Select::try_from(0), Ok(Select::Current)); // NVME_GET_FEATURES_SEL_CURRENT
        assert_eq!(Select::try_from(1), Ok(Select::Default)); // NVME_GET_FEATURES_SEL_DEFAULT
        assert_eq!(Select::try_from(2), Ok(Select::Saved)); // NVME_GET_FEATURES_SEL_SAVED
        assert_eq!(Select::try_from(3), Ok(Select::SupportedCapabilities)); // NVME_GET_FEATURES_SEL_SUPPORTED
        for sel in 4..=u8::MAX {
            assert_eq!(Select::try_from(sel), Err(ReservedSelect(sel)));
        }
        assert_eq!(ReservedSelect(7).to_string(), "reserved select 7");
    }

    #[test]
    fn capabilities_are_as_nvme_cli_prints_them() {
        // nvme-cli nvme_show_select_result(): 1 saveable, 2 namespace specific, 4 changeable.
        assert_eq!(Capabilities::new().with_saveable(true).into_bits(), 0x1);
        assert_eq!(
            Capabilities::new()
                .with_namespace_specific(true)
                .into_bits(),
            0x2
        );
        assert_eq!(Capabilities::new().with_changeable(true).into_bits(), 0x4);
    }

    #[test]
    fn thresholds_are_libnvme_nvme_feat() {
        let value = Arbitration::new().with_ab(7);
        assert_eq!(value.into_bits(), 7); // NVME_FEAT_ARBITRATION_BURST_MASK
        let value = Arbitration::new().with_lpw(1);
        assert_eq!(value.into_bits(), 1 << 8); // NVME_FEAT_ARBITRATION_LPW_SHIFT
        let value = Arbitration::new().with_mpw(1);
        assert_eq!(value.into_bits(), 1 << 16); // NVME_FEAT_ARBITRATION_MPW_SHIFT
        let value = Arbitration::new().with_hpw(1);
        assert_eq!(value.into_bits(), 1 << 24); // NVME_FEAT_ARBITRATION_HPW_SHIFT
        let value = PowerManagement::new().with_ps(0x1f);
        assert_eq!(value.into_bits(), 0x1f); // NVME_FEAT_PWRMGMT_PS_MASK
        let value = PowerManagement::new().with_wh(7);
        assert_eq!(value.into_bits(), 7 << 5); // NVME_FEAT_PWRMGMT_WH_SHIFT
        let value = TemperatureThreshold::new().with_tmpth(0xffff);
        assert_eq!(value.into_bits(), 0xffff); // Linux NVME_TEMP_THRESH_MASK
        let value = TemperatureThreshold::new().with_tmpsel(1);
        assert_eq!(value.into_bits(), 1 << 16); // Linux NVME_TEMP_THRESH_SELECT_SHIFT
        let value = TemperatureThreshold::new().with_thsel(1);
        assert_eq!(value.into_bits(), 0x10_0000); // Linux NVME_TEMP_THRESH_TYPE_UNDER
        let value = ErrorRecovery::new().with_tler(0xffff);
        assert_eq!(value.into_bits(), 0xffff); // NVME_FEAT_ERROR_RECOVERY_TLER_MASK
        let value = ErrorRecovery::new().with_dulbe(true);
        assert_eq!(value.into_bits(), 1 << 16); // NVME_FEAT_ERROR_RECOVERY_DULBE_SHIFT
    }

    #[test]
    fn switches_are_libnvme_nvme_feat() {
        let value = VolatileWriteCache::new().with_wce(true);
        assert_eq!(value.into_bits(), 1); // NVME_FEAT_VWC_WCE_MASK
        let value = NumberOfQueues::new().with_nsq(1);
        assert_eq!(value.into_bits(), 1); // NVME_FEAT_NRQS_NSQR_SHIFT
        let value = NumberOfQueues::new().with_ncq(1);
        assert_eq!(value.into_bits(), 1 << 16); // NVME_FEAT_NRQS_NCQR_SHIFT
        let value = InterruptCoalescing::new().with_thr(0xff);
        assert_eq!(value.into_bits(), 0xff); // NVME_FEAT_IRQC_THR_MASK
        let value = InterruptCoalescing::new().with_time(1);
        assert_eq!(value.into_bits(), 1 << 8); // NVME_FEAT_IRQC_TIME_SHIFT
        let value = InterruptVectorConfiguration::new().with_iv(0xffff);
        assert_eq!(value.into_bits(), 0xffff); // NVME_FEAT_ICFG_IV_MASK
        let value = InterruptVectorConfiguration::new().with_cd(true);
        assert_eq!(value.into_bits(), 1 << 16); // NVME_FEAT_ICFG_CD_SHIFT
        let value = HostIdentifier::new().with_exhid(true);
        assert_eq!(value.into_bits(), 1); // NVME_FEAT_HOSTID_EXHID_MASK
    }

    #[test]
    fn events_are_switched_by_linux_nvme_aen_cfg() {
        let bits = |configuration: AsyncEventConfiguration| configuration.into_bits();
        let none = AsyncEventConfiguration::new();
        assert_eq!(bits(none.with_critical_warnings(0xff)), 0xff); // libnvme NVME_FEAT_AE_SMART_MASK
        assert_eq!(bits(none.with_namespace_attribute(true)), 1 << 8); // NVME_AEN_CFG_NS_ATTR
        assert_eq!(bits(none.with_firmware_activation(true)), 1 << 9); // NVME_AEN_CFG_FW_ACT
        assert_eq!(bits(none.with_telemetry(true)), 1 << 10); // libnvme NVME_FEAT_AE_TELEM_SHIFT
        assert_eq!(bits(none.with_ana_change(true)), 1 << 11); // NVME_AEN_CFG_ANA_CHANGE
        assert_eq!(bits(none.with_predictable_latency(true)), 1 << 12); // libnvme NVME_FEAT_AE_PLA_SHIFT
        assert_eq!(bits(none.with_lba_status(true)), 1 << 13); // libnvme NVME_FEAT_AE_LBAS_SHIFT
        assert_eq!(bits(none.with_endurance_group(true)), 1 << 14); // libnvme NVME_FEAT_AE_EGA_SHIFT
    }

    #[test]
    fn timestamp_is_libnvme_nvme_timestamp() {
        assert_eq!(size_of::<Timestamp>(), 8);
        let attributes = TimestampAttributes::new().with_origin(1);
        let timestamp = Timestamp::new(0x0123_4567_89ab, attributes).unwrap();
        assert_eq!(
            timestamp.as_bytes(),
            [0xab, 0x89, 0x67, 0x45, 0x23, 0x01, 0x02, 0]
        );
        assert_eq!(timestamp.milliseconds(), 0x0123_4567_89ab);
        assert!(Timestamp::new(1 << 48, attributes).is_none());
    }
}
