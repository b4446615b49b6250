//! A GPU has queues of a disk that Linux' own driver keeps, and both use the disk at once.

mod amid_reads;
mod linux_io;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use peerbar_agent::checks::linux_events;
use peerbar_agent::counters::{Traffic, TrafficWatch};
use peerbar_agent::devices::{Controller, have_common_switch, real_path, reset};
use peerbar_agent::disk::{self, fill};
use peerbar_agent::gpus::Gpu;
use peerbar_agent::guest_context::GuestContext;
use peerbar_agent::user_drivers::disk_is_back;
use peerbar_gds::{
    Buffer, DiskQueues, Doorbells, Error, Fault, GpuQueue, GpuRequest, QueuePair, QueueState,
};
use peerbar_pattern::Pattern;

use self::amid_reads::AmidReads;
use self::linux_io::Progress;
use crate::expect::driver_refused;
use crate::{Test, say};

/// The module that makes the queues.
pub(crate) const MODULE: &str = "peerbar_nvme_queues";
/// Limit of the GPU's commands in progress.
const DEPTH: u16 = 32;
/// Number of reads of a launch, and bytes of each.
const READS: u16 = 500;
const READ_BYTES: u64 = 4096;
const BYTES: u64 = READS as u64 * READ_BYTES;
/// Time limit from one completion to the next.
const LIMIT: Duration = Duration::from_secs(10);
/// The same if none will come.
const SHORT_LIMIT: Duration = Duration::from_millis(300);
/// Time limit of a launch.
const TIME_OUT: Duration = Duration::from_secs(60);
/// Minimum time for which the GPU reads.
const MEASURED: Duration = Duration::from_secs(1);
/// Bytes of a doorbell.
const DOORBELL_BYTES: u64 = 4;

/// Tests queues that end while the GPU is idle.
pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let (guest, disk, gpu) = (test.guest, test.disk()?, test.gpu()?);
    let pattern = prepare(test)?;
    beside_linux(guest, (disk, gpu), pattern)?;
    let reader = || Reader::make(disk, gpu, pattern);
    forgets_by_reset(guest, disk, reader).context("after a reset of the disk")?;
    loses_revoked_memory(guest, disk, reader()?).context("after its memory was revoked")?;
    leaves_with_nvme(guest, disk, reader()?).context("after nvme has left the disk")?;
    let mut last = reader()?;
    last.read_and_verify()
        .context("once nvme has the disk again")?;
    last.release();
    Ok(())
}

/// Tests queues that end with commands of the GPU in progress.
pub(crate) fn amid_reads(test: &Test<'_>) -> anyhow::Result<()> {
    say(&AmidReads::new(test)?.ends()?);
    Ok(())
}

/// Returns the same, on a disk that refuses to delete them.
pub(crate) fn refused(test: &Test<'_>) -> anyhow::Result<()> {
    say(&AmidReads::new(test)?.is_reset()?);
    Ok(())
}

/// Loads the module and fills the disk.
fn prepare(test: &Test<'_>) -> anyhow::Result<Pattern> {
    test.guest.load_module(MODULE)?;
    let disk = test.disk()?;
    disk.disk.check(0, BYTES + linux_io::BYTES)?;
    let pattern = test.guest.fresh_pattern(disk);
    let content = usize::try_from(BYTES)?;
    fill(&disk.disk.open_direct()?, pattern, 0, content)?;
    Ok(pattern)
}

/// A GPU that reads the start of a disk by its own queues.
struct Reader {
    doorbells: Doorbells,
    pair: QueuePair,
    queue: GpuQueue,
    buffer: Buffer,
    requests: Vec<GpuRequest>,
    pattern: Pattern,
    _data: peerbar_gds::DiskMemory,
}

