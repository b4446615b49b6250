//! The engine: one thread that takes commands from the channels in turn, carries them out and reports their outcomes.

use std::sync::Arc;

use peerbar_dma::{Origin, Purpose};
use peerbar_pci::Interrupts;
use zerocopy::IntoBytes;

use crate::command::{Command, Entry};
use crate::doorbells::{CHANNELS, Doorbells};
use crate::executor::{Executor, Failure};
use crate::faults::Fault;
use crate::gpu_memory::GpuAddress;
use crate::registers::{Request, Setup};
use crate::ring::Ring;
use crate::shared_registers::{SharedRegisters, Task};

/// How many commands one channel may have done before the next channel's turn.
const BURST: usize = 16;
/// The vector of faults.
const FAULT_VECTOR: u16 = 0;

/// The channels' side of the GPU.
pub(crate) struct Engine {
    shared: Arc<SharedRegisters>,
    doorbells: Arc<Doorbells>,
    interrupts: Arc<dyn Interrupts>,
    executor: Executor,
    /// The channels that are on and not in error.
    rings: [Option<Ring>; CHANNELS as usize],
}

impl Engine {
    pub(crate) fn new(
        shared: Arc<SharedRegisters>,
        doorbells: Arc<Doorbells>,
        interrupts: Arc<dyn Interrupts>,
        executor: Executor,
    ) -> Self {
        Self {
            shared,
            doorbells,
            interrupts,
            executor,
            rings: [None; CHANNELS as usize],
        }
    }

    /// Works until the daemon ends.
    pub(crate) fn run(mut self) {
        let mut busy = false;
        loop {
            match self.next_task(busy) {
                Task::Stop => return,
                Task::Registers(Request::Reset) => self.reset(),
                Task::Registers(Request::Release(channel)) => self.release(channel),
                Task::Registers(Request::Start(channel, setup)) => self.start(channel, &setup),
                Task::Doorbells => {}
            }
            busy = self.turn();
        }
    }

    /// Waits for the next task. Before it sleeps it announces that to the driver, and reads the doorbells once more.
    fn next_task(&self, busy: bool) -> Task {
        if busy {
            return self.shared.next(true);
        }
        self.doorbells.announce_sleep();
        let task = self.shared.next(self.is_rung());
        self.doorbells.announce_poll();
        task
    }

    /// Whether any channel's doorbell is ahead of its ring.
    fn is_rung(&self) -> bool {
        (0..).zip(&self.rings).any(|(channel, ring)| {
            let next = ring.map(|ring| ring.next(self.doorbells.value(channel)));
            next.is_some_and(|next| next != Ok(None))
        })
    }

    /// A reset of the device: every DMA has been refused since it began.
    fn reset(&mut self) {
        self.rings = [None; CHANNELS as usize];
        self.shared.with(|registers| {
            registers.was_reset();
            self.executor.memory.requester().resume();
        });
    }

    fn release(&mut self, channel: u8) {
        self.set_ring(channel, None);
        self.shared.with(|registers| registers.released(channel));
    }

