//! The engine: one thread that gives the channels slices in turn, executes their commands and
//! reports the outcomes.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(feature = "stepped")]
use peerbar_dma::MemoryFile;
use peerbar_dma::{DoorbellEvent, Origin, Purpose};
use peerbar_endpoint::{SharedRegisters, Task};
use peerbar_fault::Action;
use peerbar_pci::Interrupts;
use zerocopy::IntoBytes;

use crate::command::{Command, Entry};
use crate::doorbells::{CHANNELS, Doorbells};
use crate::executor::{Executor, Progress};
use crate::faults::{Fault, FaultCode};
use crate::gpu_memory::GpuAddress;
use crate::registers::{EngineRequest, Registers, Setup};
use crate::ring::Ring;
use crate::word::check_time;

/// Time for which a channel has the engine before the next channel's turn. The step in progress is
/// completed.
const SLICE: Duration = Duration::from_millis(1);
/// Time for which commands wait before the engine sleeps between two polls of them.
const SPIN: Duration = Duration::from_micros(50);
/// The longest such sleep, and its share of the time waited so far: a wait takes at most an eighth
/// longer.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);
const SLEEP_PART: u32 = 8;
/// The vector of faults.
const FAULT_VECTOR: u16 = 0;
/// The status of a command that was cancelled, in the flight record.
const CANCELLED: u16 = u16::MAX;

/// The channels' side of the GPU.
pub(crate) struct Engine {
    shared: Arc<SharedRegisters<Registers>>,
    doorbells: Arc<Doorbells>,
    interrupts: Arc<dyn Interrupts>,
    executor: Executor,
    /// Time limit of the engine's work on one command.
    job_timeout: Duration,
    /// The channels that are on and not in error.
    channels: [Option<EngineChannel>; CHANNELS as usize],
    /// The channel that has the next slice.
    next: u8,
}

/// A channel that is on and not in error.
#[derive(Clone, Copy)]
struct EngineChannel {
    ring: Ring,
    /// The command at the ring's head, once it is fetched.
    job: Option<Job>,
    /// The last value read from its doorbell.
    doorbell: u32,
}

impl EngineChannel {
    /// A channel whose driver has not rung its doorbell.
    fn new(ring: Ring) -> Self {
        Self {
            ring,
            job: None,
            doorbell: 0,
        }
    }

    /// Returns `true` if its next step needs DMA: to execute its command, or to fetch one.
    fn uses_bus(&self) -> bool {
        match &self.job {
            Some(job) => job.command.uses_bus(),
            None => self.ring.start().is_bus(),
        }
    }
}

/// A command in progress.
#[derive(Clone, Copy)]
struct Job {
    command: Command,
    /// Address of its entry.
    entry: GpuAddress,
    progress: Progress,
    /// The time since which its steps have found no work, and the end of the last of them.
    waiting: Option<Waiting>,
    /// The time until which a rule holds it back, while it waits.
    held_until: Option<Instant>,
}

/// A command that waits for another device.
#[derive(Clone, Copy)]
struct Waiting {
    since: Instant,
    until: Instant,
}

impl Job {
    /// Returns `true` if a rule holds it back now. That time does not count as its work.
    fn is_held_back(&mut self, now: Instant) -> bool {
        let is_held = self.held_until.is_some_and(|until| now < until);
        if !is_held && self.held_until.take().is_some() {
            self.waiting = None;
        }
        is_held
    }

    /// Returns a fault of the command, at the address that the interface defines.
    fn fault(&self, fault: Fault) -> Fault {
        let address = match fault.code {
            FaultCode::BadCommand | FaultCode::TimeOut => self.entry.raw(),
            _ => fault.address,
        };
        Fault { address, ..fault }
    }
}