impl Reader {
    fn make(disk: &Controller, gpu: &Gpu, pattern: Pattern) -> anyhow::Result<Self> {
        let gpu = gpu.open()?;
        // A queue is full when all entries except one are in use.
        let queue = GpuQueue::allocate(&gpu, DEPTH + 1, READS)?;
        let buffer = gpu.allocate(BYTES)?;
        let queues = DiskQueues::open(&disk.node)?;
        let data = queues.map(&buffer)?;
        let pair = queues.create(&queue)?;
        ensure!(
            pair.number() > queues.of_linux() && pair.number() <= queues.granted(),
            "queue {} is not a spare one, {} to {}",
            pair.number(),
            queues.of_linux() + 1,
            queues.granted()
        );
        let blocks = u32::try_from(READ_BYTES / disk.disk.block)?;
        let request = |index: u64| {
            let to = data.address().saturating_add(index * READ_BYTES);
            GpuRequest::read(index * u64::from(blocks), blocks, to)
        };
        Ok(Self {
            doorbells: pair.doorbells(&gpu)?,
            pair,
            requests: (0..u64::from(READS)).map(request).collect(),
            queue,
            buffer,
            pattern,
            _data: data,
        })
    }

    /// Deletes the disk's queues and then frees their memory.
    fn release(self) {
        drop((self.doorbells, self.pair));
        self.queue.release();
    }

    /// Runs one launch. Every read must succeed.
    fn read(&mut self) -> anyhow::Result<()> {
        self.queue
            .submit(&self.doorbells, 1, &self.requests, LIMIT)?;
        let statuses = self.queue.wait(TIME_OUT)?;
        let failed = (0..).zip(&statuses).find(|(_, status)| **status != 0);
        ensure!(
            failed.is_none() && statuses.len() == self.requests.len(),
            "of {} requests {} have ended; the first that has failed, and its status: {failed:x?}",
            self.requests.len(),
            statuses.len()
        );
        Ok(())
    }

    fn read_and_verify(&mut self) -> anyhow::Result<()> {
        self.read()?;
        self.verify()
    }

    fn verify(&self) -> anyhow::Result<()> {
        let mut seen = vec![0; usize::try_from(BYTES)?];
        self.buffer.mapping().read(0, &mut seen)?;
        Ok(self.pattern.verify(0, &seen)?)
    }

    /// Runs a launch by queues that the disk does not have. Returns its error.
    fn fails_to_read(&mut self) -> anyhow::Result<Error> {
        let submitted = self
            .queue
            .submit(&self.doorbells, 1, &self.requests, SHORT_LIMIT);
        match submitted.and_then(|()| self.queue.wait(TIME_OUT)) {
            Ok(statuses) => bail!("{} reads have ended by deleted queues", statuses.len()),
            Err(error) => Ok(error),
        }
    }

    /// Checks that the GPU waits until its limit: the disk has forgotten the queues, but not the
    /// doorbells.
    fn reads_until_its_limit(&mut self) -> anyhow::Result<()> {
        match self.fails_to_read()? {
            Error::Fault(Fault::TimeOut) => Ok(()),
            error => Err(error).context("a launch that must end with fault 7"),
        }
    }

    /// Checks that the GPU's driver accepts no launch, since the doorbells are revoked.
    fn is_not_launched(&mut self) -> anyhow::Result<()> {
        driver_refused::<()>(Err(self.fails_to_read()?), libc::ENODEV).context("a launch")
    }

    fn ensure_state(&self, wanted: QueueState) -> anyhow::Result<()> {
        let state = self.pair.state()?;
        ensure!(
            state == wanted,
            "the queues are {state:?}, expected {wanted:?}"
        );
        Ok(())
    }
}

/// The work of GPU and Linux.
struct Done {
    launches: u64,
    /// The GPU's queue pair of the disk.
    queue: u16,
    doorbells: u64,
    /// `true` if the doorbells reach the disk through the root, where QEMU passes them on.
    through_root: bool,
    /// Number of transfers of Linux.
    linux: u64,
}