    fn start(&mut self, channel: u8, setup: &Setup) {
        match Ring::new(setup, self.executor.memory.vram_bytes()) {
            Ok(ring) => self.set_ring(channel, Some(ring)),
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

    fn set_ring(&mut self, channel: u8, ring: Option<Ring>) {
        if let Some(place) = self.rings.get_mut(usize::from(channel)) {
            *place = ring;
        }
    }

    /// Gives every channel a turn; whether any has commands left.
    fn turn(&mut self) -> bool {
        for channel in 0..CHANNELS {
            self.serve(channel);
            if self.shared.urgent() {
                return true;
            }
        }
        self.is_rung()
    }

    /// Carries out a burst of one channel's commands.
    fn serve(&mut self, channel: u8) {
        for _ in 0..BURST {
            let Some(Some(mut ring)) = self.rings.get(usize::from(channel)).copied() else {
                return;
            };
            if self.shared.urgent() {
                return;
            }
            match self.next_command(channel, &ring) {
                Ok(None) | Err(Failure::Cancelled) => return,
                Ok(Some(interrupt)) => {
                    let head = ring.advance();
                    self.set_ring(channel, Some(ring));
                    self.complete(channel, &ring, head, interrupt);
                }
                Err(Failure::Fault(fault)) => return self.fail(channel, ring.generation, fault),
            }
        }
    }

    /// Carries out the next command, if there is one; whether it wants an interrupt.
    fn next_command(&mut self, channel: u8, ring: &Ring) -> Result<Option<bool>, Failure> {
        let at = |place: GpuAddress| {
            move |code| Fault {
                code,
                write: false,
                address: place.address(),
            }
        };
        let next = ring.next(self.doorbells.value(channel));
        let Some(place) = next.map_err(at(ring.start()))? else {
            return Ok(None);
        };
        let mut entry = Entry::empty();
        let memory = &mut self.executor.memory;
        memory.begin(Origin::command(channel.into(), ring.head()));
        memory.read(Purpose::Command, place, entry.as_mut_bytes())?;
        let command = entry.decode().map_err(at(place))?;
        self.executor.memory.note_begin(entry.opcode);
        self.execute(&command, channel, ring.generation)?;
        Ok(Some(command.interrupt))
    }

    fn execute(&mut self, command: &Command, channel: u8, generation: u64) -> Result<(), Failure> {
        let shared = &self.shared;
        let wanted = || shared.wants(channel, generation);
        let possible = match command.fence {
            Some((place, _)) => self.executor.memory.check(place, 16, true),
            None => Ok(()),
        };
        let result = possible
            .map_err(Failure::from)
            .and_then(|()| self.executor.run(&command.operation, &wanted));
        self.executor.memory.note_end(match result {
            Ok(_) => 0,
            Err(Failure::Fault(fault)) => fault.code as u16,
            Err(Failure::Cancelled) => u16::MAX,
        });
        let result = result?;
        if let Some((place, value)) = command.fence {
            let memory = &self.executor.memory;
            let write = |place, number: u64| {
                memory.write(Purpose::Completion, place, &number.to_le_bytes())
            };
            write(place.after(8), result)?;
            write(place, value)?;
        }
        Ok(())
    }

    fn complete(&self, channel: u8, ring: &Ring, head: u32, interrupt: bool) {
        self.shared.with(|registers| {
            if registers.advance(channel, ring.generation, head) && interrupt {
                self.interrupts.raise(vector(channel));
            }
        });
    }

    /// The channel takes nothing more until it is disabled.
    fn fail(&mut self, channel: u8, generation: u64, fault: Fault) {
        self.set_ring(channel, None);
        self.shared.with(|registers| {
            if registers.fail(channel, generation, fault) {
                self.interrupts.raise(vector(channel));
                self.interrupts.raise(FAULT_VECTOR);
            }
        });
    }
}

/// The vector of a channel.
fn vector(channel: u8) -> u16 {
    u16::from(channel) + 1
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use peerbar_dma::{MemoryFile, Requester};
    use peerbar_endpoint::Vectors;

    use super::*;
    use crate::gpu_memory::GpuMemory;
    use crate::registers::Registers;

    const VRAM: u64 = 1 << 20;

    /// An engine that has taken up channel 0, whose ring is at the start of VRAM.
    fn engine() -> Engine {
        let vram = Arc::new(MemoryFile::create("test", VRAM).unwrap());
        let doorbells = Arc::new(Doorbells::new(0x1_0000).unwrap());
        let registers = Registers::new((VRAM, VRAM), None, doorbells.clone());
        let shared = Arc::new(SharedRegisters::new(registers));
        let executor = Executor::new(GpuMemory::new(vram, Arc::new(Requester::new())));
        let vectors = Arc::new(Vectors::new(17));
        let mut engine = Engine::new(shared, doorbells, vectors, executor);
        engine.shared.with(|registers| {
            for (offset, value) in [(0x1008, 1u32), (0x100c, 2), (0x1010, 1)] {
                registers.write(offset, &value.to_le_bytes());
            }
        });
        let Task::Registers(Request::Start(0, setup)) = engine.next_task(false) else {
            panic!("no start")
        };
        engine.start(0, &setup);
        engine
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
    fn a_turn_ends_with_nothing_left_and_the_ring_advanced() {
        let mut engine = engine();
        engine.doorbells.write(0x8000, &2u32.to_le_bytes());
        assert!(engine.is_rung());
        assert!(!engine.turn());
        let mut head = [0; 4];
        engine
            .shared
            .with(|registers| registers.read(0x1018, &mut head));
        assert_eq!(u32::from_le_bytes(head), 2, "two empty commands");
    }
}