impl Engine {
    pub(crate) fn new(
        shared: Arc<SharedRegisters<Registers>>,
        doorbells: Arc<Doorbells>,
        interrupts: Arc<dyn Interrupts>,
        executor: Executor,
        job_timeout: Duration,
    ) -> Self {
        Self {
            shared,
            doorbells,
            interrupts,
            executor,
            job_timeout,
            channels: [None; CHANNELS as usize],
            next: 0,
        }
    }

    /// Returns the GPU's memory.
    #[cfg(feature = "stepped")]
    pub(crate) fn vram(&self) -> &Arc<MemoryFile> {
        self.executor.memory.vram()
    }

    /// Works until the daemon ends.
    pub(crate) fn run(mut self) {
        let mut busy = false;
        while let ControlFlow::Continue(is_busy) = self.take_up(self.next_task(busy)) {
            busy = is_busy;
        }
    }

    /// Works until there is no work left, or other devices have to act first.
    #[cfg(feature = "stepped")]
    pub(crate) fn work(&mut self) {
        loop {
            let task = self.shared.next(true, None);
            let is_last = task == Task::Doorbells;
            match self.take_up(task) {
                ControlFlow::Continue(is_busy) if is_busy && !self.waits_only() || !is_last => {}
                _ => return,
            }
        }
    }

    /// Executes a task, then gives the channels a turn. Returns `true` if there is work left.
    /// Breaks if the daemon ends.
    fn take_up(&mut self, task: Task<EngineRequest>) -> ControlFlow<(), bool> {
        match task {
            Task::Stop => return ControlFlow::Break(()),
            Task::Registers(EngineRequest::Reset) => self.reset(),
            Task::Registers(EngineRequest::Release(channel)) => self.release(channel),
            Task::Registers(EngineRequest::Start(channel, setup)) => self.start(channel, &setup),
            // The engine waits for no time.
            Task::Doorbells | Task::Time => {}
        }
        ControlFlow::Continue(self.turn())
    }

    /// Waits for the next task. Before it sleeps, it announces that to the driver, and reads the
    /// doorbells once more. While commands wait, it polls the doorbells, with short sleeps.
    fn next_task(&self, busy: bool) -> Task<EngineRequest> {
        if busy {
            if let Some(time) = self.sleep_of_waiting() {
                self.shared.sleep(time);
            }
            return self.shared.next(true, None);
        }
        self.doorbells.announce_sleep();
        let task = self.shared.next(self.has_work(), None);
        self.doorbells.announce_poll();
        task
    }

    /// Returns `true` if all current commands wait for other devices, or for bus mastering.
    fn waits_only(&self) -> bool {
        (0..).zip(&self.channels).all(|(number, channel)| {
            channel.is_none_or(|channel| match channel.job {
                _ if self.is_held(&channel) => true,
                Some(job) => job.waiting.is_some(),
                None => channel.ring.next(self.doorbells.value(number)) == Ok(None),
            })
        })
    }

    /// Returns `true` if a channel waits for bus mastering: without it the GPU issues no request
    /// (PCIe Base 6.0, 7.5.1.1.3). The engine is kicked once it is on.
    fn is_held(&self, channel: &EngineChannel) -> bool {
        let requester = self.executor.memory.requester();
        channel.uses_bus() && !requester.bus_mastering().is_on()
    }

    /// Returns the time for which the engine may sleep, if all current commands wait.
    fn sleep_of_waiting(&self) -> Option<Duration> {
        if !self.waits_only() {
            return None;
        }
        let jobs = self.channels.iter().flatten().filter_map(|it| it.job);
        let waited = jobs.filter_map(|job| Some(job.waiting?.since.elapsed()));
        let time = waited.min().filter(|time| *time > SPIN)? / SLEEP_PART;
        Some(time.min(LONGEST_SLEEP))
    }

    /// Returns `true` if any channel has a command in progress, or a doorbell ahead of its ring,
    /// and does not wait for bus mastering.
    fn has_work(&self) -> bool {
        (0..).zip(&self.channels).any(|(number, channel)| {
            channel.is_some_and(|channel| {
                let EngineChannel { ring, job, .. } = &channel;
                let is_due = job.is_some() || ring.next(self.doorbells.value(number)) != Ok(None);
                is_due && !self.is_held(&channel)
            })
        })
    }

