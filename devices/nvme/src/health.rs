//! Contents of the SMART and error log pages.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::command::nvm::BlockRange;
use peerbar_nvme_spec::completion::{Status, StatusField, sct};
use peerbar_nvme_spec::log::{CriticalWarning, ErrorEntry, Smart};
use zerocopy::FromZeros;

/// Number of failed commands that are kept.
pub(crate) const ERROR_ENTRIES: usize = 64;

/// The composite temperature in kelvins, always: 40 degrees Celsius.
pub(crate) const TEMPERATURE: u16 = 313;

/// SMART counts data in thousands of 512 bytes, rounded up (NVMe Base 2.0, 5.16.1.3).
const DATA_UNIT: u64 = 512_000;

/// Statistics since the daemon was started; every thread adds to them.
#[derive(Debug)]
pub(crate) struct Health {
    started: Instant,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    failures: Mutex<Failures>,
}

#[derive(Debug)]
struct Failures {
    of_media: u64,
    count: u64,
    recent: VecDeque<ErrorEntry>,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            failures: Mutex::new(Failures {
                of_media: 0,
                count: 0,
                recent: VecDeque::with_capacity(ERROR_ENTRIES),
            }),
        }
    }

    /// Counts Read and Compare commands, and their bytes.
    pub(crate) fn read(&self, commands: u64, bytes: u64) {
        self.reads.fetch_add(commands, Ordering::Relaxed);
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts Write commands, and their bytes.
    pub(crate) fn wrote(&self, commands: u64, bytes: u64) {
        self.writes.fetch_add(commands, Ordering::Relaxed);
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records a failed command.
    pub(crate) fn failed(&self, sqid: u16, command: &SubmissionEntry, status: Status) {
        let mut failures = self.failures.lock();
        failures.count += 1;
        if status.sct() == sct::MEDIA
            && status.with_more(false).with_dnr(false) != Status::COMPARE_FAILURE
        {
            failures.of_media += 1;
        }
        let mut entry = ErrorEntry::new_zeroed();
        entry.error_count = failures.count.into();
        entry.sqid = sqid.into();
        entry.cid = command.cid;
        entry.status = StatusField::new().with_status(status);
        entry.parameter_error_location = u16::MAX.into();
        entry.nsid = command.nsid;
        if sqid != 0 {
            entry.lba = BlockRange::from(command).slba;
        }
        failures.recent.truncate(ERROR_ENTRIES - 1);
        failures.recent.push_front(entry);
    }

    /// Returns the failed commands, the latest first.
    pub(crate) fn recent_errors(&self) -> Vec<ErrorEntry> {
        self.failures.lock().recent.iter().copied().collect()
    }

    /// Returns the SMART page (NVMe Base 2.0, 5.16.1.3).
    pub(crate) fn smart(&self, warning: CriticalWarning) -> Smart {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let units = |counter| u128::from(load(counter).div_ceil(DATA_UNIT)).into();
        let mut page = Smart::new_zeroed();
        page.critical_warning = warning;
        page.temperature = TEMPERATURE.into();
        page.available_spare = 100;
        page.available_spare_threshold = 10;
        page.data_units_read = units(&self.bytes_read);
        page.data_units_written = units(&self.bytes_written);
        page.host_reads = u128::from(load(&self.reads)).into();
        page.host_writes = u128::from(load(&self.writes)).into();
        page.power_cycles = 1.into();
        page.power_on_hours = u128::from(self.started.elapsed().as_secs() / 3600).into();
        let failures = self.failures.lock();
        page.media_errors = u128::from(failures.of_media).into();
        page.error_log_entries = u128::from(failures.count).into();
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_counted_in_thousands_of_512_bytes_rounded_up() {
        let health = Health::new();
        health.read(1, 1);
        health.wrote(1, 512_001);
        let page = health.smart(CriticalWarning::new());
        assert_eq!(
            (page.data_units_read.get(), page.data_units_written.get()),
            (1, 2)
        );
        assert_eq!((page.host_reads.get(), page.host_writes.get()), (1, 1));
    }

    #[test]
    fn the_latest_errors_are_kept_and_counted() {
        let health = Health::new();
        for cid in 0..100u16 {
            let mut command = SubmissionEntry::new_zeroed();
            command.cid = cid.into();
            health.failed(1, &command, Status::UNRECOVERED_READ_ERROR);
        }
        health.failed(
            1,
            &SubmissionEntry::new_zeroed(),
            Status::COMPARE_FAILURE.with_more(true),
        );
        let counts: Vec<u64> = health
            .recent_errors()
            .iter()
            .map(|entry| entry.error_count.get())
            .collect();
        assert_eq!(counts.len(), ERROR_ENTRIES);
        assert_eq!((counts[0], counts[63]), (101, 38));
        let page = health.smart(CriticalWarning::new());
        assert_eq!(page.error_log_entries.get(), 101);
        assert_eq!(
            page.media_errors.get(),
            100,
            "a miscompare is no media error"
        );
    }
}
