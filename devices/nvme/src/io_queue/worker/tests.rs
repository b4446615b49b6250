//! A worker, its queues in memory, and namespaces on pipes, which a test can slow down.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use peerbar_dma::{DoorbellEvent, MapAccess, MemoryFile, Requester};
use peerbar_file_ring::{FileRing, RingFile};
use peerbar_flight::{Event, FlightFile, Level, Recorder};
use peerbar_nvme_spec::command::{NvmOpcode, SubmissionEntry};
use peerbar_nvme_spec::completion::{CompletionEntry, Status};
use peerbar_nvme_spec::registers::Doorbell;
use peerbar_pci::{InterruptMode, Interrupts, Iova, Range};
use zerocopy::little_endian::U32;
use zerocopy::{FromZeros, IntoBytes};

use super::*;
use crate::data::DataPath;
use crate::doorbell_page::DoorbellPage;
use crate::intx::Intx;
use crate::io_queue::completion::CompletionQueue;
use crate::io_queue::group::WAIT_BYTES;
use crate::io_queue::interrupt::Coalescing;
use crate::io_queue::request::WorkerRequest;
use crate::io_queue::ring::Ring;
use crate::io_queue::submission::SubmissionQueue;
use crate::namespace::{Backend, DirectAccess, Namespace, RamBackend};
use crate::notifier::Notifier;
use crate::registers::Registers;
use crate::storage::Storage;

const TIME_OUT: Duration = Duration::from_secs(20);
const BLOCK: usize = 512;
const RAM_BYTES: u64 = 0x4_0000;
/// Address of the data, away from the queues.
const DATA: u64 = 0x2_0000;
/// NSIDs of a namespace on an empty pipe, of one in memory, and of one on a full pipe.
const SLOW: u32 = 1;
const FAST: u32 = 2;
const FULL: u32 = 3;
const ENTRIES: u32 = 4;
/// Capacity of a pipe.
const FILLING: usize = 0x1000;

/// A namespace whose blocks come out of a pipe, or go into one.
struct Slow(RingFile);

impl Backend for Slow {
    fn size(&self) -> u64 {
        1 << 20
    }

