//! The kernel with a disk that executes commands when a doorbell is written, or at a test's
//! request.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use peerbar_dma::{Buffer, MemoryFile, Requester, Upstream, UpstreamError, UpstreamRequest};
use peerbar_nvme_spec::command::nvm::BlockRange;
use peerbar_pci::Iova;
use proptest::prelude::*;

use super::*;
use crate::gpu_memory::GpuMemory;
use crate::word::WordSize;

const VRAM: u64 = 1 << 20;
const SUBMISSION: u64 = 0x1000;
const COMPLETION: u64 = 0x2000;
const STATE: u64 = 0x3000;
const REQUESTS: u64 = 0x4000;
const TAIL: u64 = 0x8000_1008;
const HEAD: u64 = 0x8000_100c;
const FAILED: u16 = 0x281;

/// A disk's side of a pair of queues in VRAM.
struct Disk {
    vram: Arc<MemoryFile>,
    entries: [u32; 2],
    state: Mutex<DiskState>,
}

#[derive(Default)]
struct DiskState {
    /// Commands fetched, and completions written.
    fetched: u64,
    completed: u64,
    /// The last value of each doorbell, and the number of writes to each.
    doorbells: [u32; 2],
    rings: [u64; 2],
    /// Blocks of the commands, in the order in which they were fetched.
    blocks: Vec<u64>,
    /// Commands that are fetched and not completed.
    pending: Vec<u16>,
    /// Completions wait for the test.
    holds: bool,
    /// Blocks whose commands fail.
    bad: Vec<u64>,
    refuses: bool,
    refuses_head: bool,
}

impl Disk {
    fn with<R>(&self, act: impl FnOnce(&mut DiskState) -> R) -> R {
        act(&mut self.state.lock().unwrap())
    }

    fn fetch(&self, state: &mut DiskState, tail: u32) {
        let [entries, _] = self.entries;
        assert!(tail < entries, "{tail}");
        while state.fetched % u64::from(entries) != u64::from(tail) {
            let at = SUBMISSION + state.fetched % u64::from(entries) * 64;
            let mut entry = SubmissionEntry::new_zeroed();
            self.vram.read(at, entry.as_mut_bytes()).unwrap();
            let blocks = BlockRange::from(&entry);
            state.blocks.push(blocks.slba.get());
            state.fetched += 1;
            match state.holds {
                true => state.pending.push(entry.cid.get()),
                false => self.complete(state, entry.cid.get(), blocks.slba.get()),
            }
        }
    }

    fn complete(&self, state: &mut DiskState, cid: u16, block: u64) {
        let [_, entries] = self.entries.map(u64::from);
        let number = state.completed;
        state.completed += 1;
        let in_use = (number - u64::from(state.doorbells[1])) % entries;
        assert!(in_use + 1 < entries, "the completion queue is full");
        let status = if state.bad.contains(&block) {
            FAILED
        } else {
            0
        };
        let phase = u16::from((number / entries) % 2 == 0);
        let mut entry = [0; 16];
        entry[12..14].copy_from_slice(&cid.to_le_bytes());
        entry[14..].copy_from_slice(&(status << 1 | phase).to_le_bytes());
        self.vram
            .write(COMPLETION + number % entries * 16, &entry)
            .unwrap();
    }
}

