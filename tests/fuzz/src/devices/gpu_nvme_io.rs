//! A GPU that drives the queues of an NVMe controller (the kernel `nvme io`), with a controller
//! that completes commands as it likes, in any order, and sometimes commands that were never
//! submitted. Each request is submitted once and in its order, never more than the queues take, and
//! outcomes, state, result and fault code match the interface (`devices/gpu/INTERFACE.md`).

use std::sync::{Arc, Mutex, OnceLock};

use peerbar_dma::MemoryFile;

use super::gpu_bench::{GpuBench, ON, failed};
use crate::input::Input;

const PAGE: u64 = 4096;
/// Guest memory: the ring, both queues, and the doorbells.
const RAM_AT: u64 = 0x10_0000;
const PAGES: u64 = 4;
const RING: u64 = 0;
const SUBMISSION: u64 = PAGE;
const COMPLETION: u64 = 2 * PAGE;
const TAIL: u64 = 3 * PAGE;
const HEAD: u64 = 3 * PAGE + 4;
/// In VRAM: state, fence and requests. Queues that lie in VRAM are at the same offsets as in guest
/// memory.
const STATE: u64 = 0x8000;
const FENCE: u64 = 0x9000;
const REQUESTS: u64 = 0xa000;
const REQUEST_BYTES: u64 = 32;

const CHANNEL: u8 = 0;
const RING_ENTRIES: u32 = 8;
const ENTRY_BYTES: u64 = 128;
const NSID: u32 = 7;
/// Maximum number of launches of an input, and of steps of the controller in each.
const LAUNCHES: usize = 6;
const STEPS: usize = 200;

const DMA: u32 = 2;
const BAD_COMMAND: u32 = 4;
const BAD_COMPLETION: u32 = 8;

/// A pair of queues since its creation.
#[derive(Clone, Copy)]
struct Queues {
    /// Entries of the submission queue and of the completion queue.
    entries: [u32; 2],
    /// `true` for each one in VRAM.
    in_vram: [bool; 2],
    /// Commands that the controller has fetched, and completions that it has written.
    fetched: u64,
    posted: u64,
    /// Completions whose entries it may reuse.
    freed: u64,
}

/// A launch from the controller's view.
struct Launch {
    requests: Vec<[u8; REQUEST_BYTES as usize]>,
    depth: u64,
    /// Number of requests that the controller has fetched, and the ones that it has not completed.
    fetched: usize,
    in_progress: Vec<usize>,
    statuses: Vec<Option<u16>>,
}

struct Fixture {
    gpu: GpuBench,
    ram: Arc<MemoryFile>,
    queues: Queues,
    put: u32,
}

/// Executes the launches of `data`.
pub fn run(data: &[u8]) {
    static BENCH: OnceLock<Mutex<Fixture>> = OnceLock::new();
    let fixture = BENCH.get_or_init(|| Mutex::new(Fixture::new()));
    let mut fixture = fixture.lock().expect("no earlier failure");
    let mut input = Input::new(data);
    fixture.start(&mut input);
    for _ in 0..LAUNCHES {
        if fixture.launch(&mut input).is_none() {
            break;
        }
    }
}

impl Fixture {
    fn new() -> Self {
        let mut fixture = Self {
            gpu: GpuBench::new(),
            ram: Arc::new(MemoryFile::create("ram", PAGES * PAGE).expect("memory")),
            queues: Queues::new(&mut Input::new(&[])),
            put: 0,
        };
        (0..PAGES).for_each(|page| fixture.set_page(page, true));
        fixture
    }

    fn set_page(&mut self, page: u64, present: bool) {
        let iova = RAM_AT + page * PAGE;
        match present {
            true => self.gpu.map(iova, PAGE, self.ram.file(), page * PAGE),
            false => self.gpu.unmap(iova, PAGE),
        }
    }

    /// Sets up a channel that has done nothing, and a new pair of queues.
    fn start(&mut self, input: &mut Input<'_>) {
        self.gpu.enable(CHANNEL, RAM_AT + RING, RING_ENTRIES);
        self.put = 0;
        self.queues = Queues::new(input);
        self.ram
            .write(0, &[0; (PAGES * PAGE) as usize])
            .expect("RAM");
        self.gpu
            .vram()
            .write(COMPLETION, &[0; PAGE as usize])
            .expect("VRAM");
        self.gpu.vram().write(STATE, &[0; 32]).expect("VRAM");
    }