    /// Resets the device: every DMA has been refused since the reset began.
    fn reset(&mut self) {
        (0..CHANNELS).for_each(|channel| self.forget(channel));
        self.shared.complete(|registers| {
            registers.was_reset();
            self.executor.memory.requester().resume();
        });
    }

    fn release(&mut self, channel: u8) {
        self.forget(channel);
        self.shared.with(|registers| registers.released(channel));
    }

    /// Forgets a channel, and cancels its command in progress.
    fn forget(&mut self, number: u8) {
        if let Some(EngineChannel {
            ring, job: Some(_), ..
        }) = self.take(number)
        {
            let memory = &mut self.executor.memory;
            memory.begin(Origin::command(number.into(), ring.head()));
            memory.note_end(CANCELLED);
        }
    }

    fn start(&mut self, channel: u8, setup: &Setup) {
        match Ring::new(setup, self.executor.memory.vram_bytes()) {
            Ok(ring) => self.put_back(channel, EngineChannel::new(ring)),
            Err(code) => {
                let fault = Fault {
                    code,
                    write: false,
                    address: setup.address,
                };
                self.fail(channel, setup.generation, fault);
            }
        }
    }

    fn take(&mut self, number: u8) -> Option<EngineChannel> {
        self.channels.get_mut(usize::from(number))?.take()
    }

    fn put_back(&mut self, number: u8, channel: EngineChannel) {
        if let Some(slot) = self.channels.get_mut(usize::from(number)) {
            *slot = Some(channel);
        }
    }

    /// Gives every channel a slice, unless the registers have a task. Returns `true` if there is
    /// work left. The next turn starts after the last channel that had a slice, so that no number
    /// of tasks can keep a channel from its slice.
    fn turn(&mut self) -> bool {
        for _ in 0..CHANNELS {
            if self.shared.urgent() {
                return true;
            }
            let number = self.next;
            self.next = (number + 1) % CHANNELS;
            if let Some(channel) = self.take(number) {
                self.serve(number, channel);
            }
        }
        self.has_work()
    }

    fn serve(&mut self, number: u8, mut channel: EngineChannel) {
        match self.slice(number, &mut channel) {
            Ok(()) => self.put_back(number, channel),
            Err(fault) => self.fail(number, channel.ring.generation, fault),
        }
    }

    /// Executes commands of a channel, step by step, until its slice is over.
    fn slice(&mut self, number: u8, channel: &mut EngineChannel) -> Result<(), Fault> {
        let mut step_start = Instant::now();
        let end = step_start + SLICE;
        self.executor.begin_slice(end);
        loop {
            let origin = Origin::command(number.into(), channel.ring.head());
            self.executor.memory.begin(origin);
            if channel.job.is_none() && !self.is_held(channel) {
                channel.job = self.fetch(number, channel)?;
            }
            if self.is_held(channel) {
                return Ok(());
            }
            let Some(job) = &mut channel.job else {
                return Ok(());
            };
            if job.is_held_back(step_start) {
                return Ok(());
            }
            let is_complete = self.step(job, step_start)?;
            step_start = Instant::now();
            let waits = job.waiting.is_some();
            if is_complete {
                self.complete(number, channel);
            }
            if waits || step_start >= end || self.shared.urgent() {
                return Ok(());
            }
        }
    }

