//! The counter file of a device, which holds its counts once it shares its counters
//! ([`counter_file`]).

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use peerbar_dma_log::counter_file::DeviceEvent;
use peerbar_dma_log::{AtsCounts, DmaKind, counter_file};
use peerbar_flight::{MappedFile, MappedFileError, create_mapped};
use vm_memory::VolatileMemory;

/// A mapped counter file.
#[derive(Debug)]
pub struct CounterFile {
    file: MappedFile,
}

impl CounterFile {
    /// Creates the file at `path` and replaces an existing one.
    pub fn create(path: &Path) -> Result<Self, MappedFileError> {
        let header = counter_file::header(std::process::id());
        let bytes = counter_file::FILE_BYTES as u64;
        let file = create_mapped("counter file", path, bytes, &header)?;
        Ok(Self { file })
    }

    /// Returns the numbers of a kind in that slot: successful DMAs, their bytes, failed DMAs.
    #[inline]
    pub(super) fn numbers(&self, slot: usize, kind: DmaKind) -> Option<[&AtomicU64; 3]> {
        let at = counter_file::numbers_at(slot, kind);
        let number = |index: usize| self.file.region.get_atomic_ref(at + index * 8).ok();
        Some([number(0)?, number(1)?, number(2)?])
    }

    /// Returns the counter of an event.
    pub(super) fn event(&self, event: DeviceEvent) -> Option<&AtomicU64> {
        self.file
            .region
            .get_atomic_ref(counter_file::event_at(event))
            .ok()
    }

    /// Declares that the device counts its client's doorbells.
    pub(super) fn set_counts_doorbells(&self) {
        let at = counter_file::counts_doorbells_at();
        if let Ok(number) = self.file.region.get_atomic_ref::<AtomicU64>(at) {
            number.store(1, Ordering::Relaxed);
        }
    }

    pub(super) fn set_ats(&self, counts: &AtsCounts) {
        for (at, number) in counter_file::ats_numbers(counts) {
            if let Ok(counter) = self.file.region.get_atomic_ref::<AtomicU64>(at) {
                counter.store(number, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::DeviceEvents;
    use peerbar_dma_log::counter_file::Reader;

    use super::*;
    use crate::counters::Counters;
    use crate::{Completer, Direction, Purpose, Route};

    const KIND: DmaKind = DmaKind {
        purpose: Purpose::Payload,
        route: Route::GuestRam,
        completer: Completer::GuestRam,
        direction: Direction::Read,
    };

    #[test]
    fn reader_sees_each_count_at_once_and_after_the_end() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("device.counters");
        let counters = Counters::default();
        counters.share(CounterFile::create(&path).unwrap());
        let reader = Reader::open(&path).unwrap();
        let read = || reader.read().unwrap();
        assert_eq!(read().process, std::process::id());
        assert_eq!(read().entries, []);
        let slot = counters.open();
        slot.succeeded(&counters, KIND, 512);
        counters.succeeded(KIND, 8);
        counters.failed(KIND);
        let ats = AtsCounts {
            enabled: true,
            hits: 3,
            ..AtsCounts::default()
        };
        counters.set_ats(&ats);
        let entries = read().entries;
        let [entry] = &entries[..] else {
            panic!("{entries:?}");
        };
        assert_eq!(entry.kind(), KIND);
        assert_eq!((entry.requests, entry.bytes, entry.failures), (2, 520, 1));
        assert_eq!(read().ats, ats);
        assert_eq!(peerbar_dma_log::parse(&counters.page()).unwrap(), entries);
        drop(counters);
        assert_eq!(read().entries, entries);
    }

    #[test]
    fn reader_sees_each_event() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("device.counters");
        let counters = Counters::default();
        counters.count_doorbells();
        counters.share(CounterFile::create(&path).unwrap());
        for event in [
            DeviceEvent::Interrupt,
            DeviceEvent::Doorbell(2),
            DeviceEvent::Doorbell(2),
            DeviceEvent::InjectedFault,
        ] {
            counters.happened(event);
        }
        let expected = DeviceEvents {
            interrupts: 1,
            injected_faults: 1,
            doorbells: Some([(2, 2)].into()),
        };
        let reader = Reader::open(&path).unwrap();
        assert_eq!(reader.read().unwrap().events, expected);
    }

    #[test]
    fn counts_before_sharing_stay_in_the_page() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("device.counters");
        let counters = Counters::default();
        let slot = counters.open();
        slot.succeeded(&counters, KIND, 1);
        counters.share(CounterFile::create(&path).unwrap());
        slot.succeeded(&counters, KIND, 10);
        let page = peerbar_dma_log::parse(&counters.page()).unwrap();
        assert_eq!((page[0].requests, page[0].bytes), (2, 11));
        assert_eq!(
            Reader::open(&path).unwrap().read().unwrap().entries[0].bytes,
            10
        );
    }

    #[test]
    fn reads_during_counting_are_consistent() {
        const DMAS: u64 = 200_000;
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("device.counters");
        let counters = Counters::default();
        counters.share(CounterFile::create(&path).unwrap());
        let reader = Reader::open(&path).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let slot = counters.open();
                    (0..DMAS).for_each(|_| slot.succeeded(&counters, KIND, 1 << 32));
                });
            }
            let mut before = 0;
            while before < 2 * DMAS {
                let entries = reader.read().unwrap().entries;
                let requests = entries.first().map_or(0, |entry| entry.requests);
                assert!((before..=2 * DMAS).contains(&requests), "{requests}");
                before = requests;
            }
        });
        assert_eq!(reader.read().unwrap().entries[0].bytes, (2 * DMAS) << 32);
    }

    #[test]
    fn file_in_a_missing_folder_is_an_error() {
        let error = CounterFile::create(Path::new("/nowhere/device.counters")).unwrap_err();
        assert_eq!(error.to_string(), "counter file: cannot make the file");
    }
}