    /// Executes a launch. Returns `None` at the end of the input, with the launch complete.
    fn launch(&mut self, input: &mut Input<'_>) -> Option<()> {
        let [count, depth, missing] = input.array()?;
        let mut launch = Launch::new(input, usize::from(count % 25), u64::from(depth % 20))?;
        for (at, request) in (0..).zip(&launch.requests) {
            let offset = REQUESTS + at * REQUEST_BYTES;
            self.gpu.vram().write(offset, request).expect("VRAM");
        }
        // Rarely a page that the launch needs is missing.
        let missing = Some(u64::from(missing)).filter(|page| (1..PAGES).contains(page));
        let missing = missing.filter(|page| {
            let is_queue_in_vram = self.queues.in_vram.get(*page as usize - 1);
            !launch.requests.is_empty() && !is_queue_in_vram.is_some_and(|in_vram| *in_vram)
        });
        if let Some(page) = missing {
            self.set_page(page, false);
            self.submit(&launch);
            self.set_page(page, true);
            self.expect_failure(DMA);
            self.start(input);
            return Some(());
        }
        self.submit(&launch);
        for _ in 0..STEPS {
            self.fetch(&mut launch);
            if self.gpu.head(CHANNEL) == self.put {
                break;
            }
            assert!(!launch.in_progress.is_empty(), "the GPU waits for nothing");
            match input.u8() {
                Some(244..=251) if self.has_free_completion() => {
                    self.complete_wrongly(&launch, input);
                    self.expect_failure(BAD_COMPLETION);
                    self.check_failed_state(&launch);
                    self.expect_refusal(&launch);
                    self.start(input);
                    return Some(());
                }
                Some(252..) => {
                    // The channel is disabled during the launch.
                    self.expect_refusal(&launch);
                    self.start(input);
                    return Some(());
                }
                action => self.complete(&mut launch, action.unwrap_or(0), input),
            }
            self.gpu.work();
        }
        self.check_end(&launch);
        Some(())
    }

    /// Puts the launch on the ring, and lets the GPU begin.
    fn submit(&mut self, launch: &Launch) {
        let mut entry = [0; ENTRY_BYTES as usize];
        entry[0] = 5;
        entry[1] = 0b101;
        let mut spaces = 1_u16 << 4 | 1 << 5;
        let mut queue = |operand: usize, at: u64| {
            let in_vram = self.queues.in_vram[operand];
            spaces |= u16::from(in_vram) << operand;
            if in_vram { at } else { RAM_AT + at }
        };
        let rings = [queue(0, SUBMISSION), queue(1, COMPLETION)];
        let [submissions, completions] = self.queues.entries.map(u64::from);
        let count = launch.requests.len() as u64;
        let operands = [
            rings[0],
            rings[1],
            RAM_AT + TAIL,
            RAM_AT + HEAD,
            STATE,
            REQUESTS,
            count,
            completions << 32 | submissions,
            launch.depth,
            NSID.into(),
            0,
            1,
            count.max(1),
        ];
        entry[2..4].copy_from_slice(&spaces.to_le_bytes());
        entry[4..8].copy_from_slice(&5_u32.to_le_bytes());
        entry[8..16].copy_from_slice(&FENCE.to_le_bytes());
        entry[16..24].copy_from_slice(&u64::from(self.put + 1).to_le_bytes());
        for (field, operand) in entry[24..].chunks_exact_mut(8).zip(operands) {
            field.copy_from_slice(&operand.to_le_bytes());
        }
        let slot = u64::from(self.put % RING_ENTRIES) * ENTRY_BYTES;
        self.ram.write(RING + slot, &entry).expect("RAM");
        self.put += 1;
        self.gpu.ring(CHANNEL, self.put);
        self.gpu.work();
    }

    /// Fetches, as the controller, the commands that the tail doorbell announces.
    fn fetch(&mut self, launch: &mut Launch) {
        let Queues {
            entries, in_vram, ..
        } = self.queues;
        let [submissions, completions] = entries.map(u64::from);
        let tail = self.doorbell(TAIL);
        assert!(tail < submissions, "tail {tail}");
        self.queues.take_back(self.doorbell(HEAD));
        while self.queues.fetched % submissions != tail {
            let at = SUBMISSION + self.queues.fetched % submissions * 64;
            let mut entry = [0; 64];
            self.read_memory(in_vram[0], at, &mut entry);
            assert_eq!(entry, launch.expected(), "command {}", launch.fetched);
            launch.in_progress.push(launch.fetched);
            launch.fetched += 1;
            self.queues.fetched += 1;
        }
        let in_progress = launch.in_progress.len() as u64;
        let most = match launch.depth {
            0 => u64::MAX,
            depth => depth,
        };
        assert!(in_progress <= most.min(submissions - 1).min(completions - 1));
        let used = self.queues.posted - self.queues.freed;
        assert!(
            in_progress + used < completions,
            "no entry for a completion"
        );
    }

    fn has_free_completion(&self) -> bool {
        self.queues.posted - self.queues.freed + 1 < u64::from(self.queues.entries[1])
    }