    /// Fetches the next command, if there is one.
    fn fetch(&mut self, number: u8, channel: &mut EngineChannel) -> Result<Option<Job>, Fault> {
        let at = |entry_address: GpuAddress| {
            move |code| Fault {
                code,
                write: false,
                address: entry_address.raw(),
            }
        };
        let doorbell = self.read_doorbell(number, channel);
        if self.shared.urgent() {
            // The channel may have been disabled and enabled since, and the doorbell may belong to
            // its next ring.
            return Ok(None);
        }
        let ring = &channel.ring;
        let Some(entry_address) = ring.next(doorbell).map_err(at(ring.start()))? else {
            return Ok(None);
        };
        let mut entry = Entry::empty();
        let memory = &self.executor.memory;
        let bus = memory.requester().bus_mastering();
        let read = memory.read(Purpose::Command, entry_address, entry.as_mut_bytes());
        if read.is_err() && (!bus.is_on() || bus.has_changed(memory.requester())) {
            return Ok(None);
        }
        read?;
        let injected = memory.injected(entry.opcode, number);
        let command = match injected {
            Some(Action::Fail) => Err(FaultCode::Injected),
            Some(Action::Drop) => Ok(Command::NOTHING),
            _ => entry.decode(),
        };
        let command = command.map_err(at(entry_address))?;
        memory.note_begin(entry.opcode);
        let delay = match injected {
            Some(Action::Delay(by)) => Some(by),
            _ => None,
        };
        let now = Instant::now();
        Ok(Some(Job {
            command,
            entry: entry_address,
            progress: Progress::default(),
            waiting: delay.map(|_| Waiting {
                since: now,
                until: now,
            }),
            held_until: delay.map(|by| now + by),
        }))
    }

    /// Returns the value of a channel's doorbell, and records it if it is new.
    fn read_doorbell(&self, number: u8, channel: &mut EngineChannel) -> u32 {
        let tail = self.doorbells.value(number);
        let before = std::mem::replace(&mut channel.doorbell, tail);
        if tail != before {
            self.executor.memory.note_doorbell(|| DoorbellEvent {
                queue: number.into(),
                tail,
                added: tail.wrapping_sub(before),
                waiting: tail.wrapping_sub(channel.ring.head()),
                vector: Some(vector(number)),
            });
        }
        tail
    }

    /// Executes a step of a command, which has begun at `start`. Returns `true` if it was the last
    /// one.
    fn step(&mut self, job: &mut Job, start: Instant) -> Result<bool, Fault> {
        if let Some(waiting) = job.waiting {
            // The time for which it waited counts as its own, even if the engine served others.
            job.progress.worked += start.saturating_duration_since(waiting.until);
        }
        job.progress.is_waiting = false;
        let outcome = self.next_step(job);
        let end = Instant::now();
        job.progress.worked += end.saturating_duration_since(start);
        let since = job.waiting.map_or(start, |waiting| waiting.since);
        let is_waiting = job.progress.is_waiting;
        job.waiting = is_waiting.then_some(Waiting { since, until: end });
        let outcome = match outcome {
            Ok(false) => check_time(Some(self.job_timeout), job.progress.worked).map(|()| false),
            outcome => outcome,
        };
        let outcome = outcome.map_err(|fault| job.fault(fault));
        match outcome {
            Ok(false) => {}
            Ok(true) => self.executor.memory.note_end(0),
            Err(fault) => {
                self.executor.fail(&job.command.operation, &job.progress);
                self.executor.memory.note_end(fault.code as u16);
            }
        }
        outcome
    }

    /// Executes a step of a command, and writes its fence after the last one.
    fn next_step(&mut self, job: &mut Job) -> Result<bool, Fault> {
        if let Some((fence_address, _)) = job.command.fence {
            self.executor.memory.check(fence_address, 16, true)?;
        }
        let operation = &job.command.operation;
        let Some(result) = self.executor.step(operation, &mut job.progress)? else {
            return Ok(false);
        };
        if let Some((fence_address, value)) = job.command.fence {
            let memory = &self.executor.memory;
            let write = |address, number: u64| {
                memory.write(Purpose::Completion, address, &number.to_le_bytes())
            };
            write(fence_address.after(8), result)?;
            write(fence_address, value)?;
        }
        Ok(true)
    }

