//! The controller as its bus sees it.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use peerbar_dma::{BusMastering, MemoryFile, Requester, Span, WindowId};
use peerbar_endpoint::{BarMemory, Endpoint, PeerPages, Running, StartError, Vectors};
use peerbar_fault::{Faults, Kind};
use peerbar_file_ring::FileRing;
use peerbar_nvme_spec::registers::{Doorbell, offset};
use peerbar_pci::{Bar, BarError, ConfigSpace, Function, Identity, MsiX, UnsupportedRequest};

use crate::admin::Admin;
use crate::cmb::{CMB_BAR, Cmb};
use crate::config::{Config, ConfigError, Opened};
use crate::data::DataPath;
use crate::directory::Directory;
use crate::doorbell_page::{DoorbellPage, Owner};
use crate::engine::Engine;
use crate::injected::HeldBack;
use crate::intx::Intx;
use crate::io::Io;
use crate::io_queue::interrupt::{Coalescing, QueueInterrupts};
use crate::io_queue::poll::PollPolicy;
use crate::io_queue::request::Requests;
use crate::io_queue::worker::Worker;
use crate::job::Job;
use crate::namespace::Namespace;
use crate::notifier::{ENGINE, Notifier};
use crate::pmr::{LARGEST_UNSYNCED, PMR_BAR, PersistentMemory, Pmr};
use crate::prp::PAGE;
use crate::registers::{QUEUE_PAIRS, Registers};
use crate::storage::Storage;
use crate::worker_pool::WorkerPool;

/// BAR0: a page of registers, one of doorbells, one for the MSI-X table, one for its pending bits.
const REGISTER_BAR: u8 = 0;
const REGISTER_BAR_BYTES: u64 = 4 * PAGE;
/// Offset and length of the doorbells in BAR0.
const DOORBELL_PAGE: (u64, u64) = (PAGE, PAGE);
/// The longest wait of a change of the guest's memory, or of a reset, for the host's disk. Linux
/// gives a disk's command the same time: two attempts of 30 s.
const LONGEST_TRANSFER: Duration = Duration::from_secs(60);
const MSI_X: MsiX = MsiX {
    vectors: VECTORS,
    bar: REGISTER_BAR,
    table: 0x2000,
    pending: 0x3000,
};

/// Red Hat's number for an emulated NVMe controller, which Linux drives without quirks.
const IDENTITY: Identity = Identity {
    vendor: 0x1b36,
    device: 0x0010,
    subsystem_vendor: 0x1b36,
    subsystem: 0x1100,
    revision: 1,
    class: 0x01_08_02,
};

/// Makes a worker.
pub(crate) type MakeWorker<'a> = &'a mut dyn FnMut(Owner, Requests) -> Worker;

/// MSI-X vectors of a controller.
pub const VECTORS: u16 = QUEUE_PAIRS;

/// The side of the controller that the guest's accesses meet: registers and doorbells.
pub struct Controller {
    notifier: Arc<Notifier>,
    requester: Arc<Requester>,
    /// The memory that the guest maps and that no file on a disk backs: the Controller Memory
    /// Buffer, and doorbells.
    mapped: Vec<Arc<MemoryFile>>,
}

impl Controller {
    /// Starts a controller. Its images are open and locked from now on.
    pub fn start(config: &Config) -> Result<Running<Self>, StartError<ConfigError>> {
        let mut opened = config.open().map_err(StartError::Config)?;
        let (mut endpoint, function) = Self::assemble(config, &mut opened)?;
        let engine = function.engine(config, opened, |notifier, count, make| {
            WorkerPool::spawn(notifier, count, make)
        });
        let engine = engine.map_err(StartError::Thread)?;
        let notifier = function.notifier.clone();
        if !maps_doorbells(config) {
            endpoint.hint_at_departure(
                "one that maps the doorbells, as SPDK does, needs --poll always",
            );
        }
        Running::start(endpoint, || engine.run(), move || notifier.stop())
            .map_err(StartError::Thread)
    }

