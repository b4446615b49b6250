//! The values of the features (NVMe Base 2.0, 5.27; NVM Command Set 1.0, 4.1.3).
//!
//! Arbitration is stored and reported, but has no effect: it is a recommendation to a controller.

use std::collections::BTreeMap;
use std::time::Instant;

use peerbar_nvme_spec::completion::Status;
use peerbar_nvme_spec::feature::{
    Arbitration, AsyncEventConfiguration, ErrorRecovery, HostIdentifier, InterruptCoalescing,
    InterruptVectorConfiguration, NumberOfQueues, PowerManagement, TemperatureThreshold, Timestamp,
    TimestampAttributes, VolatileWriteCache, fid,
};
use peerbar_nvme_spec::log::CriticalWarning;
use zerocopy::{FromBytes, IntoBytes};

use crate::health::TEMPERATURE;
use crate::registers::QUEUE_PAIRS;

/// Queues for I/O, 0's based.
const MOST_QUEUES: u16 = QUEUE_PAIRS - 2;
/// Timestamp, TimestampAttributes::origin: Set Features.
const SET_BY_HOST: u8 = 1;

/// Features that consist of dword 11 alone, with their defaults.
const PLAIN: [(u8, u32); 6] = [
    (fid::ARBITRATION, Arbitration::new().with_ab(4).into_bits()),
    (fid::POWER_MANAGEMENT, 0),
    (
        fid::VOLATILE_WRITE_CACHE,
        VolatileWriteCache::new().with_wce(true).into_bits(),
    ),
    (fid::INTERRUPT_COALESCING, 0),
    (fid::WRITE_ATOMICITY, 0),
    (fid::ASYNC_EVENT_CONFIGURATION, 0),
];

/// The supported features.
pub(super) const SUPPORTED: [u8; 14] = [
    fid::ARBITRATION,
    fid::POWER_MANAGEMENT,
    fid::TEMPERATURE_THRESHOLD,
    fid::ERROR_RECOVERY,
    fid::VOLATILE_WRITE_CACHE,
    fid::NUMBER_OF_QUEUES,
    fid::INTERRUPT_COALESCING,
    fid::INTERRUPT_VECTOR_CONFIGURATION,
    fid::WRITE_ATOMICITY,
    fid::ASYNC_EVENT_CONFIGURATION,
    fid::TIMESTAMP,
    fid::HOST_BEHAVIOR_SUPPORT,
    fid::SOFTWARE_PROGRESS_MARKER,
    fid::HOST_IDENTIFIER,
];

/// The values in effect.
#[derive(Clone, Debug)]
pub(crate) struct Features {
    plain: BTreeMap<u8, u32>,
    /// Over and under temperature thresholds in kelvins.
    thresholds: [u16; 2],
    error_recovery: Vec<u32>,
    uncoalesced: Vec<bool>,
    /// Submission and completion queues, 0's based.
    granted_queues: [u16; 2],
    /// Queue pairs that are granted in addition to those that the host asks for.
    spare_queues: u16,
    timestamp: (u64, Instant, TimestampAttributes),
    host_behavior: [u8; 512],
    software_progress: u32,
    host_identifier: [u8; 16],
}

impl Features {
    pub(super) fn new(namespaces: usize, spare_queues: u16) -> Self {
        Self {
            plain: PLAIN.into(),
            thresholds: [343, 0],
            error_recovery: vec![0; namespaces],
            uncoalesced: vec![false; QUEUE_PAIRS.into()],
            granted_queues: [MOST_QUEUES; 2],
            spare_queues,
            timestamp: (0, Instant::now(), TimestampAttributes::new()),
            host_behavior: [0; 512],
            software_progress: 0,
            host_identifier: [0; 16],
        }
    }

    /// Handles a controller reset: all features get their defaults, except the timestamp and the
    /// Software Progress Marker, which counts boots.
    pub(super) fn reset(&mut self) {
        *self = Self {
            timestamp: self.timestamp,
            software_progress: self.software_progress,
            ..Self::new(self.error_recovery.len(), self.spare_queues)
        };
    }

