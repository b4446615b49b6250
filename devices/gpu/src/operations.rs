//! The execution of commands step by step: copy, fill, compare, checksum.

use crate::command::{Launch, Operation};
use crate::executor::{Executor, Progress, Step, fetch, store};
use crate::faults::Fault;
use crate::gpu_memory::GpuAddress;

impl Executor {
    /// Executes the next step of an operation. Returns its result after the last one.
    pub(crate) fn step(
        &mut self,
        operation: &Operation,
        progress: &mut Progress,
    ) -> Result<Option<u64>, Fault> {
        match *operation {
            Operation::Nop => Ok(Some(0)),
            Operation::Copy {
                source,
                destination,
                length,
            } => self.copy(source, destination, length, progress),
            Operation::Fill {
                destination,
                length,
                pattern,
            } => self.fill(destination, length, pattern, progress),
            Operation::Compare {
                first,
                second,
                length,
            } => self.compare(first, second, length, progress),
            Operation::Crc32c { source, length } => self.crc32c(source, length, progress),
            Operation::Launch(ref launch) => self.launch(launch, progress),
            Operation::WriteWord { word, value } => self.write_word(word, value),
            Operation::Wait(wait) => self.wait(&wait, progress),
        }
    }

    /// Records the progress of an operation that has failed in memory, at the place where its
    /// program looks for it.
    pub(crate) fn fail(&self, operation: &Operation, progress: &Progress) {
        if let Operation::Launch(Launch::NvmeIo(io)) = operation {
            self.fail_nvme_io(io, progress);
        }
    }

    fn copy(
        &mut self,
        source: GpuAddress,
        destination: GpuAddress,
        length: u64,
        progress: &mut Progress,
    ) -> Result<Option<u64>, Fault> {
        self.memory.check(source, length, false)?;
        self.memory.check(destination, length, true)?;
        let step = Step::next(progress, length);
        let data = step.of(&mut self.first);
        fetch(&self.memory, source, step, data)?;
        store(&self.memory, destination, step, data)?;
        Ok(step.finish(progress))
    }

    fn fill(
        &mut self,
        destination: GpuAddress,
        length: u64,
        pattern: [u8; 8],
        progress: &mut Progress,
    ) -> Result<Option<u64>, Fault> {
        self.memory.check(destination, length, true)?;
        let step = Step::next(progress, length);
        if let (GpuAddress::Vram(offset), [0, 0, 0, 0, 0, 0, 0, 0]) = (destination, pattern) {
            // Zeros in VRAM take no memory of the host.
            let offset = offset.saturating_add(step.start);
            self.memory.zero(offset, step.len as u64)?;
        } else {
            let words = self.first.chunks_exact_mut(pattern.len());
            // A step starts at a multiple of the pattern's length.
            words
                .take(step.len.div_ceil(pattern.len()))
                .for_each(|word| word.copy_from_slice(&pattern));
            store(&self.memory, destination, step, step.of(&mut self.first))?;
        }
        Ok(step.finish(progress))
    }

    fn compare(
        &mut self,
        first: GpuAddress,
        second: GpuAddress,
        length: u64,
        progress: &mut Progress,
    ) -> Result<Option<u64>, Fault> {
        self.memory.check(first, length, false)?;
        self.memory.check(second, length, false)?;
        let step = Step::next(progress, length);
        let (one, other) = (step.of(&mut self.first), step.of(&mut self.second));
        fetch(&self.memory, first, step, one)?;
        fetch(&self.memory, second, step, other)?;
        let differs = one.iter().zip(&*other).position(|(a, b)| a != b);
        if let Some(at) = differs {
            return Ok(Some(step.start + at as u64));
        }
        progress.result = length;
        Ok(step.finish(progress))
    }

    fn crc32c(
        &mut self,
        source: GpuAddress,
        length: u64,
        progress: &mut Progress,
    ) -> Result<Option<u64>, Fault> {
        self.memory.check(source, length, false)?;
        let step = Step::next(progress, length);
        let data = step.of(&mut self.first);
        fetch(&self.memory, source, step, data)?;
        // The sum so far has 32 bits.
        let before = u32::try_from(progress.result).unwrap_or(0);
        progress.result = crc32c::crc32c_append(before, data).into();
        Ok(step.finish(progress))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use peerbar_dma::{MapAccess, MemoryFile, Purpose, Requester};
    use peerbar_pci::{Iova, Range};

    use super::*;
    use crate::executor::STEP;
    use crate::faults::FaultCode;
    use crate::gpu_memory::GpuMemory;

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
            .map(
                Range::new(Iova(RAM_AT), VRAM).unwrap(),
                MapAccess::READ_WRITE,
                Some((fd, 0)),
            )
            .unwrap();
        let vram = Arc::new(MemoryFile::create("vram", VRAM).unwrap());
        Executor::new(GpuMemory::new(vram, Arc::new(requester)))
    }