    /// Makes the function on its bus, without an engine. Takes the Controller Memory Buffer out of
    /// `opened`.
    pub(crate) fn assemble(
        config: &Config,
        opened: &mut Opened,
    ) -> Result<(Endpoint<Self>, Arc<Self>), StartError<ConfigError>> {
        let doorbells =
            DoorbellPage::new(QUEUE_PAIRS, REGISTER_BAR_BYTES).map_err(StartError::Doorbells)?;
        let cmb = opened.cmb.take();
        let pmr = opened.pmr.as_ref();
        let (bars, memory) = bars(config, &doorbells, cmb.as_ref(), pmr)?;
        let mapped = cmb.iter().map(|cmb| cmb.memory().file);
        let mapped = mapped.chain(maps_doorbells(config).then(|| doorbells.file()));
        let mapped = mapped.collect();
        let requester = Arc::new(Requester::new());
        requester.faults().serve(&Kind::OF_DISKS);
        if !maps_doorbells(config) {
            requester.ledger().count_doorbells();
        }
        if let Some(pmr) = pmr {
            limit_power_loss(requester.faults(), pmr.size());
        }
        let vectors = Arc::new(Vectors::new(VECTORS).map_err(StartError::Interrupts)?);
        let notifier = Notifier::new(
            Registers::new(cmb, pmr.cloned().map(Pmr::new)),
            doorbells,
            Intx::new(QUEUE_PAIRS),
            config.workers,
            vectors.clone(),
        );
        let function = Arc::new(Self {
            notifier: Arc::new(notifier.map_err(StartError::Thread)?),
            requester: requester.clone(),
            mapped,
        });
        let space = ConfigSpace::new(&IDENTITY, &bars, &MSI_X);
        let endpoint = Endpoint::new(function.clone(), space, memory, requester, vectors);
        Ok((endpoint, function))
    }

    /// Makes the engine of this controller, with the workers that `workers` makes.
    pub(crate) fn engine(
        &self,
        config: &Config,
        opened: Opened,
        workers: impl FnOnce(Arc<Notifier>, u8, MakeWorker<'_>) -> io::Result<WorkerPool>,
    ) -> io::Result<Engine> {
        let count = u32::try_from(opened.namespaces.len()).unwrap_or(u32::MAX);
        self.requester.faults().set_namespaces(count);
        let notifier = self.notifier.clone();
        let Opened {
            pmr, namespaces, ..
        } = opened;
        let storage = Storage::new(namespaces, pmr, move || notifier.notify_threads());
        let storage = Arc::new(storage);
        let coalescing = Arc::new(Coalescing::new(QUEUE_PAIRS));
        let path = || {
            let faults = config.seeded_faults.clone();
            DataPath::new(self.requester.clone(), 4096 << config.mdts, faults)
        };
        let has_files = storage.namespaces.iter().any(Namespace::is_file);
        if storage.namespaces.iter().all(Namespace::is_cached) {
            self.requester.limit_transfers(LONGEST_TRANSFER);
        }
        let notifier = &self.notifier;
        let make: MakeWorker<'_> = &mut |owner, requests| {
            let mut data = path();
            data.offers_sgls = config.sgl;
            data.files = (config.io_uring && has_files)
                .then(|| file_ring(notifier, owner))
                .flatten();
            let io = Io::new(data, storage.clone());
            let interrupts = QueueInterrupts::new(notifier.clone(), coalescing.clone());
            Worker::new(owner, requests, config.poll, io, interrupts)
        };
        let workers = workers(notifier.clone(), config.workers, make)?;
        Ok(Engine {
            notifier: notifier.clone(),
            workers,
            directory: Directory::new(QUEUE_PAIRS, config.workers),
            pair: None,
            data: path(),
            admin: Admin::new(config, &IDENTITY),
            storage,
            coalescing,
            held: HeldBack::default(),
            enabled: false,
            bus: BusMastering::default(),
        })
    }

    /// Reads registers in units of 4 bytes. A narrower read returns its part of the register.
    fn read_registers(&self, offset: u64, data: &mut [u8]) {
        self.notifier.read(|registers| {
            for (at, byte) in (offset..).zip(data.iter_mut()) {
                let lane = usize::try_from(at & 3).unwrap_or(0);
                *byte = registers
                    .read(at & !3)
                    .to_le_bytes()
                    .get(lane)
                    .copied()
                    .unwrap_or(0);
            }
        });
    }

    /// Returns `true` if a read of `len` bytes at `offset` is a barrier of the Persistent Memory
    /// Region and the region is ready.
    fn is_barrier(&self, offset: u64, len: usize) -> bool {
        let end = offset.saturating_add(len as u64);
        let reads_status = offset < offset::PMRSTS + 4 && end > offset::PMRSTS;
        let is_ready = |registers: &Registers| registers.pmr().is_some_and(Pmr::is_ready);
        reads_status && self.notifier.read(is_ready)
    }