    fn direct(&self) -> DirectAccess<'_> {
        DirectAccess::File(&self.0)
    }

    fn read(&self, _offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.file().read_exact(data)
    }

    fn write(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn zero(&self, _range: (u64, u64), _deallocate: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn mode(&self) -> InterruptMode {
        InterruptMode::MsiX
    }

    fn raise(&self, _vector: u16) {}

    fn set_pin(&self, _asserted: bool) {}
}

/// A worker with two queue pairs.
struct Fixture {
    notifier: Arc<Notifier>,
    requester: Arc<Requester>,
    ram: MemoryFile,
    requests: Sender<(WorkerRequest, Done)>,
    worker: Option<JoinHandle<()>>,
    /// The other end of the slow namespace's pipe.
    data: File,
    /// The other end of the full namespace's pipe.
    sink: File,
    tails: [u32; 3],
    heads: [u32; 3],
}

impl Fixture {
    /// Returns `None` on a machine that does not permit io_uring. Then the test is skipped.
    fn new(poll: PollPolicy) -> Option<Self> {
        let doorbells = DoorbellPage::new(3, 0x4000).unwrap();
        let (registers, intx) = (Registers::new(None, None), Intx::new(3));
        let interrupts = Arc::new(NoInterrupts);
        let notifier = Notifier::new(registers, doorbells, intx, 1, interrupts);
        let notifier = Arc::new(notifier.unwrap());
        let requester = Arc::new(Requester::new());
        let ram = MemoryFile::create("ram", RAM_BYTES).unwrap();
        let fd = ram.file().try_clone().unwrap().into();
        requester
            .map(
                Range::new(Iova(0), RAM_BYTES).unwrap(),
                MapAccess::READ_WRITE,
                Some((fd, 0)),
            )
            .unwrap();
        requester.set_bus_master(true);
        let (slow, data) = rustix::pipe::pipe().unwrap();
        let slow = Slow(RingFile::new(slow.into()));
        let (sink, full) = full_pipe();
        let full = Slow(RingFile::new(full));
        let fast = RamBackend::new(1 << 20).unwrap();
        let block_bytes = BLOCK.try_into().unwrap();
        let namespaces = vec![
            Namespace::new(Box::new(slow), block_bytes, false),
            Namespace::new(Box::new(fast), block_bytes, false),
            Namespace::new(Box::new(full), block_bytes, false),
        ];
        let wake = notifier.clone();
        let storage = Storage::new(namespaces, None, move || wake.notify_threads());
        let mut path = DataPath::new(requester.clone(), 1 << 16, Vec::new());
        let ring = FileRing::new(notifier.events(Owner(1)).event_fd().as_fd());
        path.files = Some(
            ring.inspect_err(|error| eprintln!("skipped: {error}"))
                .ok()?,
        );
        let (sender, requests) = channel();
        let settings = Arc::new(Coalescing::new(3));
        let interrupts = QueueInterrupts::new(notifier.clone(), settings);
        let io = Io::new(path, Arc::new(storage));
        let worker = Worker::new(Owner(1), requests, poll, io, interrupts);
        let mut fixture = Self {
            notifier,
            requester,
            ram,
            requests: sender,
            worker: Some(std::thread::spawn(move || worker.run())),
            data: data.into(),
            sink,
            tails: [0; 3],
            heads: [0; 3],
        };
        fixture.create_queues();
        Some(fixture)
    }

    fn create_queues(&mut self) {
        for id in [1, 2] {
            let doorbells = [Doorbell::SubmissionTail(id), Doorbell::CompletionHead(id)];
            for doorbell in doorbells {
                self.notifier.doorbells.set_owner(doorbell, Some(Owner(1)));
            }
            self.notifier.intx.open(id, ENTRIES, Some(id));
            let page = || self.notifier.doorbells.clone();
            let ring = |base| Ring {
                base,
                entries: ENTRIES,
            };
            let queue = CompletionQueue::new(id, Some(id), ring(Iova(completions(id))), page());
            self.confirm(WorkerRequest::AddCompletion(queue));
            let queue = SubmissionQueue::new(id, ring(Iova(submissions(id))), page());
            self.confirm(WorkerRequest::AddSubmission(id, queue));
        }
    }

    /// Sends a request. Returns the channel of its confirmation.
    fn request(&self, request: WorkerRequest) -> Receiver<()> {
        let (done, wait) = sync_channel(1);
        self.requests.send((request, done)).unwrap();
        self.notifier.events(Owner(1)).notify();
        wait
    }

    fn confirm(&self, request: WorkerRequest) {
        self.request(request).recv_timeout(TIME_OUT).unwrap();
    }

    /// Makes queue `id` read a block of a namespace to page `page` at `DATA`.
    fn read(&mut self, id: u16, nsid: u32, page: u64) {
        self.command(id, NvmOpcode::Read, nsid, page);
    }

    /// Gives queue `id` a command on the first block of a namespace, with its data in page `page`
    /// at `DATA`.
    fn command(&mut self, id: u16, opcode: NvmOpcode, nsid: u32, page: u64) {
        let mut entry = SubmissionEntry::new_zeroed();
        entry.opcode = opcode as u8;
        entry.nsid = U32::new(nsid);
        entry.prp1.set(DATA + page * 0x1000);
        entry.cid.set(page.try_into().unwrap());
        if opcode == NvmOpcode::DatasetManagement {
            entry.cdw11.set(1 << 2); // AD: deallocate
        }
        self.submit(id, &[entry]);
    }

    /// Submits commands to queue `id` together.
    fn submit(&mut self, id: u16, entries: &[SubmissionEntry]) {
        let tail = &mut self.tails[usize::from(id)];
        for entry in entries {
            let at = submissions(id) + u64::from(*tail) * 64;
            self.ram.write(at, entry.as_bytes()).unwrap();
            *tail = (*tail + 1) % ENTRIES;
        }
        self.notifier.ring(Doorbell::SubmissionTail(id), *tail);
    }

    /// Returns CID and status of the next completion of a queue, if there is one.
    fn completion(&mut self, id: u16) -> Option<(u16, u16)> {
        let head = &mut self.heads[usize::from(id)];
        let mut entry = CompletionEntry::new_zeroed();
        let at = completions(id) + u64::from(*head % ENTRIES) * 16;
        self.ram.read(at, entry.as_mut_bytes()).unwrap();
        let phase = (*head / ENTRIES) % 2 == 0;
        (entry.status.phase() == phase).then(|| {
            *head += 1;
            let doorbell = Doorbell::CompletionHead(id);
            self.notifier.ring(doorbell, *head % ENTRIES);
            (entry.cid.get(), entry.status.status().into_bits())
        })
    }

    #[track_caller]
    fn wait(&mut self, id: u16) -> (u16, u16) {
        let start = Instant::now();
        loop {
            if let Some(entry) = self.completion(id) {
                return entry;
            }
            assert!(start.elapsed() < TIME_OUT, "queue {id} completes nothing");
            std::thread::yield_now();
        }
    }

    /// Makes the slow namespace deliver `blocks` blocks.
    fn deliver(&mut self, blocks: usize) {
        self.data.write_all(&vec![7; blocks * BLOCK]).unwrap();
    }

    /// Makes the full namespace take `blocks` blocks. Returns their bytes.
    fn empty(&mut self, blocks: usize) -> Vec<u8> {
        let mut data = vec![0; FILLING + blocks * BLOCK];
        self.sink.read_exact(&mut data).unwrap();
        assert!(data.iter().take(FILLING).all(|byte| *byte == 7));
        data.split_off(FILLING)
    }

    fn page(&self, page: u64) -> [u8; BLOCK] {
        let mut data = [0; BLOCK];
        self.ram.read(DATA + page * 0x1000, &mut data).unwrap();
        data
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // Commands that still wait for the slow namespace end with its pipe.
        let (_, data) = rustix::pipe::pipe().unwrap();
        self.data = data.into();
        (self.sink, _) = full_pipe();
        drop(self.request(WorkerRequest::Stop));
        let ended = self.worker.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

/// Returns a pipe that takes no data until `FILLING` bytes have been read from it.
fn full_pipe() -> (File, File) {
    let (reads, writes) = rustix::pipe::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writes, FILLING).unwrap();
    let mut writes = File::from(writes);
    writes.write_all(&[7; FILLING]).unwrap();
    (reads.into(), writes)
}

fn submissions(id: u16) -> u64 {
    u64::from(id) * 0x2000
}

fn completions(id: u16) -> u64 {
    submissions(id) + 0x1000
}

#[test]
fn slow_command_holds_up_no_other_command() {
    for poll in [PollPolicy::Never, PollPolicy::Adaptive, PollPolicy::Always] {
        let Some(mut fixture) = Fixture::new(poll) else {
            return;
        };
        fixture.read(1, SLOW, 1);
        for _ in 0..10 {
            fixture.read(2, FAST, 2);
            assert_eq!(fixture.wait(2), (2, 0), "{poll}");
        }
        for opcode in [NvmOpcode::Compare, NvmOpcode::DatasetManagement] {
            fixture.command(2, opcode, FAST, 2);
            assert_eq!(fixture.wait(2), (2, 0), "{opcode:?}");
        }
        fixture.read(1, FAST, 3);
        assert_eq!(fixture.wait(1), (3, 0), "{poll}");
        assert_eq!(fixture.page(1), [0; BLOCK]);
        fixture.deliver(1);
        assert_eq!(fixture.wait(1), (1, 0), "{poll}");
        assert_eq!(fixture.page(1), [7; BLOCK]);
    }
}

#[test]
fn slow_check_of_blocks_holds_up_no_other_queue() {
    let differs = Status::COMPARE_FAILURE.with_more(true).into_bits();
    let cases = [
        (NvmOpcode::Verify, 0, 0),
        (NvmOpcode::Compare, 7, 0),
        (NvmOpcode::Compare, 8, differs),
    ];
    for (opcode, byte, status) in cases {
        let Some(mut fixture) = Fixture::new(PollPolicy::Adaptive) else {
            return;
        };
        fixture.ram.write(DATA + 0x1000, &[byte; BLOCK]).unwrap();
        fixture.command(1, opcode, SLOW, 1);
        for _ in 0..10 {
            fixture.read(2, FAST, 2);
            assert_eq!(fixture.wait(2), (2, 0), "{opcode:?}");
        }
        assert_eq!(fixture.completion(1), None, "{opcode:?}");
        fixture.deliver(1);
        assert_eq!(fixture.wait(1), (1, status), "{opcode:?}");
    }
}

#[test]
fn slow_zeroing_of_blocks_holds_up_no_other_queue() {
    for opcode in [NvmOpcode::WriteZeroes, NvmOpcode::DatasetManagement] {
        let Some(mut fixture) = Fixture::new(PollPolicy::Adaptive) else {
            return;
        };
        let ranges: [u32; 4] = [0, 2, 0, 0]; // Two blocks from the first on.
        fixture.ram.write(DATA + 0x1000, ranges.as_bytes()).unwrap();
        fixture.command(1, opcode, FULL, 1);
        for _ in 0..10 {
            fixture.read(2, FAST, 2);
            assert_eq!(fixture.wait(2), (2, 0), "{opcode:?}");
        }
        assert_eq!(fixture.completion(1), None, "{opcode:?}");
        let blocks = if opcode == NvmOpcode::WriteZeroes {
            1
        } else {
            2
        };
        assert_eq!(fixture.empty(blocks), vec![0; blocks * BLOCK]);
        assert_eq!(fixture.wait(1), (1, 0), "{opcode:?}");
    }
}

#[test]
fn no_block_is_zeroed_after_a_reset() {
    let Some(mut fixture) = Fixture::new(PollPolicy::Adaptive) else {
        return;
    };
    let ranges: [u32; 4] = [0, 2048, 0, 0]; // All blocks.
    fixture.ram.write(DATA + 0x1000, ranges.as_bytes()).unwrap();
    fixture.command(1, NvmOpcode::DatasetManagement, FULL, 1);
    assert_eq!(fixture.empty(1), [0; BLOCK]);
    let forgotten = fixture.request(WorkerRequest::Forget);
    rustix::io::ioctl_fionbio(&fixture.sink, true).unwrap();
    let mut page = [0; 0x1000];
    while forgotten.try_recv().is_err() {
        let _ = fixture.sink.read(&mut page);
    }
    while fixture.sink.read(&mut page).is_ok() {}
    fixture.ram.write(0, &vec![0; 0x1_0000]).unwrap();
    (fixture.tails, fixture.heads) = ([0; 3], [0; 3]);
    fixture.create_queues();
    for _ in 0..10 {
        fixture.read(1, FAST, 3);
        assert_eq!(fixture.wait(1), (3, 0));
        let error = fixture.sink.read(&mut page).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}

#[test]
fn completion_queue_keeps_entries_for_slow_commands() {
    let Some(mut fixture) = Fixture::new(PollPolicy::Adaptive) else {
        return;
    };
    for page in 1..=3 {
        fixture.read(1, SLOW, page);
    }
    fixture.deliver(3);
    // A queue of 4 entries holds 3, and the head doorbell is rung only when all have been taken.
    let mut cids = [1, 2, 3].map(|_| fixture.wait(1).0);
    cids.sort_unstable();
    assert_eq!(cids, [1, 2, 3]);
    fixture.read(1, FAST, 4);
    assert_eq!(fixture.wait(1), (4, 0));
}

/// Reads of a page, of more bytes than a completion waits for, and of data that makes the worker
/// itself wait, because its address is not mapped.
fn a_small_a_large_and_a_slow_read(ram: &MemoryFile) -> [SubmissionEntry; 3] {
    let pages = WAIT_BYTES / 0x1000;
    let list: Vec<u8> = (1..pages)
        .flat_map(|page| (DATA + page * 0x1000).to_le_bytes())
        .collect();
    ram.write(DATA + pages * 0x1000, &list).unwrap();
    let reads = [(0, FAST, DATA), (1, FAST, DATA), (2, SLOW, RAM_BYTES)];
    let mut commands = reads.map(|(cid, nsid, address)| {
        let mut command = SubmissionEntry::new_zeroed();
        command.opcode = NvmOpcode::Read as u8;
        command.cid.set(cid);
        command.nsid.set(nsid);
        command.prp1.set(address);
        command
    });
    let [_, large, _] = &mut commands;
    large.prp2.set(DATA + pages * 0x1000);
    large.cdw12 = U32::new(u32::try_from(WAIT_BYTES).unwrap() / 512 - 1);
    commands
}

#[test]
fn half_a_batch_and_much_data_complete_before_later_commands() {
    let Some(mut fixture) = Fixture::new(PollPolicy::Adaptive) else {
        return;
    };
    let [small, large, slow] = a_small_a_large_and_a_slow_read(&fixture.ram);
    for batch in [&[small, slow][..], &[small, large, slow]] {
        fixture.submit(1, batch);
        for command in batch.iter().filter(|command| command.cid != slow.cid) {
            assert_eq!(fixture.wait(1), (command.cid.get(), 0));
        }
        assert_eq!(fixture.completion(1), None);
        fixture.deliver(1);
        let error = Status::DATA_TRANSFER_ERROR.with_more(true).into_bits();
        assert_eq!(fixture.wait(1), (slow.cid.get(), error));
    }
}

#[test]
fn file_that_ends_too_early_fails_the_command() {
    let Some(mut fixture) = Fixture::new(PollPolicy::Adaptive) else {
        return;
    };
    fixture.read(1, SLOW, 1);
    fixture.data.write_all(&[7; 100]).unwrap();
    let (_, other) = rustix::pipe::pipe().unwrap();
    fixture.data = other.into();
    let (cid, status) = fixture.wait(1);
    let error = Status::UNRECOVERED_READ_ERROR.with_more(true);
    assert_eq!((cid, status), (1, error.into_bits()));
}

#[test]
fn submission_queue_is_removed_after_its_commands_complete() {
    let Some(mut fixture) = Fixture::new(PollPolicy::Adaptive) else {
        return;
    };
    fixture.read(1, SLOW, 1);
    fixture.read(2, FAST, 2);
    fixture.wait(2);
    let removed = fixture.request(WorkerRequest::RemoveSubmission(1));
    fixture.read(2, FAST, 3);
    fixture.wait(2);
    assert!(removed.try_recv().is_err(), "a command is outstanding");
    fixture.deliver(1);
    removed.recv_timeout(TIME_OUT).unwrap();
    assert_eq!(fixture.completion(1), Some((1, 0)));
}

#[test]
fn finish_waits_for_commands_of_the_kernel() {
    let Some(mut fixture) = Fixture::new(PollPolicy::Adaptive) else {
        return;
    };
    fixture.read(1, SLOW, 1);
    let finished = fixture.request(WorkerRequest::Finish);
    fixture.read(2, FAST, 2);
    fixture.wait(2);
    assert!(finished.try_recv().is_err());
    fixture.deliver(1);
    finished.recv_timeout(TIME_OUT).unwrap();
    assert_eq!(fixture.completion(1), Some((1, 0)));
}

#[test]
fn reset_waits_for_data_and_drops_its_command() {
    let Some(mut fixture) = Fixture::new(PollPolicy::Adaptive) else {
        return;
    };
    fixture.read(1, SLOW, 1);
    fixture.read(2, FAST, 2);
    fixture.wait(2);
    let (notifier, requester) = (fixture.notifier.clone(), fixture.requester.clone());
    std::thread::scope(|scope| {
        let reset = scope.spawn(|| {
            drop(notifier.change(|registers| {
                registers.reset();
                requester.halt()
            }));
        });
        while !fixture.notifier.quiet() {
            std::thread::yield_now();
        }
        let forgotten = fixture.request(WorkerRequest::Forget);
        fixture.deliver(1);
        reset.join().unwrap();
        forgotten.recv_timeout(TIME_OUT).unwrap();
    });
    assert_eq!(fixture.page(1), [7; BLOCK]);
    assert_eq!(fixture.completion(1), None);
    fixture.notifier.report(|registers| {
        registers.disabled();
        fixture.requester.resume();
    });
    fixture.ram.write(0, &vec![0; 0x1_0000]).unwrap();
    (fixture.tails, fixture.heads) = ([0; 3], [0; 3]);
    fixture.create_queues();
    fixture.read(1, FAST, 3);
    assert_eq!(fixture.wait(1), (3, 0));
}

#[test]
fn batch_of_commands_is_one_doorbell_in_the_record() {
    let Some(mut fixture) = Fixture::new(PollPolicy::Adaptive) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk0.flight");
    let recorder = Recorder::create(&path, "disk0", Level::All).unwrap();
    fixture.requester.ledger().record_in(recorder);
    let mut entry = SubmissionEntry::new_zeroed();
    entry.opcode = NvmOpcode::Flush as u8;
    entry.nsid = U32::new(FAST);
    for batch in [3, 1] {
        fixture.submit(1, &vec![entry; batch]);
        for _ in 0..batch {
            assert_eq!(fixture.wait(1), (0, 0));
        }
    }
    let flight = FlightFile::open(&path).unwrap().read().unwrap();
    let rung = flight
        .records
        .iter()
        .filter_map(|record| match record.event {
            Event::Doorbell(doorbell) => Some(doorbell),
            _ => None,
        });
    let rung: Vec<_> = rung.collect();
    let expected = [(3, 3), (0, 1)].map(|(tail, added)| DoorbellEvent {
        queue: 1,
        tail,
        added,
        waiting: added,
        vector: Some(1),
    });
    assert_eq!(rung, expected);
}
