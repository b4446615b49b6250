//! The execution of commands: copy, fill, compare, checksum, step by step through bounded buffers.

use peerbar_dma::Purpose;

use crate::command::Operation;
use crate::faults::Fault;
use crate::gpu_memory::{GpuAddress, GpuMemory};

/// Bytes of a step; between two steps a command can be cancelled.
pub(crate) const STEP: usize = 1 << 20;

/// Why a command has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It cannot be done.
    Fault(Fault),
    /// Its channel was stopped.
    Cancelled,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Carries out commands, with two buffers of a step each.
pub(crate) struct Executor {
    pub(crate) memory: GpuMemory,
    pub(crate) first: Vec<u8>,
    pub(crate) second: Vec<u8>,
}

impl Executor {
    pub(crate) fn new(memory: GpuMemory) -> Self {
        Self {
            memory,
            first: vec![0; STEP],
            second: vec![0; STEP],
        }
    }

    /// Carries a command out; its result. `wanted` is checked between any two steps.
    pub(crate) fn run(
        &mut self,
        operation: &Operation,
        wanted: &dyn Fn() -> bool,
    ) -> Result<u64, Failure> {
        match *operation {
            Operation::Nop => Ok(0),
            Operation::Copy {
                source,
                destination,
                length,
            } => self.copy(source, destination, length, wanted),
            Operation::Fill {
                destination,
                length,
                pattern,
            } => self.fill(destination, length, pattern, wanted),
            Operation::Compare {
                first,
                second,
                length,
            } => self.compare(first, second, length, wanted),
            Operation::Crc32c { source, length } => self.crc32c(source, length, wanted),
            Operation::Launch(ref launch) => self.launch(launch, wanted),
        }
    }

    fn copy(
        &mut self,
        source: GpuAddress,
        destination: GpuAddress,
        length: u64,
        wanted: &dyn Fn() -> bool,
    ) -> Result<u64, Failure> {
        self.memory.check(source, length, false)?;
        self.memory.check(destination, length, true)?;
        for step in steps(length, 1) {
            check_wanted(wanted)?;
            let data = step.of(&mut self.first);
            self.memory
                .read(Purpose::Payload, source.after(step.start), data)?;
            self.memory
                .write(Purpose::Payload, destination.after(step.start), data)?;
        }
        Ok(0)
    }

    fn fill(
        &mut self,
        destination: GpuAddress,
        length: u64,
        pattern: [u8; 8],
        wanted: &dyn Fn() -> bool,
    ) -> Result<u64, Failure> {
        self.memory.check(destination, length, true)?;
        if let (GpuAddress::Vram(offset), [0, 0, 0, 0, 0, 0, 0, 0]) = (destination, pattern) {
            return self.clear(offset, length, wanted);
        }
        for word in self.first.as_chunks_mut().0 {
            *word = pattern;
        }
        for step in steps(length, 1) {
            check_wanted(wanted)?;
            let data = step.of(&mut self.first);
            self.memory
                .write(Purpose::Payload, destination.after(step.start), data)?;
        }
        Ok(0)
    }

    /// Zeros in VRAM, which then takes no memory of the host.
    fn clear(&self, offset: u64, length: u64, wanted: &dyn Fn() -> bool) -> Result<u64, Failure> {
        for step in steps(length, 1) {
            check_wanted(wanted)?;
            self.memory
                .zero(offset.saturating_add(step.start), step.len as u64)?;
        }
        Ok(0)
    }

    fn compare(
        &mut self,
        first: GpuAddress,
        second: GpuAddress,
        length: u64,
        wanted: &dyn Fn() -> bool,
    ) -> Result<u64, Failure> {
        self.memory.check(first, length, false)?;
        self.memory.check(second, length, false)?;
        for step in steps(length, 1) {
            check_wanted(wanted)?;
            let (one, other) = (step.of(&mut self.first), step.of(&mut self.second));
            self.memory
                .read(Purpose::Payload, first.after(step.start), one)?;
            self.memory
                .read(Purpose::Payload, second.after(step.start), other)?;
            let differs = one.iter().zip(&*other).position(|(a, b)| a != b);
            if let Some(at) = differs {
                return Ok(step.start + at as u64);
            }
        }
        Ok(length)
    }

    fn crc32c(
        &mut self,
        source: GpuAddress,
        length: u64,
        wanted: &dyn Fn() -> bool,
    ) -> Result<u64, Failure> {
        self.memory.check(source, length, false)?;
        let mut sum = 0;
        for step in steps(length, 1) {
            check_wanted(wanted)?;
            let data = step.of(&mut self.first);
            self.memory
                .read(Purpose::Payload, source.after(step.start), data)?;
            sum = crc32c::crc32c_append(sum, data);
        }
        Ok(sum.into())
    }
}