impl Upstream for Disk {
    fn carry_out(&self, requests: &mut [UpstreamRequest<'_>], _: &dyn Fn() -> bool) {
        let mut state = self.state.lock().unwrap();
        for ask in requests {
            let Buffer::Write(data) = &ask.data else {
                panic!("a doorbell is read")
            };
            let value = u32::from_le_bytes((*data).try_into().unwrap());
            let which = usize::from(ask.address == Iova(HEAD));
            assert_eq!(ask.address, Iova([TAIL, HEAD][which]));
            state.doorbells[which] = value;
            state.rings[which] += 1;
            let refused = Err(UpstreamError::Refused(19));
            let refuses = state.refuses || state.refuses_head && ask.address == Iova(HEAD);
            ask.outcome = Some(if refuses { refused } else { Ok(()) });
            if ask.address == Iova(TAIL) && !state.refuses {
                self.fetch(&mut state, value);
            }
        }
    }
}

struct NvmeIoFixture {
    executor: Executor,
    disk: Arc<Disk>,
    io: NvmeIo,
}

/// Returns queues with this many entries, and a launch of this many reads of one block each, from
/// block 100 on.
fn fixture(entries: [u32; 2], count: u16) -> NvmeIoFixture {
    let vram = Arc::new(MemoryFile::create("vram", VRAM).unwrap());
    let requester = Arc::new(Requester::new());
    requester.set_bus_master(true);
    requester.faults().serve(&Kind::OF_GPUS);
    let disk = Arc::new(Disk {
        vram: vram.clone(),
        entries,
        state: Mutex::default(),
    });
    requester.set_upstream(Some(disk.clone()));
    let executor = Executor::new(GpuMemory::new(vram, requester));
    let register = |address| Word::new(GpuAddress::Bus(address), WordSize::Four).unwrap();
    let io = NvmeIo {
        submission: GpuAddress::Vram(SUBMISSION),
        completion: GpuAddress::Vram(COMPLETION),
        doorbells: [register(Iova(TAIL)), register(Iova(HEAD))],
        state: GpuAddress::Vram(STATE),
        requests: GpuAddress::Vram(REQUESTS),
        count,
        submission_entries: entries[0],
        completion_entries: entries[1],
        depth: 0,
        nsid: 1,
        limit: None,
    };
    let fixture = NvmeIoFixture { executor, disk, io };
    fixture.put_requests();
    fixture
}

impl NvmeIoFixture {
    fn put_requests(&self) {
        for index in 0..self.io.count {
            let request = NvmeIoRequest {
                slba: (100 + u64::from(index)).into(),
                prp1: 0x10_0000.into(),
                prp2: 0.into(),
                blocks: 0.into(),
                opcode: 2,
                reserved: 0,
                outcome: 0xffff_ffff.into(),
            };
            let address = self.io.request(index);
            let memory = &self.executor.memory;
            memory
                .write(Purpose::Payload, address, request.as_bytes())
                .unwrap();
        }
    }

    /// Makes steps until there is a result, a fault or no work.
    fn steps(&mut self, progress: &mut Progress) -> Result<Option<u64>, Fault> {
        loop {
            progress.is_waiting = false;
            let done = self.executor.nvme_io(&self.io, progress)?;
            if done.is_some() || progress.is_waiting {
                return Ok(done);
            }
        }
    }

    fn launch(&mut self) -> Result<Option<u64>, Fault> {
        self.put_requests();
        self.steps(&mut Progress::default())
    }

    fn outcome(&self, index: u16) -> u32 {
        self.executor.outcome(&self.io, index).unwrap()
    }