    /// Completes some of the commands in progress, in the input's order. `action` is that of the
    /// first one.
    fn complete(&mut self, launch: &mut Launch, action: u8, input: &mut Input<'_>) {
        let together = 1 + usize::from(action >> 6);
        for number in 0..together.min(launch.in_progress.len()) {
            let choice = if number == 0 {
                Some(action)
            } else {
                input.u8()
            }
            .unwrap_or(0);
            let which = usize::from(choice & 31) % launch.in_progress.len();
            let cid = launch.in_progress.remove(which);
            let status = match choice & 32 {
                0 => 0,
                _ => input.u16().unwrap_or(0) & 0x7fff,
            };
            launch.statuses[cid] = Some(status);
            self.post(cid as u16, status);
        }
    }

    /// Completes a command that is already complete, or was never submitted.
    fn complete_wrongly(&mut self, launch: &Launch, input: &mut Input<'_>) {
        let choice = usize::from(input.u16().unwrap_or(u16::MAX));
        let complete: Vec<usize> = (0..launch.fetched)
            .filter(|cid| launch.statuses[*cid].is_some())
            .collect();
        let cid = match complete.get(choice & 31) {
            Some(cid) => *cid,
            None => choice.max(launch.fetched),
        };
        self.post(cid as u16, 0);
        self.gpu.work();
    }

    fn post(&mut self, cid: u16, status: u16) {
        let entries = u64::from(self.queues.entries[1]);
        let (slot, lap) = (self.queues.posted % entries, self.queues.posted / entries);
        let tag = u16::from(lap % 2 == 0);
        let mut entry = [0; 16];
        entry[12..14].copy_from_slice(&cid.to_le_bytes());
        entry[14..].copy_from_slice(&(status << 1 | tag).to_le_bytes());
        let at = COMPLETION + slot * 16;
        if self.queues.in_vram[1] {
            self.gpu.vram().write(at, &entry).expect("VRAM");
        } else {
            self.ram.write(at, &entry).expect("RAM");
        }
        self.queues.posted += 1;
    }

    /// Checks the end of a successful launch: outcomes, state, fence and doorbells.
    fn check_end(&mut self, launch: &Launch) {
        assert_eq!(self.gpu.head(CHANNEL), self.put, "the launch does not end");
        assert_eq!(self.gpu.status(CHANNEL), ON);
        assert_eq!(launch.fetched, launch.requests.len());
        let failed = launch.statuses.iter().position(|status| *status != Some(0));
        let result = failed.map_or(launch.requests.len() as u64, |index| {
            let status = launch.statuses[index].expect("all are complete");
            u64::from(status) << 32 | index as u64
        });
        assert_eq!(self.vram64(FENCE), u64::from(self.put));
        assert_eq!(self.vram64(FENCE + 8), result);
        for (index, status) in (0..).zip(&launch.statuses) {
            let status = status.expect("all are complete");
            let outcome = self.vram64(REQUESTS + index * REQUEST_BYTES + 24) >> 32;
            assert_eq!(outcome, 1 << 17 | u64::from(status), "request {index}");
        }
        if !launch.requests.is_empty() {
            let state = [0, 8, 24].map(|at| self.vram64(STATE + at));
            assert_eq!(state, [self.queues.fetched, self.queues.posted, 0]);
            self.queues.take_back(self.doorbell(HEAD));
            assert_eq!(self.queues.freed, self.queues.posted);
        }
    }

    fn expect_failure(&mut self, code: u32) {
        assert_eq!(self.gpu.status(CHANNEL), failed(code));
        assert_eq!(self.gpu.head(CHANNEL), self.put - 1);
    }

    /// Checks that the state of a failed launch names the first incomplete request.
    fn check_failed_state(&self, launch: &Launch) {
        let mut done = launch.statuses.iter().take_while(|status| status.is_some());
        let index = done.by_ref().count() as u64;
        assert_eq!(self.vram64(STATE + 24), index << 32 | 1);
    }

    /// Checks that an interrupted launch keeps its queues: another one is refused.
    fn expect_refusal(&mut self, launch: &Launch) {
        if launch.requests.is_empty() {
            return;
        }
        self.gpu.enable(CHANNEL, RAM_AT + RING, RING_ENTRIES);
        self.put = 0;
        self.submit(launch);
        self.expect_failure(BAD_COMMAND);
    }

    fn doorbell(&self, at: u64) -> u64 {
        let mut bytes = [0; 4];
        self.ram.read(at, &mut bytes).expect("RAM");
        u32::from_le_bytes(bytes).into()
    }

    fn vram64(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.gpu.vram().read(at, &mut bytes).expect("VRAM");
        u64::from_le_bytes(bytes)
    }