/// One step of a command: bytes of its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// How far into each operand it starts.
    pub(crate) start: u64,
    /// How many bytes of each.
    pub(crate) len: usize,
}

impl Step {
    /// As much of a buffer as the step needs.
    pub(crate) fn of(self, buffer: &mut [u8]) -> &mut [u8] {
        let len = self.len.min(buffer.len());
        buffer.split_at_mut(len).0
    }
}

/// The steps for `count` elements of `element_bytes` bytes each, for which `GpuMemory::check` has succeeded.
pub(crate) fn steps(count: u64, element_bytes: u64) -> impl Iterator<Item = Step> {
    let length = count.saturating_mul(element_bytes);
    (0..length).step_by(STEP).map(move |start| Step {
        start,
        len: usize::try_from(length - start).map_or(STEP, |left| left.min(STEP)),
    })
}

/// Fails once the command is no longer wanted.
pub(crate) fn check_wanted(wanted: &dyn Fn() -> bool) -> Result<(), Failure> {
    if wanted() {
        Ok(())
    } else {
        Err(Failure::Cancelled)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use peerbar_dma::{MemoryFile, Requester};

    use super::*;
    use crate::faults::FaultCode;

    const MIB: u64 = 1 << 20;
    const VRAM: u64 = 4 * MIB;
    const RAM_AT: u64 = 0x10_0000;

    /// VRAM of 4 MiB, and guest RAM of 4 MiB at `RAM_AT`.
    fn executor() -> Executor {
        let requester = Requester::new();
        requester.set_bus_master(true);
        let ram = MemoryFile::create("ram", VRAM).unwrap();
        let fd = ram.file().try_clone().unwrap().into();
        requester
            .map(RAM_AT, VRAM, (true, true), Some((fd, 0)))
            .unwrap();
        let vram = Arc::new(MemoryFile::create("vram", VRAM).unwrap());
        Executor::new(GpuMemory::new(vram, Arc::new(requester)))
    }

    fn run(executor: &mut Executor, operation: Operation) -> Result<u64, Failure> {
        executor.run(&operation, &|| true)
    }

    fn put(executor: &Executor, place: GpuAddress, data: &[u8]) {
        executor
            .memory
            .write(Purpose::Payload, place, data)
            .unwrap();
    }

    fn get(executor: &Executor, place: GpuAddress, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        executor
            .memory
            .read(Purpose::Payload, place, &mut data)
            .unwrap();
        data
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 % 251).to_le_bytes()[0]).collect()
    }

    #[test]
    fn a_copy_goes_between_any_two_spaces_at_any_alignment() {
        let mut executor = executor();
        let data = pattern(STEP + 4097);
        let places = [
            GpuAddress::Vram(3),
            GpuAddress::Vram(2 * MIB + 1),
            GpuAddress::Bus(RAM_AT + 7),
            GpuAddress::Bus(RAM_AT + 2 * MIB + 5),
        ];
        put(&executor, places[0], &data);
        for (source, destination) in [(0, 1), (1, 2), (2, 3), (3, 0)] {
            let operation = Operation::Copy {
                source: places[source],
                destination: places[destination],
                length: data.len() as u64,
            };
            assert_eq!(run(&mut executor, operation), Ok(0));
            let copied = get(&executor, places[destination], data.len());
            assert!(copied == data, "{source} to {destination}");
        }
    }

    #[test]
    fn a_fill_repeats_its_pattern_from_the_destination_on() {
        let mut executor = executor();
        let pattern = [1, 2, 3, 4, 5, 6, 7, 8];
        let length = STEP + 13;
        let operation = Operation::Fill {
            destination: GpuAddress::Vram(5),
            length: length as u64,
            pattern,
        };
        assert_eq!(run(&mut executor, operation), Ok(0));
        let filled = get(&executor, GpuAddress::Vram(0), length + 10);
        assert_eq!(filled[..5], [0; 5]);
        assert_eq!(filled[length + 5..], [0; 5]);
        let right = |(i, byte): (usize, &u8)| *byte == pattern[i % 8];
        assert!(filled[5..length + 5].iter().enumerate().all(right));
    }

    #[test]
    fn vram_that_is_filled_with_zeros_takes_no_memory_of_the_host() {
        use std::os::unix::fs::MetadataExt;

        let vram = Arc::new(MemoryFile::create("vram", VRAM).unwrap());
        let memory = GpuMemory::new(Arc::clone(&vram), Arc::new(Requester::new()));
        let mut executor = Executor::new(memory);
        let fill = |length, byte| Operation::Fill {
            destination: GpuAddress::Vram(0),
            length,
            pattern: [byte; 8],
        };
        let taken = || vram.file().metadata().unwrap().blocks() * 512;
        assert_eq!(run(&mut executor, fill(VRAM, 0xff)), Ok(0));
        assert_eq!(taken(), VRAM);
        assert_eq!(run(&mut executor, fill(3 * MIB, 0)), Ok(0));
        assert_eq!(taken(), MIB);
        let (cleared, kept) = (3 * STEP, STEP);
        assert_eq!(
            get(&executor, GpuAddress::Vram(0), cleared),
            vec![0; cleared]
        );
        assert_eq!(
            get(&executor, GpuAddress::Vram(3 * MIB), kept),
            vec![0xff; kept]
        );
        let unwanted = executor.run(&fill(VRAM, 0), &|| false);
        assert_eq!(unwanted, Err(Failure::Cancelled));
    }

    #[test]
    fn a_comparison_finds_the_first_difference() {
        let mut executor = executor();
        let data = pattern(STEP + 100);
        put(&executor, GpuAddress::Vram(0), &data);
        put(&executor, GpuAddress::Bus(RAM_AT), &data);
        let compare = Operation::Compare {
            first: GpuAddress::Vram(0),
            second: GpuAddress::Bus(RAM_AT),
            length: data.len() as u64,
        };
        assert_eq!(run(&mut executor, compare), Ok(data.len() as u64));
        for at in [STEP as u64 + 50, STEP as u64, 0] {
            put(&executor, GpuAddress::Bus(RAM_AT + at), &[0xff]);
            assert_eq!(run(&mut executor, compare), Ok(at));
        }
    }

    #[test]
    fn the_checksum_is_that_of_iscsi() {
        let mut executor = executor();
        put(&executor, GpuAddress::Vram(0), b"123456789");
        let crc = |place, length| Operation::Crc32c {
            source: place,
            length,
        };
        // The check value of CRC-32/ISCSI, and RFC 3720, B.4: 32 bytes of zeroes.
        assert_eq!(
            run(&mut executor, crc(GpuAddress::Vram(0), 9)),
            Ok(0xe306_9283)
        );
        assert_eq!(
            run(&mut executor, crc(GpuAddress::Vram(64), 32)),
            Ok(0x8a91_36aa)
        );
        assert_eq!(run(&mut executor, crc(GpuAddress::Vram(64), 0)), Ok(0));
        let data = pattern(STEP + 77);
        put(&executor, GpuAddress::Bus(RAM_AT), &data);
        let sum = run(
            &mut executor,
            crc(GpuAddress::Bus(RAM_AT), data.len() as u64),
        );
        assert_eq!(sum, Ok(crc32c::crc32c(&data).into()));
    }

    #[test]
    fn unreachable_operand_is_a_fault_without_effect() {
        let mut executor = executor();
        put(&executor, GpuAddress::Vram(0), &[1; 64]);
        let copy = |source, destination, length| Operation::Copy {
            source,
            destination,
            length,
        };
        for (operation, code, address, write) in [
            (
                copy(GpuAddress::Vram(0), GpuAddress::Vram(VRAM - 8), 9),
                FaultCode::VramRange,
                VRAM - 8,
                true,
            ),
            (
                copy(GpuAddress::Vram(VRAM), GpuAddress::Vram(0), 1),
                FaultCode::VramRange,
                VRAM,
                false,
            ),
            (
                copy(GpuAddress::Bus(u64::MAX), GpuAddress::Vram(0), 2),
                FaultCode::Dma,
                u64::MAX,
                false,
            ),
            (
                copy(GpuAddress::Vram(0), GpuAddress::Bus(0x5000), 16),
                FaultCode::Dma,
                0x5000,
                true,
            ),
        ] {
            let fault = Fault {
                code,
                write,
                address,
            };
            assert_eq!(run(&mut executor, operation), Err(Failure::Fault(fault)));
        }
        assert_eq!(get(&executor, GpuAddress::Vram(VRAM - 8), 8), [0; 8]);
    }

    #[test]
    fn unwanted_command_is_cancelled_between_two_steps() {
        let mut executor = executor();
        let looks = Cell::new(0);
        let wanted = || {
            looks.set(looks.get() + 1);
            looks.get() <= 2
        };
        let operation = Operation::Fill {
            destination: GpuAddress::Vram(0),
            length: 4 * MIB,
            pattern: [0xff; 8],
        };
        assert_eq!(executor.run(&operation, &wanted), Err(Failure::Cancelled));
        assert_eq!(get(&executor, GpuAddress::Vram(2 * MIB - 1), 2), [0xff, 0]);
    }

    #[test]
    fn steps_cover_everything_once() {
        let lengths = |count, bytes| steps(count, bytes).map(|step| step.len).collect::<Vec<_>>();
        assert_eq!(lengths(0, 4), [0; 0]);
        assert_eq!(lengths(1, 4), [4]);
        assert_eq!(lengths(MIB / 4, 4), [STEP]);
        assert_eq!(lengths(MIB / 4 + 1, 4), [STEP, 4]);
        assert_eq!(steps(MIB + 1, 1).last(), Some(Step { start: MIB, len: 1 }));
    }
}