/// Lets the GPU and Linux use the disk at once. Reports their work.
fn beside_linux(
    guest: &GuestContext,
    (disk, gpu): (&Controller, &Gpu),
    pattern: Pattern,
) -> anyhow::Result<()> {
    // The queues are made by admin commands of Linux' driver.
    let mut reader = linux_events::counted(guest, disk, || Reader::make(disk, gpu, pattern))?;
    let of_linux = guest.fresh_pattern(disk);
    let file = disk.disk.open_direct()?;
    let mut watch = TrafficWatch::new(guest);
    let work = |linux: &Progress| read_for_some_time(&mut reader, linux);
    let both = watch.watch(|| linux_io::beside(&file, of_linux, BYTES, work));
    let ((launches, time), linux) = both?;
    let done = Done {
        launches,
        queue: u16::try_from(reader.pair.number())?,
        doorbells: reader.queue.statistics()?.doorbells,
        through_root: !have_common_switch(&real_path(&disk.pci)?, &real_path(&gpu.pci)?),
        linux,
    };
    reader.ensure_state(QueueState::Live)?;
    reader.verify()?;
    let traffic = watch.traffic()?;
    let of_doorbells = judge(traffic, (disk.number, gpu.number), &done)?;
    let inference = traffic.inference(disk.number);
    let inference = inference.map(|inference| format!("; {inference}"));
    let reads = done.launches * u64::from(READS);
    say(&format!(
        "{of_doorbells}; reads of 4 KiB a second by the GPU, queue {}: {:.0}; at the same time {} reads and writes by Linux{}",
        done.queue,
        reads as f64 / time.as_secs_f64(),
        done.linux,
        inference.unwrap_or_default()
    ));
    reader.release();
    Ok(())
}

/// Lets the GPU read while Linux reads and writes, too. Returns the number of launches, and their
/// time.
fn read_for_some_time(reader: &mut Reader, linux: &Progress) -> anyhow::Result<(u64, Duration)> {
    let begun = Instant::now();
    let mut launches = 0;
    while begun.elapsed() < MEASURED || !linux.is_enough() {
        reader.read()?;
        launches += 1;
    }
    Ok((launches, begun.elapsed()))
}

/// Checks that the GPU's commands came out of its memory and Linux' out of guest RAM, and that only
/// the GPU wrote the doorbells of its queue. Returns, in words, what the counters show of those.
fn judge(traffic: &Traffic, (disk, gpu): (u32, u32), done: &Done) -> anyhow::Result<&'static str> {
    let failures = traffic.failures();
    ensure!(
        failures == 0,
        "{failures} DMA requests of the devices failed"
    );
    let reads = done.launches.saturating_mul(READS.into());
    let bytes = done.launches.saturating_mul(BYTES);
    let of_gpu = (
        traffic.commands_from_peers(disk),
        traffic.payload_to_devices(disk),
    );
    ensure!(
        of_gpu == (reads, bytes),
        "the disk's counters show {of_gpu:?}: commands out of a peer's memory, and bytes to peers; the GPU did {reads} reads of \
         {bytes} bytes"
    );
    let of_linux = (
        traffic.commands_from_guest_ram(disk),
        traffic.payload_to_guest_ram(disk),
    );
    ensure!(
        of_linux.0 >= done.linux && of_linux.1 >= done.linux * linux_io::IO_BYTES,
        "the disk's counters show {of_linux:?}: commands out of guest RAM, and bytes to and from there; Linux did {} transfers of \
         {} bytes",
        done.linux,
        linux_io::IO_BYTES
    );
    let (written, doorbells) = (traffic.registers_written(gpu), done.doorbells);
    ensure!(
        written == doorbells * DOORBELL_BYTES && doorbells > 0,
        "the GPU's counters show {written} bytes that it wrote to registers of other devices, and it says that it wrote {doorbells} doorbells"
    );
    let interrupts = traffic.interrupts(disk);
    ensure!(
        interrupts <= of_linux.0,
        "the disk raised {interrupts} interrupts, and {} commands of Linux can have caused them: the GPU's queue should raise none",
        of_linux.0
    );
    doorbells_of_the_queue(traffic, disk, done)
}

/// Checks the doorbells of a queue. QEMU passes the GPU's doorbells on through the root, so the
/// guest's processors have written the rest.
fn doorbells_of_the_queue(
    traffic: &Traffic,
    disk: u32,
    done: &Done,
) -> anyhow::Result<&'static str> {
    let Some(by_client) = traffic.doorbells(disk) else {
        return Ok("the disk cannot count the processors' doorbells, which may map them");
    };
    let Done { queue, .. } = *done;
    let seen = by_client.get(&queue).copied().unwrap_or(0);
    let expected = if done.through_root { done.doorbells } else { 0 };
    ensure!(
        seen == expected,
        "QEMU wrote {seen} doorbells of queue {queue} of the disk, where {expected} of the GPU should have come through the root, and \
         the guest's processors should have written none"
    );
    Ok("no doorbell of a processor for the GPU's queue")
}