    /// Returns Number of Queues: the highest number of a submission and of a completion queue.
    pub(super) fn granted_queues(&self) -> [u16; 2] {
        self.granted_queues.map(|granted| granted + 1)
    }

    /// Returns Volatile Write Cache: `true` if writes may wait for a Flush.
    pub(super) fn write_cache(&self) -> bool {
        self.plain(fid::VOLATILE_WRITE_CACHE)
            .is_some_and(|value| VolatileWriteCache::from_bits(value).wce())
    }

    /// Returns Interrupt Coalescing, and for each vector `true` if coalescing is disabled.
    pub(super) fn coalescing(&self) -> (InterruptCoalescing, &[bool]) {
        let bits = self.plain(fid::INTERRUPT_COALESCING).unwrap_or(0);
        (InterruptCoalescing::from_bits(bits), &self.uncoalesced)
    }

    /// Returns the SMART warnings that follow from the features: a temperature beyond a threshold.
    pub(super) fn warning(&self) -> CriticalWarning {
        let [over, under] = self.thresholds;
        CriticalWarning::new().with_temperature(TEMPERATURE >= over || TEMPERATURE <= under)
    }

    /// Returns `true` if the host has enabled events for this SMART warning.
    pub(super) fn wants(&self, warning: CriticalWarning) -> bool {
        let wanted = self
            .plain(fid::ASYNC_EVENT_CONFIGURATION)
            .map(AsyncEventConfiguration::from_bits);
        wanted.is_some_and(|wanted| wanted.critical_warnings() & warning.into_bits() != 0)
    }

    fn plain(&self, fid: u8) -> Option<u32> {
        self.plain.get(&fid).copied()
    }

    fn milliseconds(&self) -> u64 {
        let (set, at, _) = self.timestamp;
        let passed = u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        set.saturating_add(passed) & 0xffff_ffff_ffff
    }

    /// Returns a feature's value for dword 0. `dword` is the command's dword 11; `index` is the
    /// namespace's index, if the command names one.
    pub(super) fn value(&self, fid: u8, dword: u32, index: Option<usize>) -> Result<u32, Status> {
        let [submission, completion] = self.granted_queues;
        Ok(match fid {
            fid::TEMPERATURE_THRESHOLD => {
                let asked = TemperatureThreshold::from_bits(dword);
                let value = self
                    .thresholds
                    .get(usize::from(asked.thsel()))
                    .filter(|_| asked.tmpsel() == 0);
                value
                    .copied()
                    .ok_or(Status::INVALID_FIELD.with_dnr(true))?
                    .into()
            }
            fid::ERROR_RECOVERY => {
                let value = index.and_then(|index| self.error_recovery.get(index));
                *value.ok_or(Status::INVALID_NAMESPACE.with_dnr(true))?
            }
            fid::NUMBER_OF_QUEUES => NumberOfQueues::new()
                .with_nsq(submission)
                .with_ncq(completion)
                .into_bits(),
            fid::INTERRUPT_VECTOR_CONFIGURATION => {
                let asked = InterruptVectorConfiguration::from_bits(dword);
                let value = self.uncoalesced.get(usize::from(asked.iv()));
                let value = *value.ok_or(Status::INVALID_FIELD.with_dnr(true))?;
                InterruptVectorConfiguration::new()
                    .with_iv(asked.iv())
                    .with_cd(value)
                    .into_bits()
            }
            fid::SOFTWARE_PROGRESS_MARKER => self.software_progress,
            fid::TIMESTAMP | fid::HOST_BEHAVIOR_SUPPORT | fid::HOST_IDENTIFIER => 0,
            _ => self
                .plain(fid)
                .ok_or(Status::INVALID_FIELD.with_dnr(true))?,
        })
    }

    /// Returns a feature's data, or `None` if the feature has no data.
    pub(super) fn data(&self, fid: u8, dword: u32) -> Option<Vec<u8>> {
        match fid {
            fid::TIMESTAMP => {
                let (_, _, attributes) = self.timestamp;
                Timestamp::new(self.milliseconds(), attributes).map(|time| time.as_bytes().to_vec())
            }
            fid::HOST_BEHAVIOR_SUPPORT => Some(self.host_behavior.to_vec()),
            fid::HOST_IDENTIFIER => {
                let len = host_identifier_bytes(dword);
                Some(self.host_identifier.iter().copied().take(len).collect())
            }
            _ => None,
        }
    }