    /// Completes the command in progress.
    fn complete(&self, number: u8, channel: &mut EngineChannel) {
        let head = channel.ring.advance();
        let job = channel.job.take();
        let interrupt = job.is_some_and(|job| job.command.interrupt);
        self.shared.with(|registers| {
            if registers.advance(number, channel.ring.generation, head) && interrupt {
                self.interrupts.raise(vector(number));
            }
        });
    }

    /// Fails the channel: it takes no more commands until it is disabled.
    fn fail(&self, channel: u8, generation: u64, fault: Fault) {
        self.shared.with(|registers| {
            if registers.fail(channel, generation, fault) {
                self.interrupts.raise(vector(channel));
                self.interrupts.raise(FAULT_VECTOR);
            }
        });
    }
}

/// Returns the vector of a channel.
fn vector(channel: u8) -> u16 {
    u16::from(channel) + 1
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use peerbar_dma::{MemoryFile, Requester};
    use peerbar_endpoint::Vectors;
    use peerbar_fault::Kind;
    use peerbar_flight::{Event, FlightFile, Level, Recorder};

    use super::*;
    use crate::gpu_memory::GpuMemory;
    use crate::registers::Registers;

    const VRAM: u64 = 128 << 20;

    /// Returns an engine that has taken up channel 0, whose ring is at the start of VRAM.
    fn engine() -> Engine {
        engine_with(&Arc::new(MemoryFile::create("test", VRAM).unwrap()), 1)
    }

    /// Returns an engine with this many channels, with their rings of two entries one after the
    /// other in VRAM.
    fn engine_with(vram: &Arc<MemoryFile>, channels: u8) -> Engine {
        engine_of(Arc::new(Requester::new()), vram, channels)
    }

    fn engine_of(requester: Arc<Requester>, vram: &Arc<MemoryFile>, channels: u8) -> Engine {
        let doorbells = Arc::new(Doorbells::new(0x1_0000).unwrap());
        let registers = Registers::new((VRAM, VRAM), None, doorbells.clone());
        let shared = Arc::new(SharedRegisters::new(registers));
        let executor = Executor::new(GpuMemory::new(vram.clone(), requester));
        let vectors = Arc::new(Vectors::new(17).unwrap());
        let timeout = Duration::from_secs(3600);
        let mut engine = Engine::new(shared, doorbells, vectors, executor, timeout);
        for channel in 0..u32::from(channels) {
            let at = 0x1000 + 0x100 * u64::from(channel);
            engine.shared.with(|registers| {
                for (offset, value) in [(0, channel * 256), (8, 1), (12, 2), (16, 1)] {
                    registers.write(at + offset, &value.to_le_bytes());
                }
            });
            let Task::Registers(EngineRequest::Start(number, setup)) = engine.next_task(false)
            else {
                panic!("no start")
            };
            engine.start(number, &setup);
        }
        engine
    }

    fn head(engine: &Engine, channel: u64) -> u32 {
        let mut head = [0; 4];
        let offset = 0x1018 + 0x100 * channel;
        engine
            .shared
            .with(|registers| registers.read(offset, &mut head));
        u32::from_le_bytes(head)
    }

    #[test]
    fn a_ring_that_came_before_the_sleep_is_found_without_a_kick() {
        let engine = engine();
        engine.doorbells.write(0x8000, &1u32.to_le_bytes());
        std::thread::scope(|scope| {
            let task = scope.spawn(|| engine.next_task(false));
            let start = Instant::now();
            while !task.is_finished() && start.elapsed() < Duration::from_secs(20) {
                std::thread::yield_now();
            }
            engine.shared.stop();
            assert_eq!(task.join().unwrap(), Task::Doorbells);
        });
    }

    #[test]
    fn doorbell_is_not_followed_while_the_registers_have_a_task() {
        let mut engine = engine();
        engine.doorbells.write(0x8000, &1u32.to_le_bytes());
        let mut channel = engine.take(0).unwrap();
        let mut fetches = |engine: &mut Engine| engine.fetch(0, &mut channel).unwrap().is_some();
        engine.shared.interrupt();
        assert!(!fetches(&mut engine), "it may be one of the next ring");
        assert_eq!(engine.next_task(true), Task::Doorbells);
        assert!(fetches(&mut engine));
    }

    #[test]
    fn doorbell_word_is_1_during_sleep_and_0_during_polls() {
        let engine = engine();
        let word = || {
            let mut word = [0; 4];
            engine.doorbells.read(0x8004, &mut word);
            u32::from_le_bytes(word)
        };
        assert_eq!(word(), 0);
        std::thread::scope(|scope| {
            let task = scope.spawn(|| engine.next_task(false));
            while word() == 0 {
                std::thread::yield_now();
            }
            engine.shared.kick();
            assert_eq!(task.join().unwrap(), Task::Doorbells);
        });
        assert_eq!(word(), 0);
    }

    #[test]
    fn new_doorbell_is_recorded_before_the_commands_it_announces() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu0.flight");
        let requester = Arc::new(Requester::new());
        requester
            .ledger()
            .record_in(Recorder::create(&path, "gpu0", Level::All).unwrap());
        let vram = Arc::new(MemoryFile::create("test", VRAM).unwrap());
        let mut engine = engine_of(requester, &vram, 1);
        for tail in [2u32, 3] {
            engine.doorbells.write(0x8000, &tail.to_le_bytes());
            // On a busy machine a slice may end after one command.
            while engine.turn() {}
        }
        let flight = FlightFile::open(&path).unwrap().read().unwrap();
        let steps = flight.records.iter().map(|record| record.event);
        let steps: Vec<_> = steps
            .filter(|event| matches!(event, Event::Doorbell(_) | Event::Begin { .. }))
            .collect();
        let begin = |command: u32| Event::Begin {
            origin: Origin::command(0, command),
            operation: 0.into(),
        };
        let doorbell = |tail, added| {
            Event::Doorbell(DoorbellEvent {
                queue: 0,
                tail,
                added,
                waiting: added,
                vector: Some(1),
            })
        };
        let expected = [doorbell(2, 2), begin(0), begin(1), doorbell(3, 1), begin(2)];
        assert_eq!(steps, expected);
    }

    #[test]
    fn turns_end_with_nothing_left_and_the_ring_advanced() {
        let mut engine = engine();
        engine.doorbells.write(0x8000, &2u32.to_le_bytes());
        assert!(engine.has_work());
        while engine.turn() {}
        assert_eq!(head(&engine, 0), 2, "two empty commands");
    }

    #[test]
    fn a_large_copy_has_one_slice_in_a_turn() {
        const LENGTH: u64 = 32 << 20;
        let vram = Arc::new(MemoryFile::create("test", VRAM).unwrap());
        let mut engine = engine_with(&vram, 2);
        let mut copy = Entry::empty();
        copy.opcode = 1;
        copy.spaces = 0b11.into();
        copy.operands[0] = (1 << 20).into();
        copy.operands[1] = (64 << 20).into();
        copy.operands[2] = LENGTH.into();
        vram.write(0, copy.as_bytes()).unwrap();
        let last = (1 << 20) + LENGTH - 1;
        vram.write(last, &[7]).unwrap();
        for channel in [0x8000, 0x8040] {
            engine.doorbells.write(channel, &1u32.to_le_bytes());
        }
        assert!(engine.turn());
        assert_eq!((head(&engine, 0), head(&engine, 1)), (0, 1));
        while engine.turn() {}
        assert_eq!(head(&engine, 0), 1);
        let mut copied = [0];
        let last = (64 << 20) + LENGTH - 1;
        vram.read(last, &mut copied).unwrap();
        assert_eq!(copied, [7]);
    }

    #[test]
    fn a_turn_begins_where_the_last_one_was_left() {
        let vram = Arc::new(MemoryFile::create("test", VRAM).unwrap());
        let mut engine = engine_with(&vram, 3);
        for channel in 0..3 {
            let mut fill = Entry::empty();
            fill.opcode = 2;
            fill.spaces = 1.into();
            fill.operands[0] = 0x1000.into();
            fill.operands[1] = 1.into();
            fill.operands[2] = (channel + 1).into();
            vram.write(channel * 256, fill.as_bytes()).unwrap();
            let doorbell = 0x8000 + 0x40 * channel;
            engine.doorbells.write(doorbell, &1u32.to_le_bytes());
        }
        engine.next = 1;
        engine.shared.interrupt();
        assert!(engine.turn());
        assert_eq!(engine.next, 1, "the registers' tasks come first");
        assert_eq!(engine.next_task(true), Task::Doorbells);
        assert!(!engine.turn());
        let mut filled = [0];
        vram.read(0x1000, &mut filled).unwrap();
        assert_eq!(filled, [1], "channel 0 is the last of this turn");
    }

    /// Returns an engine with two channels, a rule, and in each ring a command that fills 8 bytes
    /// at 1000h with the channel's number plus one, with a fence at 2000h.
    fn engine_with_rule(rule: &str) -> (Engine, Arc<MemoryFile>) {
        let vram = Arc::new(MemoryFile::create("test", VRAM).unwrap());
        let requester = Arc::new(Requester::new());
        requester.faults().serve(&Kind::OF_GPUS);
        requester.add_fault(rule.parse().unwrap()).unwrap();
        let engine = engine_of(requester, &vram, 2);
        for channel in 0..2 {
            let mut fill = Entry::empty();
            fill.opcode = 2;
            fill.flags = 0b101;
            fill.spaces = 1.into();
            fill.fence = (0x2000 + 16 * channel).into();
            fill.fence_value = 7.into();
            fill.operands[0] = (0x1000 + 8 * channel).into();
            fill.operands[1] = 8.into();
            fill.operands[2] = (channel + 1).into();
            vram.write(channel * 256, fill.as_bytes()).unwrap();
            let doorbell = 0x8000 + 0x40 * channel;
            engine.doorbells.write(doorbell, &1u32.to_le_bytes());
        }
        (engine, vram)
    }

    /// Returns the bytes that both channels have filled, and their fences.
    fn outcome(vram: &MemoryFile) -> ([u8; 2], [u8; 2]) {
        let byte = |at| {
            let mut byte = [0];
            vram.read(at, &mut byte).unwrap();
            byte[0]
        };
        ([byte(0x1000), byte(0x1008)], [byte(0x2000), byte(0x2010)])
    }

    #[test]
    fn injected_failure_stops_the_channel_and_no_other() {
        let (mut engine, vram) = engine_with_rule("fail gpu-command fill channel=0");
        while engine.turn() {}
        assert_eq!(outcome(&vram), ([0, 2], [0, 7]));
        let mut status = [0; 4];
        engine
            .shared
            .with(|registers| registers.read(0x1014, &mut status));
        let injected = FaultCode::Injected as u8;
        assert_eq!(status, [2, injected, 0, 0]);
    }

    #[test]
    fn dropped_command_is_taken_and_leaves_nothing() {
        let (mut engine, vram) = engine_with_rule("drop gpu-command channel=1");
        while engine.turn() {}
        assert_eq!(outcome(&vram), ([1, 0], [7, 0]));
        assert_eq!((head(&engine, 0), head(&engine, 1)), (1, 1));
    }

    #[test]
    fn delayed_command_is_late_and_holds_up_no_channel() {
        let start = Instant::now();
        let (mut engine, vram) = engine_with_rule("delay gpu-command channel=0 by=20ms");
        assert!(engine.turn(), "there is work left");
        assert_eq!(outcome(&vram), ([0, 2], [0, 7]));
        assert!(engine.waits_only());
        while engine.turn() {
            assert_eq!(engine.next_task(true), Task::Doorbells);
        }
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert_eq!(outcome(&vram), ([1, 2], [7, 7]));
    }
}