/// Checks that queues are forgotten when nvme resets the disk, and that others can be made.
fn forgets_by_reset(
    guest: &GuestContext,
    disk: &Controller,
    make: impl Fn() -> anyhow::Result<Reader>,
) -> anyhow::Result<()> {
    let mut reader = make()?;
    reset(&disk.directory.join("reset_controller"))?;
    disk_is_back(guest, disk)?;
    reader.ensure_state(QueueState::Reset)?;
    reader.reads_until_its_limit()?;
    linux_works(guest, disk)?;
    let mut again = make()?;
    ensure!(
        again.pair.number() != reader.pair.number(),
        "a number was given out while it is another program's"
    );
    reader.release();
    again.ensure_state(QueueState::Live)?;
    again.read_and_verify()?;
    again.release();
    Ok(())
}

/// Revokes memory that the disk may be writing to.
fn loses_revoked_memory(
    guest: &GuestContext,
    disk: &Controller,
    mut reader: Reader,
) -> anyhow::Result<()> {
    reader.read_and_verify()?;
    reader.buffer.revoke()?;
    reader.ensure_state(QueueState::Revoked)?;
    reader.reads_until_its_limit()?;
    reader.release();
    linux_works(guest, disk)
}

/// Checks that nvme can leave the disk while the GPU has queues, and come back.
fn leaves_with_nvme(
    guest: &GuestContext,
    disk: &Controller,
    mut reader: Reader,
) -> anyhow::Result<()> {
    reader.read_and_verify()?;
    let driver = Path::new("/sys/bus/pci/drivers/nvme");
    let function = disk.pci.file_name().context("a disk without a name")?;
    let function = function.to_string_lossy();
    let write = |file: &str| {
        fs::write(driver.join(file), function.as_bytes())
            .with_context(|| format!("{file} of {function}"))
    };
    write("unbind")?;
    let left = reader
        .ensure_state(QueueState::Removed)
        .and_then(|()| reader.is_not_launched());
    // The disk's former controller keeps its name until then.
    reader.release();
    write("bind")?;
    disk_is_back(guest, disk)?;
    left?;
    linux_works(guest, disk)
}