    /// Sets a feature that comes with data.
    pub(super) fn set_data(&mut self, fid: u8, data: &[u8]) -> Result<(), Status> {
        let invalid = Status::INVALID_FIELD.with_dnr(true);
        match fid {
            fid::TIMESTAMP => {
                let (time, _) = Timestamp::ref_from_prefix(data).map_err(|_| invalid)?;
                let origin = TimestampAttributes::new().with_origin(SET_BY_HOST);
                self.timestamp = (time.milliseconds(), Instant::now(), origin);
            }
            fid::HOST_BEHAVIOR_SUPPORT => {
                self.host_behavior = data.try_into().map_err(|_| invalid)?;
            }
            _ => {
                self.host_identifier = [0; 16];
                for (to, from) in self.host_identifier.iter_mut().zip(data) {
                    *to = *from;
                }
            }
        }
        Ok(())
    }

    /// Sets a feature whose value is dword 11. Returns dword 0 of the completion.
    pub(super) fn set_value(
        &mut self,
        fid: u8,
        dword: u32,
        indexes: std::ops::Range<usize>,
    ) -> Result<u32, Status> {
        let invalid = Status::INVALID_FIELD.with_dnr(true);
        match fid {
            fid::POWER_MANAGEMENT if PowerManagement::from_bits(dword).ps() != 0 => {
                return Err(invalid);
            }
            fid::TEMPERATURE_THRESHOLD => {
                let asked = TemperatureThreshold::from_bits(dword);
                let threshold = self.thresholds.get_mut(usize::from(asked.thsel()));
                *threshold
                    .filter(|_| matches!(asked.tmpsel(), 0 | 15))
                    .ok_or(invalid)? = asked.tmpth();
            }
            fid::ERROR_RECOVERY => {
                if ErrorRecovery::from_bits(dword).dulbe() {
                    return Err(invalid);
                }
                self.error_recovery
                    .get_mut(indexes)
                    .ok_or(invalid)?
                    .fill(dword);
            }
            fid::INTERRUPT_VECTOR_CONFIGURATION => {
                let asked = InterruptVectorConfiguration::from_bits(dword);
                *self
                    .uncoalesced
                    .get_mut(usize::from(asked.iv()))
                    .ok_or(invalid)? = asked.cd();
            }
            fid::SOFTWARE_PROGRESS_MARKER => self.software_progress = dword,
            _ => {
                *self.plain.get_mut(&fid).ok_or(invalid)? = dword;
            }
        }
        Ok(0)
    }

    /// Number of Queues: grants the requested and the spare queues, up to the limit. A controller
    /// may grant more queues than the host requests (NVMe Base 2.0, 5.27.1.5).
    pub(super) fn grant_queues(&mut self, dword: u32) -> Result<u32, Status> {
        let asked = NumberOfQueues::from_bits(dword);
        if asked.nsq() == u16::MAX || asked.ncq() == u16::MAX {
            return Err(Status::INVALID_FIELD.with_dnr(true));
        }
        let granted = [asked.nsq(), asked.ncq()]
            .map(|asked| asked.saturating_add(self.spare_queues).min(MOST_QUEUES));
        self.granted_queues = granted;
        let [submission, completion] = granted;
        Ok(NumberOfQueues::new()
            .with_nsq(submission)
            .with_ncq(completion)
            .into_bits())
    }
}

fn host_identifier_bytes(dword: u32) -> usize {
    if HostIdentifier::from_bits(dword).exhid() {
        16
    } else {
        8
    }
}