    /// Makes all earlier writes to the Persistent Memory Region persistent, which the completion of
    /// a read of PMRSTS tells the host.
    fn persist(&self) {
        let ready = self.notifier.read(|registers| {
            let ready = registers.pmr().filter(|pmr| pmr.is_ready());
            ready.map(|pmr| pmr.memory().clone())
        });
        if let Some(memory) = ready {
            // Without the registers' lock: this waits for the host's disk.
            memory.sync(self.requester.faults().loses_power());
            if memory.failure().is_some() {
                // The engine reports the SMART warning.
                self.notifier.events(ENGINE).notify();
            }
        }
    }

    /// Writes whole registers, 4 or 8 aligned bytes at a time (NVMe over PCIe 1.0, 3.1). Ignores
    /// all other writes. Returns `true` if the Persistent Memory Region has become ready.
    fn write_registers(&self, offset: u64, data: &[u8]) -> bool {
        let words = data.chunks_exact(4);
        if offset % 4 != 0 || !words.remainder().is_empty() {
            log::debug!(
                "a write of {} bytes to register {offset:#x} is ignored",
                data.len()
            );
            return false;
        }
        // Dropping this waits for transfers through the former window, which workers complete, so
        // it must happen without the registers' lock.
        let (_ending, starts) = self.notifier.change(|registers| {
            let was_ready = registers.pmr().is_some_and(Pmr::is_ready);
            for (index, word) in (0..).zip(words.filter_map(<[u8]>::first_chunk)) {
                registers.write(offset.saturating_add(index * 4), u32::from_le_bytes(*word));
            }
            // The window is set under the lock, so that of two writers the same one sets registers
            // and window last.
            let cmb = self
                .requester
                .set_window(WindowId::Cmb, registers.cmb_window());
            let pmr = registers.pmr().map(|_| {
                let window = registers.pmr_window();
                self.requester.set_window(WindowId::Pmr, window)
            });
            let is_ready = registers.pmr().is_some_and(Pmr::is_ready);
            ((cmb, pmr), is_ready && !was_ready)
        });
        starts
    }

    /// Writes registers or rings a doorbell. Returns `true` if the Persistent Memory Region has
    /// become ready.
    fn write_bar(&self, offset: u64, data: &[u8]) -> bool {
        if offset < offset::DOORBELLS {
            return self.write_registers(offset, data);
        }
        for (doorbell, value) in doorbells(offset, data).unwrap_or_default() {
            self.notifier.ring(doorbell, value);
        }
        false
    }

    /// Reads registers; all other offsets read as zeros.
    fn read_bar(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if offset < offset::DOORBELLS {
            self.read_registers(offset, data);
        }
    }
}

/// Returns the doorbells that a write to BAR 0 rings, with their values. A write outside the
/// doorbells rings none. Returns `None` for a write to the doorbells that covers neither one
/// doorbell nor an aligned pair (NVMe over PCIe 1.0, 3.1.2).
fn doorbells(offset: u64, data: &[u8]) -> Option<Vec<(Doorbell, u32)>> {
    if !(offset::DOORBELLS..MSI_X.table.into()).contains(&offset) {
        return Some(Vec::new());
    }
    let is_aligned = matches!(data.len(), 4 | 8) && offset % data.len() as u64 == 0;
    let parts = (offset..).step_by(4).zip(data.chunks_exact(4));
    let rung = parts.map(|(at, value)| {
        let value = <[u8; 4]>::try_from(value).ok()?;
        Some((doorbell_at(at)?, u32::from_le_bytes(value)))
    });
    rung.collect::<Option<Vec<_>>>().filter(|_| is_aligned)
}

/// Returns the doorbell at this offset in BAR 0. The client itself keeps the MSI-X table that
/// follows the doorbells, and the pending bits are read-only.
fn doorbell_at(offset: u64) -> Option<Doorbell> {
    (offset < MSI_X.table.into()).then(|| Doorbell::at(offset, 0))?
}

/// Refuses power loss faults if they would need too much memory for a region of `size` bytes.
fn limit_power_loss(faults: &Faults, size: u64) {
    if size > LARGEST_UNSYNCED {
        faults.refuse_power_loss(
            "the server would keep two copies of a PMR of more than 256 MiB; make the region smaller",
        );
    }
}