fn linux_works(guest: &GuestContext, disk: &Controller) -> anyhow::Result<()> {
    let pattern = guest.fresh_pattern(disk);
    let file = disk.disk.open_direct()?;
    let length = usize::try_from(linux_io::IO_BYTES)?;
    fill(&file, pattern, BYTES, length)?;
    let seen = disk::read(&file, BYTES, length)?;
    pattern.verify(BYTES, &seen).context("Linux' own I/O")
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Completer, DeviceEvents, Direction, DmaKind, Purpose, Route};

    use super::*;

    const DISK: u32 = 0;
    const GPU: u32 = 1;
    const COMMAND_BYTES: u64 = 64;
    const QUEUE: u16 = 3;
    const DONE: Done = Done {
        launches: 2,
        queue: QUEUE,
        doorbells: 20,
        through_root: false,
        linux: 10,
    };

    fn kind(purpose: Purpose, completer: Completer) -> DmaKind {
        DmaKind {
            purpose,
            completer,
            route: Route::Peer,
            direction: Direction::Write,
        }
    }

    /// Judges the devices' counts if both have done the work in [`DONE`].
    fn judged(change: impl FnOnce(&mut Traffic)) -> Result<(), String> {
        judged_as(&DONE, change).map(|_| ())
    }

    fn judged_as(done: &Done, change: impl FnOnce(&mut Traffic)) -> Result<&'static str, String> {
        let mut traffic = Traffic::default();
        let commands = DONE.launches * u64::from(READS) * COMMAND_BYTES;
        for (device, purpose, completer, bytes) in [
            (DISK, Purpose::Command, Completer::PeerBar, commands),
            (DISK, Purpose::Payload, Completer::PeerBar, 2 * BYTES),
            (DISK, Purpose::Command, Completer::GuestRam, 640),
            (DISK, Purpose::Payload, Completer::GuestRam, 40960),
            (GPU, Purpose::Register, Completer::PeerBar, 80),
        ] {
            traffic.count(device, kind(purpose, completer), bytes, 0);
        }
        change(&mut traffic);
        judge(&traffic, (DISK, GPU), done).map_err(|error| error.to_string())
    }

    /// Returns the disk's events, with those doorbells through QEMU.
    fn events(interrupts: u64, doorbells: &[(u16, u64)]) -> DeviceEvents {
        DeviceEvents {
            interrupts,
            injected_faults: 0,
            doorbells: Some(doorbells.iter().copied().collect()),
        }
    }

    #[test]
    fn more_of_linux_passes() {
        let more = kind(Purpose::Payload, Completer::GuestRam);
        assert_eq!(judged(|_| {}), Ok(()));
        assert_eq!(judged(|traffic| traffic.count(DISK, more, 4096, 0)), Ok(()));
    }

    #[test]
    fn foreign_command_in_vram_doorbell_or_failure_fails() {
        let command = kind(Purpose::Command, Completer::PeerBar);
        let doorbell = kind(Purpose::Register, Completer::PeerBar);
        let payload = kind(Purpose::Payload, Completer::PeerBar);
        let foreign = judged(|traffic| traffic.count(DISK, command, COMMAND_BYTES, 0));
        assert!(foreign.unwrap_err().contains("(1001, "));
        assert!(judged(|traffic| traffic.count(DISK, payload, 4096, 0)).is_err());
        assert!(judged(|traffic| traffic.count(GPU, doorbell, 4, 0)).is_err());
        assert!(judged(|traffic| traffic.count(DISK, payload, 0, 1)).is_err());
    }

    #[test]
    fn doorbell_of_a_processor_for_the_gpus_queue_fails() {
        let by_bus =
            |doorbells| judged(|traffic| traffic.count_events(DISK, &events(10, doorbells)));
        assert_eq!(by_bus(&[(1, 9)]), Ok(()), "those of Linux");
        let error = by_bus(&[(1, 9), (QUEUE, 1)]).unwrap_err();
        assert!(
            error.starts_with("QEMU wrote 1 doorbells of queue 3"),
            "{error}"
        );
        let through_root = Done {
            through_root: true,
            ..DONE
        };
        let by_root = |number| {
            judged_as(&through_root, |traffic| {
                traffic.count_events(DISK, &events(10, &[(1, 9), (QUEUE, number)]));
            })
        };
        assert!(by_root(20).is_ok());
        assert!(by_root(19).is_err() && by_root(21).is_err());
    }

    #[test]
    fn doorbells_that_cannot_be_counted_are_named() {
        let said = judged_as(&DONE, |_| {}).unwrap();
        assert!(said.starts_with("the disk cannot count"), "{said}");
    }

    #[test]
    fn more_interrupts_than_commands_of_linux_fail() {
        let judged =
            |interrupts| judged(|traffic| traffic.count_events(DISK, &events(interrupts, &[])));
        assert_eq!(judged(10), Ok(()));
        assert!(judged(11).unwrap_err().starts_with("the disk raised 11"));
    }

    #[test]
    fn linux_without_its_own_commands_fails() {
        let done = Done { linux: 11, ..DONE };
        let mut traffic = Traffic::default();
        let commands = DONE.launches * u64::from(READS) * COMMAND_BYTES;
        let of_peer = |purpose| kind(purpose, Completer::PeerBar);
        traffic.count(DISK, of_peer(Purpose::Command), commands, 0);
        traffic.count(DISK, of_peer(Purpose::Payload), 2 * BYTES, 0);
        traffic.count(GPU, of_peer(Purpose::Register), 80, 0);
        let error = judge(&traffic, (DISK, GPU), &done).unwrap_err();
        assert!(error.to_string().contains("Linux did 11"), "{error}");
    }
}