/// Returns the length of the data that Set Features transfers for a feature, or `None` for a
/// feature without data.
pub(super) fn data_bytes(fid: u8, dword: u32) -> Option<usize> {
    match fid {
        fid::TIMESTAMP => Some(8),
        fid::HOST_BEHAVIOR_SUPPORT => Some(512),
        fid::HOST_IDENTIFIER => Some(host_identifier_bytes(dword)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_value_is_returned_and_a_reset_restores_the_default() {
        let mut features = Features::new(2, 0);
        for (fid, dword) in [
            (fid::ARBITRATION, 7),
            (fid::INTERRUPT_COALESCING, 0x0105),
            (fid::SOFTWARE_PROGRESS_MARKER, 3),
        ] {
            features.set_value(fid, dword, 0..2).unwrap();
            assert_eq!(features.value(fid, 0, None), Ok(dword));
        }
        features
            .set_value(fid::VOLATILE_WRITE_CACHE, 0, 0..2)
            .unwrap();
        assert!(!features.write_cache());
        features.reset();
        assert_eq!(features.value(fid::ARBITRATION, 0, None), Ok(4));
        assert!(features.write_cache());
    }

    #[test]
    fn every_supported_feature_has_a_value() {
        let features = Features::new(1, 0);
        for fid in SUPPORTED {
            assert!(features.value(fid, 0, Some(0)).is_ok(), "{fid:#x}");
        }
    }

    #[test]
    fn queues_are_granted_up_to_the_limit() {
        let mut features = Features::new(1, 0);
        assert_eq!(features.grant_queues(0x0003_0001), Ok(0x0003_0001));
        assert_eq!(features.granted_queues(), [2, 4]);
        assert_eq!(
            features.value(fid::NUMBER_OF_QUEUES, 0, None),
            Ok(0x0003_0001)
        );
        assert_eq!(features.grant_queues(0x00ff_00ff), Ok(0x003f_003f));
        assert_eq!(features.granted_queues(), [64, 64]);
        assert!(features.grant_queues(0xffff_0000).is_err());
    }

    #[test]
    fn spare_queues_are_granted_in_addition_to_requested_ones() {
        let mut features = Features::new(1, 8);
        for _ in 0..2 {
            assert_eq!(features.grant_queues(0x0003_0001), Ok(0x000b_0009));
            assert_eq!(features.granted_queues(), [10, 12]);
            assert_eq!(features.grant_queues(0x003f_003a), Ok(0x003f_003f));
            features.reset();
        }
    }

    #[test]
    fn error_recovery_is_separate_for_each_namespace() {
        let mut features = Features::new(2, 0);
        features.set_value(fid::ERROR_RECOVERY, 5, 1..2).unwrap();
        assert_eq!(features.value(fid::ERROR_RECOVERY, 0, Some(0)), Ok(0));
        assert_eq!(features.value(fid::ERROR_RECOVERY, 0, Some(1)), Ok(5));
        assert!(features.value(fid::ERROR_RECOVERY, 0, None).is_err());
        assert!(
            features
                .set_value(fid::ERROR_RECOVERY, 1 << 16, 0..2)
                .is_err(),
            "DULBE is not supported"
        );
    }

    #[test]
    fn temperature_beyond_its_threshold_is_a_warning_if_enabled() {
        let mut features = Features::new(1, 0);
        assert!(!features.warning().temperature());
        features
            .set_value(fid::TEMPERATURE_THRESHOLD, 313, 0..1)
            .unwrap();
        assert!(features.warning().temperature());
        assert!(!features.wants(features.warning()));
        features
            .set_value(fid::ASYNC_EVENT_CONFIGURATION, 0x2, 0..1)
            .unwrap();
        assert!(features.wants(features.warning()));
        assert!(
            features
                .set_value(fid::TEMPERATURE_THRESHOLD, 1 << 16, 0..1)
                .is_err(),
            "there is one sensor"
        );
    }

    #[test]
    fn timestamp_continues_from_the_value_that_the_host_set() {
        let mut features = Features::new(1, 0);
        features
            .set_data(fid::TIMESTAMP, &[0x10, 0x20, 0x30, 0, 0, 0, 0, 0])
            .unwrap();
        features.reset();
        let data = features.data(fid::TIMESTAMP, 0).unwrap();
        let (time, _) = Timestamp::ref_from_prefix(&data).unwrap();
        assert!((0x302010..0x302010 + 60_000).contains(&time.milliseconds()));
        assert_eq!(time.attributes.origin(), 1);
    }
}