    fn run(executor: &mut Executor, operation: Operation) -> Result<u64, Fault> {
        let mut progress = Progress::default();
        loop {
            if let Some(result) = executor.step(&operation, &mut progress)? {
                return Ok(result);
            }
        }
    }

    fn put(executor: &Executor, address: GpuAddress, data: &[u8]) {
        executor
            .memory
            .write(Purpose::Payload, address, data)
            .unwrap();
    }

    fn get(executor: &Executor, address: GpuAddress, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        executor
            .memory
            .read(Purpose::Payload, address, &mut data)
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
        let addresses = [
            GpuAddress::Vram(3),
            GpuAddress::Vram(2 * MIB + 1),
            GpuAddress::Bus(Iova(RAM_AT + 7)),
            GpuAddress::Bus(Iova(RAM_AT + 2 * MIB + 5)),
        ];
        put(&executor, addresses[0], &data);
        for (source, destination) in [(0, 1), (1, 2), (2, 3), (3, 0)] {
            let operation = Operation::Copy {
                source: addresses[source],
                destination: addresses[destination],
                length: data.len() as u64,
            };
            assert_eq!(run(&mut executor, operation), Ok(0));
            let copied = get(&executor, addresses[destination], data.len());
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
        let (cleared, kept) = (3 << 20, 1 << 20);
        assert_eq!(
            get(&executor, GpuAddress::Vram(0), cleared),
            vec![0; cleared]
        );
        assert_eq!(
            get(&executor, GpuAddress::Vram(3 * MIB), kept),
            vec![0xff; kept]
        );
    }

    #[test]
    fn a_comparison_finds_the_first_difference() {
        let mut executor = executor();
        let data = pattern(STEP + 100);
        put(&executor, GpuAddress::Vram(0), &data);
        put(&executor, GpuAddress::Bus(Iova(RAM_AT)), &data);
        let compare = Operation::Compare {
            first: GpuAddress::Vram(0),
            second: GpuAddress::Bus(Iova(RAM_AT)),
            length: data.len() as u64,
        };
        assert_eq!(run(&mut executor, compare), Ok(data.len() as u64));
        for at in [STEP as u64 + 50, STEP as u64, 0] {
            put(&executor, GpuAddress::Bus(Iova(RAM_AT + at)), &[0xff]);
            assert_eq!(run(&mut executor, compare), Ok(at));
        }
    }

    #[test]
    fn the_checksum_is_that_of_iscsi() {
        let mut executor = executor();
        put(&executor, GpuAddress::Vram(0), b"123456789");
        let crc = |source, length| Operation::Crc32c { source, length };
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
        put(&executor, GpuAddress::Bus(Iova(RAM_AT)), &data);
        let sum = run(
            &mut executor,
            crc(GpuAddress::Bus(Iova(RAM_AT)), data.len() as u64),
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
                copy(GpuAddress::Bus(Iova(u64::MAX)), GpuAddress::Vram(0), 2),
                FaultCode::Dma,
                u64::MAX,
                false,
            ),
            (
                copy(GpuAddress::Vram(0), GpuAddress::Bus(Iova(0x5000)), 16),
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
            assert_eq!(run(&mut executor, operation), Err(fault));
        }
        assert_eq!(get(&executor, GpuAddress::Vram(VRAM - 8), 8), [0; 8]);
    }

    #[test]
    fn steps_cover_everything_once() {
        let steps = |length| {
            let mut progress = Progress::default();
            let mut lengths = Vec::new();
            loop {
                let step = Step::next(&progress, length);
                assert_eq!(step.start, lengths.iter().sum::<usize>() as u64);
                lengths.push(step.len);
                if step.finish(&mut progress).is_some() {
                    return lengths;
                }
            }
        };
        assert_eq!(steps(0), [0]);
        assert_eq!(steps(1), [1]);
        assert_eq!(steps(STEP as u64), [STEP]);
        assert_eq!(steps(2 * STEP as u64 + 3), [STEP, STEP, 3]);
    }
}
