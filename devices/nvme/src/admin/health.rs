//! Health and history: what the SMART and error log pages tell.

use std::collections::VecDeque;
use std::time::Instant;

use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::command::nvm::BlockRange;
use peerbar_nvme_spec::completion::{Status, StatusField, sct};
use peerbar_nvme_spec::log::{CriticalWarning, ErrorEntry, Smart};
use zerocopy::FromZeros;

/// How many failed commands are remembered.
pub(super) const ERROR_ENTRIES: usize = 64;

/// The composite temperature in kelvins, always: 40 degrees Celsius.
pub(super) const TEMPERATURE: u16 = 313;

/// SMART counts data in thousands of 512 bytes, rounded up (NVMe Base 2.0, 5.16.1.3).
const DATA_UNIT: u64 = 512_000;

/// What has happened since the daemon was started.
#[derive(Debug)]
pub(crate) struct Health {
    started: Instant,
    bytes_read: u64,
    bytes_written: u64,
    reads: u64,
    writes: u64,
    media_errors: u64,
    errors: u64,
    recent: VecDeque<ErrorEntry>,
}

impl Health {
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
            bytes_read: 0,
            bytes_written: 0,
            reads: 0,
            writes: 0,
            media_errors: 0,
            errors: 0,
            recent: VecDeque::with_capacity(ERROR_ENTRIES),
        }
    }

    /// A Read or Compare of so many bytes is done.
    pub(crate) fn read(&mut self, bytes: u64) {
        self.bytes_read = self.bytes_read.saturating_add(bytes);
        self.reads += 1;
    }

    /// A Write of so many bytes is done.
    pub(crate) fn wrote(&mut self, bytes: u64) {
        self.bytes_written = self.bytes_written.saturating_add(bytes);
        self.writes += 1;
    }

    /// A command has failed.
    pub(super) fn failed(&mut self, sqid: u16, command: &SubmissionEntry, status: Status) {
        self.errors += 1;
        if status.sct() == sct::MEDIA
            && status.with_more(false).with_dnr(false) != Status::COMPARE_FAILURE
        {
            self.media_errors += 1;
        }
        let mut entry = ErrorEntry::new_zeroed();
        entry.error_count = self.errors.into();
        entry.sqid = sqid.into();
        entry.cid = command.cid;
        entry.status = StatusField::new().with_status(status);
        entry.parameter_error_location = u16::MAX.into();
        entry.nsid = command.nsid;
        if sqid != 0 {
            entry.lba = BlockRange::from(command).slba;
        }
        self.recent.truncate(ERROR_ENTRIES - 1);
        self.recent.push_front(entry);
    }

    /// The failed commands, the latest first.
    pub(super) fn recent_errors(&self) -> impl Iterator<Item = &ErrorEntry> {
        self.recent.iter()
    }

    /// The SMART page (NVMe Base 2.0, 5.16.1.3).
    pub(super) fn smart(&self, warning: CriticalWarning) -> Smart {
        let mut page = Smart::new_zeroed();
        page.critical_warning = warning;
        page.temperature = TEMPERATURE.into();
        page.available_spare = 100;
        page.available_spare_threshold = 10;
        page.data_units_read = u128::from(self.bytes_read.div_ceil(DATA_UNIT)).into();
        page.data_units_written = u128::from(self.bytes_written.div_ceil(DATA_UNIT)).into();
        page.host_reads = u128::from(self.reads).into();
        page.host_writes = u128::from(self.writes).into();
        page.power_cycles = 1.into();
        page.power_on_hours = u128::from(self.started.elapsed().as_secs() / 3600).into();
        page.media_errors = u128::from(self.media_errors).into();
        page.error_log_entries = u128::from(self.errors).into();
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_counted_in_thousands_of_512_bytes_rounded_up() {
        let mut health = Health::new();
        health.read(1);
        health.wrote(512_001);
        let page = health.smart(CriticalWarning::new());
        assert_eq!(
            (page.data_units_read.get(), page.data_units_written.get()),
            (1, 2)
        );
        assert_eq!((page.host_reads.get(), page.host_writes.get()), (1, 1));
    }

    #[test]
    fn the_latest_errors_are_kept_and_counted() {
        let mut health = Health::new();
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