    fn read_memory(&self, in_vram: bool, at: u64, bytes: &mut [u8]) {
        if in_vram {
            self.gpu.vram().read(at, bytes).expect("VRAM");
        } else {
            self.ram.read(at, bytes).expect("RAM");
        }
    }
}

impl Queues {
    fn new(input: &mut Input<'_>) -> Self {
        let [submissions, completions, in_vram] = input.array().unwrap_or_default();
        Self {
            entries: [submissions, completions].map(|entries| 2 + u32::from(entries % 15)),
            in_vram: [in_vram & 1 != 0, in_vram & 2 != 0],
            fetched: 0,
            posted: 0,
            freed: 0,
        }
    }

    /// Takes the head doorbell, which must not free more than was posted.
    fn take_back(&mut self, head: u64) {
        let entries = u64::from(self.entries[1]);
        assert!(head < entries, "head {head}");
        let more = (head + entries - self.freed % entries) % entries;
        self.freed += more;
        assert!(self.freed <= self.posted, "more than was completed");
    }
}

impl Launch {
    fn new(input: &mut Input<'_>, count: usize, depth: u64) -> Option<Self> {
        let mut requests = Vec::new();
        for _ in 0..count {
            let mut request = [0; REQUEST_BYTES as usize];
            // The disk sees half of a request, and nothing of an earlier outcome may remain.
            let [opcode, slba, prp, blocks] = input.array()?;
            request[0] = slba;
            request[7] = slba;
            request[9] = prp;
            request[18] = !prp;
            request[24..26].copy_from_slice(&[blocks, prp]);
            request[26] = opcode;
            request[28..].fill(opcode);
            requests.push(request);
        }
        Some(Self {
            statuses: vec![None; count],
            requests,
            depth,
            fetched: 0,
            in_progress: Vec::new(),
        })
    }

    /// Returns the command of the next request.
    fn expected(&self) -> [u8; 64] {
        let request = self
            .requests
            .get(self.fetched)
            .expect("no more are submitted than there are");
        let mut entry = [0; 64];
        entry[0] = request[26];
        entry[2..4].copy_from_slice(&(self.fetched as u16).to_le_bytes());
        entry[4..8].copy_from_slice(&NSID.to_le_bytes());
        entry[24..40].copy_from_slice(&request[8..24]);
        entry[40..48].copy_from_slice(&request[..8]);
        entry[48..50].copy_from_slice(&request[24..26]);
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Seed;

    /// Adds a pair of queues with 8 and 6 entries. Bits of `in_vram` say which lies in VRAM.
    fn queues(in_vram: u8) -> Seed {
        Seed::default().bytes(&[6, 4, in_vram])
    }

    fn launch(seed: Seed, count: u8, depth: u8, missing: u8) -> Seed {
        let seed = seed.bytes(&[count, depth, missing]);
        (0..count).fold(seed, |seed, number| seed.bytes(&[2, number, 1, 7]))
    }

    /// Executes a seed. Returns the number of its launches, and the fixture after the last one.
    fn carry_out(seed: &[u8]) -> (usize, Fixture) {
        let mut fixture = Fixture::new();
        let mut input = Input::new(seed);
        fixture.start(&mut input);
        let mut launches = 0;
        while fixture.launch(&mut input).is_some() {
            launches += 1;
        }
        assert_eq!(input.u8(), None, "the seed is used up");
        (launches, fixture)
    }

    #[test]
    fn seed_of_launches_completes_all_requests() {
        for (in_vram, name) in [(0, "in-guest-memory"), (3, "in-vram")] {
            let seed = launch(queues(in_vram), 20, 0, 0).bytes(&[0; 20]);
            // Several at a time, the last one first, and some with a status.
            let seed = launch(seed, 9, 3, 0);
            let seed = seed.bytes(&[0x41, 1, 0x21, 0x80, 2, 2, 1, 0, 0, 0, 0]);
            let (launches, fixture) = carry_out(&seed.in_corpus("gpu_nvme_io", name));
            assert_eq!((launches, fixture.queues.posted), (2, 29));
        }
    }

    #[test]
    fn seed_of_failures_makes_the_queues_again() {
        let seed = launch(queues(0), 4, 0, 0).bytes(&[0, 244]).u16(0);
        let seed = launch(seed.bytes(&[6, 4, 0]), 4, 0, 0).bytes(&[0, 252]);
        let seed = launch(seed.bytes(&[6, 4, 0]), 2, 0, 1);
        let seed = launch(seed.bytes(&[6, 4, 1]), 2, 0, 0).bytes(&[0, 0]);
        let (launches, fixture) = carry_out(&seed.in_corpus("gpu_nvme_io", "failures"));
        assert_eq!((launches, fixture.queues.posted), (4, 2));
    }
}