/// Returns `true` if the guest maps the doorbells: the workers always poll, so no doorbell needs a
/// notification.
fn maps_doorbells(config: &Config) -> bool {
    match config.poll {
        PollPolicy::Always => true,
        PollPolicy::Adaptive | PollPolicy::Never => false,
    }
}

/// Returns the BARs and the memory behind them.
fn bars(
    config: &Config,
    doorbells: &DoorbellPage,
    cmb: Option<&Cmb>,
    pmr: Option<&Arc<PersistentMemory>>,
) -> Result<(Vec<Bar>, Vec<BarMemory>), BarError> {
    let registers = if maps_doorbells(config) {
        let areas = vec![DOORBELL_PAGE];
        BarMemory::RegistersWithPages(doorbells.file(), areas, PeerPages::Lent)
    } else {
        BarMemory::Registers
    };
    let mut memory = vec![registers];
    let mut bars = vec![Bar::new(REGISTER_BAR, REGISTER_BAR_BYTES, false)?];
    if let Some(cmb) = cmb {
        bars.push(Bar::new(CMB_BAR, cmb.bar_bytes(), true)?);
        memory.push(BarMemory::Memory(cmb.memory()));
    }
    if let Some(pmr) = pmr {
        bars.push(Bar::new(PMR_BAR, pmr.size(), true)?);
        memory.push(BarMemory::Memory(Span {
            file: pmr.file().clone(),
            offset: 0,
        }));
    }
    Ok((bars, memory))
}

/// Makes a worker's ring for data of images, if the kernel permits one.
fn file_ring(notifier: &Notifier, owner: Owner) -> Option<FileRing<Job>> {
    let ring = FileRing::new(notifier.events(owner).event_fd().as_fd());
    let complain = |error: &io::Error| {
        if owner == Owner(1) {
            log::warn!("no io_uring here ({error}): a worker waits for each command on an image");
        }
    };
    ring.inspect_err(complain).ok()
}

impl Function for Controller {
    fn bar_read(&self, _bar: u8, offset: u64, data: &mut [u8]) {
        if self.is_barrier(offset, data.len()) {
            self.persist();
        }
        self.read_bar(offset, data);
    }

    fn bar_write(&self, _bar: u8, offset: u64, data: &[u8]) {
        match doorbells(offset, data) {
            Some(rung) => {
                for (doorbell, _) in rung {
                    self.requester.ledger().doorbell_of_client(doorbell.queue());
                }
            }
            None => self
                .requester
                .ledger()
                .ignored_write(REGISTER_BAR, offset, data.len()),
        }
        let starts = self.write_bar(offset, data);
        if starts && self.requester.faults().loses_power() {
            // A power loss affects the data that is written from now on.
            self.persist();
        }
    }

    /// A peer's read is no barrier, because a barrier waits for the host's disk.
    fn peer_read(&self, _bar: u8, offset: u64, data: &mut [u8]) -> Result<(), UnsupportedRequest> {
        if self.is_barrier(offset, data.len()) {
            return Err(UnsupportedRequest);
        }
        self.read_bar(offset, data);
        Ok(())
    }

    /// A peer can write only the doorbells. Writes to other registers may reset the controller or
    /// move windows of its memory, and so wait for the kernel's transfers.
    fn peer_write(&self, _bar: u8, offset: u64, data: &[u8]) -> Result<(), UnsupportedRequest> {
        if offset < offset::DOORBELLS {
            return Err(UnsupportedRequest);
        }
        self.write_bar(offset, data);
        Ok(())
    }

    fn bus_master_enabled(&self) {
        self.notifier.notify_threads();
    }

    fn reset(&self) {
        let ending = self.notifier.change(|registers| {
            let ending = self.requester.halt();
            registers.reset();
            ending
        });
        drop(ending);
        self.requester.set_window(WindowId::Cmb, None);
        self.requester.set_window(WindowId::Pmr, None);
    }