    fn state(&self) -> NvmeIoState {
        let mut state = NvmeIoState::new_zeroed();
        let memory = &self.executor.memory;
        memory
            .read(Purpose::Payload, self.io.state, state.as_mut_bytes())
            .unwrap();
        state
    }
}

#[test]
fn requests_are_carried_out_around_both_queues() {
    let mut fixture = fixture([4, 7], 90);
    assert_eq!(fixture.launch(), Ok(Some(90)));
    assert_eq!(fixture.launch(), Ok(Some(90)), "the queues go on");
    let expected: Vec<u64> = (100..190).chain(100..190).collect();
    let doorbells = fixture.disk.with(|disk| {
        assert!(disk.blocks == expected, "{:?}", disk.blocks);
        assert_eq!(disk.doorbells, [180 % 4, 180 % 7]);
        disk.rings
    });
    assert_eq!(doorbells, [60, 60], "one for each three commands");
    let state = fixture.state();
    assert_eq!((state.submitted.get(), state.completed.get()), (180, 180));
    assert_eq!((state.doorbells.get(), state.flags.get()), (120, 0));
    assert!((0..90).all(|index| fixture.outcome(index) == COMPLETE));
}

#[test]
fn doorbell_stands_for_half_of_what_may_be_in_progress() {
    let mut fixture = fixture([64, 64], 40);
    fixture.io.depth = 8;
    fixture.disk.with(|disk| disk.holds = true);
    let mut progress = Progress::default();
    let mut complete = |count| {
        fixture.disk.with(|disk| {
            for cid in disk.pending.drain(..count).collect::<Vec<_>>() {
                fixture.disk.complete(disk, cid, 0);
            }
        });
        let done = fixture.steps(&mut progress).unwrap();
        fixture
            .disk
            .with(|disk| (disk.pending.len(), disk.rings, done))
    };
    assert_eq!(complete(0), (8, [1, 0], None));
    assert_eq!(
        complete(3),
        (5, [1, 0], None),
        "3 free entries are less than half"
    );
    assert_eq!(complete(1), (8, [2, 0], None));
    for tails in 3..=9 {
        assert_eq!(complete(4).1[0], tails);
    }
    assert_eq!(
        complete(8),
        (0, [9, 2], Some(40)),
        "32 entries, then the last 8"
    );
}

#[test]
fn steps_whose_slice_is_over_submit_and_complete_by_turns() {
    let mut fixture = fixture([16, 16], 9);
    fixture.executor.begin_slice(Instant::now());
    let mut progress = Progress::default();
    for step in 1u16..=18 {
        let done = fixture.executor.nvme_io(&fixture.io, &mut progress);
        assert_eq!(done, Ok((step == 18).then_some(9)), "step {step}");
        let queue = progress.queue;
        let expected = (step.div_ceil(2), step / 2);
        assert_eq!((queue.sent, queue.done), expected);
    }
    let rings = fixture.disk.with(|disk| disk.rings);
    assert_eq!(rings, [9, 2], "half of the entries, then the last one");
}

#[test]
fn depth_bounds_the_commands_in_progress() {
    let mut fixture = fixture([64, 64], 20);
    fixture.io.depth = 5;
    fixture.disk.with(|disk| disk.holds = true);
    let mut progress = Progress::default();
    assert_eq!(fixture.steps(&mut progress), Ok(None));
    assert_eq!(fixture.disk.with(|disk| disk.pending.len()), 5);
}

#[test]
fn completions_in_any_order_end_the_launch() {
    let mut fixture = fixture([32, 32], 20);
    fixture.disk.with(|disk| disk.holds = true);
    let mut progress = Progress::default();
    assert_eq!(fixture.steps(&mut progress), Ok(None));
    fixture.disk.with(|disk| {
        for cid in std::mem::take(&mut disk.pending).into_iter().rev() {
            fixture.disk.complete(disk, cid, 0);
        }
    });
    assert_eq!(fixture.steps(&mut progress), Ok(Some(20)));
}

#[test]
fn first_request_that_fails_is_the_result() {
    let mut fixture = fixture([8, 8], 30);
    fixture.disk.with(|disk| disk.bad = vec![117, 105]);
    let result = u64::from(FAILED) << 32 | 5;
    assert_eq!(fixture.launch(), Ok(Some(result)));
    let failed: Vec<u16> = (0..30)
        .filter(|index| fixture.outcome(*index) == COMPLETE | u32::from(FAILED))
        .collect();
    assert_eq!(failed, [5, 17]);
    assert_eq!(fixture.state().flags.get(), 0, "the queues are in order");
}

#[test]
fn completion_of_no_command_in_progress_is_a_fault() {
    for cid in [7, 0xffff] {
        let mut fixture = fixture([16, 16], 20);
        fixture.disk.with(|disk| disk.holds = true);
        let mut progress = Progress::default();
        assert_eq!(fixture.steps(&mut progress), Ok(None));
        fixture.disk.with(|disk| {
            for cid in [7, cid] {
                fixture.disk.complete(disk, cid, 0);
            }
        });
        let fault = fixture.steps(&mut progress).unwrap_err();
        assert_eq!(
            (fault.code, fault.address),
            (FaultCode::BadCompletion, cid.into())
        );
    }
}

#[test]
fn late_completion_is_a_fault_with_its_index() {
    let mut fixture = fixture([16, 16], 9);
    fixture.io.limit = Some(Duration::from_millis(10));
    fixture.disk.with(|disk| disk.holds = true);
    let mut progress = Progress::default();
    assert_eq!(fixture.steps(&mut progress), Ok(None));
    progress.worked = Duration::from_millis(9);
    fixture.disk.with(|disk| {
        for cid in [0, 1, 3] {
            fixture.disk.complete(disk, cid, 0);
        }
    });
    assert_eq!(fixture.steps(&mut progress), Ok(None));
    progress.worked = Duration::from_millis(19);
    assert_eq!(fixture.steps(&mut progress), Ok(None));
    progress.worked = Duration::from_millis(20);
    let fault = fixture.steps(&mut progress).unwrap_err();
    assert_eq!(fault.code, FaultCode::TimeOut);
    fixture.executor.fail_nvme_io(&fixture.io, &progress);
    let state = fixture.state();
    assert_eq!((state.flags.get(), state.index.get()), (IN_USE, 2));
    assert_eq!((state.submitted.get(), state.completed.get()), (9, 3));
    let fault = fixture.launch().unwrap_err();
    assert_eq!(
        fault.code,
        FaultCode::BadCommand,
        "they are to be made again"
    );
}

#[test]
fn outcomes_of_an_earlier_launch_do_not_count() {
    let mut fixture = fixture([4, 4], 9);
    assert_eq!(fixture.launch(), Ok(Some(9)));
    fixture.disk.with(|disk| disk.refuses_head = true);
    // The same requests, whose outcomes have not been cleared.
    let mut progress = Progress::default();
    let fault = fixture.steps(&mut progress).unwrap_err();
    assert_eq!((fault.code, fault.address), (FaultCode::Dma, HEAD));
    fixture.executor.fail_nvme_io(&fixture.io, &progress);
    assert_eq!(fixture.state().index.get(), 3, "three were submitted");
}

#[test]
fn doorbell_that_is_refused_is_a_fault_at_its_address() {
    let mut fixture = fixture([16, 16], 3);
    fixture.disk.with(|disk| disk.refuses = true);
    let fault = fixture.launch().unwrap_err();
    let expected = Fault {
        code: FaultCode::Dma,
        write: true,
        address: TAIL,
    };
    assert_eq!(fault, expected);
}

#[test]
fn queue_that_leaves_vram_is_a_fault_before_any_doorbell() {
    let mut fixture = fixture([16, 16], 3);
    fixture.io.submission = GpuAddress::Vram(VRAM - 15 * 64);
    assert_eq!(fixture.launch().unwrap_err().code, FaultCode::VramRange);
    assert_eq!(fixture.disk.with(|disk| disk.rings), [0, 0]);
}

#[test]
fn entry_not_there_at_its_doorbell_is_a_fault() {
    for rule in [
        "delay submission-entry by=1us nth=5",
        "drop submission-entry nth=5",
    ] {
        let mut fixture = fixture([4, 4], 6);
        let requester = fixture.executor.memory.requester();
        requester.add_fault(rule.parse().unwrap()).unwrap();
        let fault = fixture.launch().unwrap_err();
        // The disk has fetched the entry's previous contents: the command with identifier 0, which
        // is complete.
        assert_eq!((fault.code, fault.address), (FaultCode::BadCompletion, 0));
        fixture
            .disk
            .with(|disk| assert_eq!(disk.blocks, [100, 101, 102, 103, 100, 105]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn launch_over_any_memory_ends_or_waits(
        seed in any::<u64>(),
        entries in (2u32..40, 2u32..40),
        count in 1u16..100,
    ) {
        let mut fixture = fixture(entries.into(), count);
        fixture.disk.with(|disk| disk.holds = true);
        let words = (1..0x5000 / 8).map(|word: u64| seed.wrapping_mul(2 * word + 1) ^ seed >> 17);
        let memory: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        fixture.disk.vram.write(0, &memory).unwrap();
        fixture.disk.vram.write(STATE + 24, &[0; 4]).unwrap();
        let tail = fixture.state().submitted.get();
        fixture.disk.with(|disk| disk.fetched = tail);
        let done = fixture.steps(&mut Progress::default());
        let ended_badly = |fault: Fault| fault.code == FaultCode::BadCompletion;
        prop_assert!(done.is_ok() || done.is_err_and(ended_badly), "{done:?}");
    }
}
