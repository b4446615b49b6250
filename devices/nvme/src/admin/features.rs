//! Get Features and Set Features (NVMe Base 2.0, 5.15 and 5.27; NVM Command Set 1.0, 4.1.3).
//!
//! Nothing is saved over a power cycle. Arbitration is kept and reported, and has no effect: it is a recommendation to a
//! controller.

use std::collections::BTreeMap;
use std::time::Instant;

use peerbar_dma::Purpose;
use peerbar_nvme_spec::command::admin::{GetFeatures, SetFeatures};
use peerbar_nvme_spec::command::{NSID_ALL, SubmissionEntry};
use peerbar_nvme_spec::completion::Status;
use peerbar_nvme_spec::event::AsyncEvent;
use peerbar_nvme_spec::feature::{
    Arbitration, AsyncEventConfiguration, Capabilities, ErrorRecovery, HostIdentifier,
    InterruptCoalescing, InterruptVectorConfiguration, NumberOfQueues, PowerManagement, Select,
    TemperatureThreshold, Timestamp, TimestampAttributes, VolatileWriteCache, fid,
};
use peerbar_nvme_spec::log::CriticalWarning;
use zerocopy::{FromBytes, IntoBytes};

use super::reply::Reply;
use crate::engine::Engine;
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

/// The features that there are.
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
    /// How many more of each than the host asks for are granted.
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

    /// A controller reset: all features have their defaults but the timestamp and the Software Progress Marker, which counts boots.
    pub(super) fn reset(&mut self) {
        *self = Self {
            timestamp: self.timestamp,
            software_progress: self.software_progress,
            ..Self::new(self.error_recovery.len(), self.spare_queues)
        };
    }

    /// Number of Queues: the highest number that a submission and a completion queue may have.
    pub(super) fn granted_queues(&self) -> [u16; 2] {
        self.granted_queues.map(|granted| granted + 1)
    }

    /// Volatile Write Cache: whether writes may wait for a Flush.
    fn write_cache(&self) -> bool {
        self.plain(fid::VOLATILE_WRITE_CACHE)
            .is_some_and(|value| VolatileWriteCache::from_bits(value).wce())
    }

    /// Interrupt Coalescing, and by vector whether that is disabled.
    fn coalescing(&self) -> (InterruptCoalescing, &[bool]) {
        let bits = self.plain(fid::INTERRUPT_COALESCING).unwrap_or(0);
        (InterruptCoalescing::from_bits(bits), &self.uncoalesced)
    }

    /// What SMART warns of: the temperature is beyond a threshold.
    pub(super) fn warning(&self) -> CriticalWarning {
        let [over, under] = self.thresholds;
        CriticalWarning::new().with_temperature(TEMPERATURE >= over || TEMPERATURE <= under)
    }

    /// Whether the host has enabled events of this SMART warning.
    fn wants(&self, warning: CriticalWarning) -> bool {
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

    /// A feature's value in dword 0. `dword` is the command's dword 11, `index` the namespace's, if it names one.
    fn value(&self, fid: u8, dword: u32, index: Option<usize>) -> Result<u32, Status> {
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

    /// What a feature returns as data, if it does.
    fn data(&self, fid: u8, dword: u32) -> Option<Vec<u8>> {
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
    fn set_data(&mut self, fid: u8, data: &[u8]) -> Result<(), Status> {
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

    /// Sets a feature that dword 11 tells all of; what dword 0 of the completion says.
    fn set_value(
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
                let place = self.thresholds.get_mut(usize::from(asked.thsel()));
                *place
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

    /// Number of Queues: grants what is asked for and the spare ones, up to what there is. A controller may grant more than it is
    /// asked for (NVMe Base 2.0, 5.27.1.5).
    fn grant_queues(&mut self, dword: u32) -> Result<u32, Status> {
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

/// How much data a feature's Set Features brings, if any.
fn data_bytes(fid: u8, dword: u32) -> Option<usize> {
    match fid {
        fid::TIMESTAMP => Some(8),
        fid::HOST_BEHAVIOR_SUPPORT => Some(512),
        fid::HOST_IDENTIFIER => Some(host_identifier_bytes(dword)),
        _ => None,
    }
}

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
        let index = self.storage.places(entry.nsid.get()).ok();
        let value = features.value(fid, dword, index.map(|places| places.start))?;
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
            // Without a cache no Flush will come for what is in it.
            self.storage.set_write_cache(false);
            // Else it stays as it was: on, or off already.
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

    /// Has the workers follow what is set.
    pub(crate) fn apply_features(&self) {
        let features = &self.admin.features;
        self.storage.set_write_cache(features.write_cache());
        let (settings, disabled) = features.coalescing();
        self.coalescing.set(settings, disabled);
    }

    /// The namespaces that a feature is set for: one, or with the broadcast value all. A feature of the whole
    /// controller names none.
    fn namespaces_of(&self, fid: u8, nsid: u32) -> Result<std::ops::Range<usize>, Status> {
        let of_namespace = fid == fid::ERROR_RECOVERY;
        if nsid == NSID_ALL || nsid == 0 && !of_namespace {
            return Ok(0..self.storage.namespaces.len());
        }
        let places = self.storage.places(nsid)?;
        if !of_namespace {
            return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.with_dnr(true));
        }
        Ok(places)
    }

    /// A new threshold, or an enabled notification, may make the temperature an event.
    fn check_temperature(&mut self) {
        let warning = self.admin.features.warning();
        if warning.temperature() && self.admin.features.wants(warning) {
            self.admin.events.raise(AsyncEvent::TEMPERATURE_THRESHOLD);
        }
    }

    /// What SMART warns of.
    pub(super) fn warning(&self) -> CriticalWarning {
        let warning = self.admin.features.warning();
        warning
            .with_reliability(self.storage.has_lost_data())
            .with_pmr(self.storage.pmr_has_failed())
    }

    /// Lost data, and a Persistent Memory Region that has failed, are events, each once after each reset.
    pub(crate) fn check_reliability(&mut self) {
        let lost_data = self.storage.has_lost_data();
        let warnings = [
            CriticalWarning::new().with_reliability(lost_data),
            CriticalWarning::new().with_pmr(self.storage.pmr_has_failed()),
        ];
        for warning in warnings {
            let reported = self.admin.reported.into_bits();
            let is_new = reported & warning.into_bits() == 0;
            if is_new && self.admin.features.wants(warning) {
                self.admin.reported = CriticalWarning::from_bits(reported | warning.into_bits());
                self.admin.events.raise(AsyncEvent::RELIABILITY_DEGRADED);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_returned_and_a_reset_brings_the_defaults_back() {
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
    fn queues_are_granted_up_to_what_there_is() {
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
    fn spare_queues_are_granted_beyond_what_is_asked_for() {
        let mut features = Features::new(1, 8);
        for _ in 0..2 {
            assert_eq!(features.grant_queues(0x0003_0001), Ok(0x000b_0009));
            assert_eq!(features.granted_queues(), [10, 12]);
            assert_eq!(features.grant_queues(0x003f_003a), Ok(0x003f_003f));
            features.reset();
        }
    }

    #[test]
    fn error_recovery_is_each_namespace_s_own() {
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
    fn the_time_goes_on_from_what_the_host_set() {
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