    /// Since the reset, the engine and the workers access no memory except doorbells.
    fn renew_memory(&self) -> io::Result<()> {
        let mut mapped = self.mapped.iter();
        mapped.try_for_each(|file| file.renew().map_err(io::Error::other))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::pmr::PmrFailure;

    /// A controller without an engine, with a region whose next sync finds that its file has been
    /// shortened.
    fn function(folder: &tempfile::TempDir) -> (Arc<Controller>, Arc<PersistentMemory>) {
        let path = folder.path().join("pmr");
        let file = File::create(&path).unwrap();
        file.set_len(2 << 20).unwrap();
        let config = Config {
            pmr: Some(path),
            ..crate::config::tests::config()
        };
        let mut opened = config.open().unwrap();
        let (_, function) = Controller::assemble(&config, &mut opened).unwrap();
        file.set_len(4096).unwrap();
        (function, opened.pmr.unwrap())
    }

    #[test]
    fn peer_that_reads_pmrsts_waits_for_no_disk() {
        let folder = tempfile::tempdir().unwrap();
        let (function, memory) = function(&folder);
        let mut status = [0; 4];
        function.peer_read(0, offset::PMRSTS, &mut status).unwrap();
        assert_eq!(u32::from_le_bytes(status), 1 << 8, "NVME_PMRSTS_NRDY");
        function.bar_write(0, offset::PMRCTL, &[1, 0, 0, 0]);
        for (at, len) in [
            (offset::PMRSTS, 4),
            (offset::PMRCTL, 8),
            (offset::PMRSTS + 3, 1),
        ] {
            let refused = function.peer_read(0, at, &mut [0; 8][..len]);
            assert_eq!(refused, Err(UnsupportedRequest), "{at:#x}");
        }
        function.peer_read(0, offset::PMRCTL, &mut [0; 4]).unwrap();
        assert_eq!(memory.failure(), None, "no sync");
        function.bar_read(0, offset::PMRSTS, &mut status);
        assert_eq!(memory.failure(), Some(PmrFailure::Lost));
    }

    #[test]
    fn power_loss_of_a_large_region_is_refused() {
        for (size, is_refused) in [(LARGEST_UNSYNCED, false), (2 * LARGEST_UNSYNCED, true)] {
            let faults = Faults::new(&Kind::OF_DISKS);
            limit_power_loss(&faults, size);
            let added = faults.add("lose-power command".parse().unwrap());
            assert_eq!(added.is_err(), is_refused, "{size:#x}");
            faults.add("fail command".parse().unwrap()).unwrap();
        }
    }

    #[test]
    fn write_rings_one_doorbell_or_two_and_nothing_else() {
        use Doorbell::{CompletionHead, SubmissionTail};
        let second = offset::DOORBELLS + 8;
        let rung = |offset, data: &[u8]| doorbells(offset, data);
        let both = [1, 0, 0, 0, 2, 0, 0, 0];
        assert_eq!(rung(second, &both[..4]), Some(vec![(SubmissionTail(1), 1)]));
        let two = vec![(SubmissionTail(1), 1), (CompletionHead(1), 2)];
        assert_eq!(rung(second, &both), Some(two));
        for (offset, data) in [
            (second, &both[..1]),
            (second, &both[..2]),
            (second, &[0; 16]),
            (second + 1, &both[..4]),
            (second + 4, &both),
        ] {
            assert_eq!(rung(offset, data), None, "{offset:#x} {data:?}");
        }
        for offset in [offset::CC, MSI_X.table.into()] {
            assert_eq!(rung(offset, &both[..2]), Some(Vec::new()), "{offset:#x}");
        }
    }

    #[test]
    fn peer_has_no_register_but_the_doorbells() {
        let folder = tempfile::tempdir().unwrap();
        let (function, memory) = function(&folder);
        let rule = "lose-power command".parse().unwrap();
        function.requester.faults().add(rule).unwrap();
        for register in [offset::CC, offset::CMBMSC, offset::PMRCTL] {
            let refused = function.peer_write(0, register, &[1, 0, 0, 0]);
            assert_eq!(refused, Err(UnsupportedRequest), "{register:#x}");
        }
        let mut status = [0; 4];
        function.bar_read(0, offset::PMRSTS, &mut status);
        assert_eq!(u32::from_le_bytes(status), 1 << 8, "NVME_PMRSTS_NRDY");
        assert_eq!(memory.failure(), None, "no sync");
        function
            .peer_write(0, offset::DOORBELLS, &[1, 0, 0, 0])
            .unwrap();
        function.bar_write(0, offset::PMRCTL, &[0; 4]);
        function.bar_write(0, offset::PMRCTL, &[1, 0, 0, 0]);
        assert_eq!(memory.failure(), Some(PmrFailure::Lost));
    }
}
