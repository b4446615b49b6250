//! The compute kernels. They exist so that a check can prove that the GPU sees what a disk wrote.
//!
//! Threads run one after the other, in their order.

use peerbar_dma::Purpose;

use crate::command::Launch;
use crate::executor::{Executor, Failure, Step, check_wanted, steps};
use crate::gpu_memory::{GpuAddress, GpuMemory};

/// Bytes of a u32 or f32.
const WORD: u64 = 4;
/// How many bins a histogram has.
const BINS: usize = 256;
/// Threads of an atomic addition between two checks whether the command is still wanted.
const ADDITIONS: u64 = 1024;

impl Executor {
    pub(crate) fn launch(
        &mut self,
        launch: &Launch,
        wanted: &dyn Fn() -> bool,
    ) -> Result<u64, Failure> {
        match *launch {
            Launch::VectorAdd { a, b, c, count } => {
                self.by_element((a, b, c), count, wanted, |a, b| a + b)
            }
            Launch::Saxpy {
                x,
                y,
                count,
                factor,
            } => self.by_element((x, y, y), count, wanted, |x, y| factor * x + y),
            Launch::Reduction { x, count } => self.reduce(x, count, wanted),
            Launch::Histogram { bytes, count, bins } => self.histogram(bytes, count, bins, wanted),
            Launch::AtomicAdd {
                counter,
                value,
                threads,
            } => self.atomic_add(counter, value, threads, wanted),
        }
    }

    /// `to[i] = kernel(one[i], other[i])`.
    fn by_element(
        &mut self,
        (one, other, to): (GpuAddress, GpuAddress, GpuAddress),
        count: u64,
        wanted: &dyn Fn() -> bool,
        kernel: impl Fn(f32, f32) -> f32,
    ) -> Result<u64, Failure> {
        self.memory.check(one, count * WORD, false)?;
        self.memory.check(other, count * WORD, false)?;
        self.memory.check(to, count * WORD, true)?;
        for step in steps(count, WORD) {
            check_wanted(wanted)?;
            let (left, right) = (step.of(&mut self.first), step.of(&mut self.second));
            fetch(&self.memory, one, step, left)?;
            fetch(&self.memory, other, step, right)?;
            let pairs = left.as_chunks_mut().0.iter_mut().zip(right.as_chunks().0);
            for (left, right) in pairs {
                *left = kernel(f32::from_le_bytes(*left), f32::from_le_bytes(*right)).to_le_bytes();
            }
            self.memory
                .write(Purpose::Payload, to.after(step.start), left)?;
        }
        Ok(0)
    }

    fn reduce(
        &mut self,
        x: GpuAddress,
        count: u64,
        wanted: &dyn Fn() -> bool,
    ) -> Result<u64, Failure> {
        self.memory.check(x, count * WORD, false)?;
        let mut sum = 0u64;
        for step in steps(count, WORD) {
            check_wanted(wanted)?;
            let data = step.of(&mut self.first);
            fetch(&self.memory, x, step, data)?;
            let words = data.as_chunks().0.iter();
            sum = words.fold(sum, |sum, word| {
                sum.wrapping_add(u32::from_le_bytes(*word).into())
            });
        }
        Ok(sum)
    }

    fn histogram(
        &mut self,
        bytes: GpuAddress,
        count: u64,
        bins: GpuAddress,
        wanted: &dyn Fn() -> bool,
    ) -> Result<u64, Failure> {
        const BIN_BYTES: usize = BINS * 4;
        self.memory.check(bytes, count, false)?;
        self.memory.check(bins, BIN_BYTES as u64, true)?;
        let mut found = [0u32; BINS];
        for step in steps(count, 1) {
            check_wanted(wanted)?;
            let data = step.of(&mut self.first);
            fetch(&self.memory, bytes, step, data)?;
            for byte in data {
                if let Some(bin) = found.get_mut(usize::from(*byte)) {
                    *bin = bin.wrapping_add(1);
                }
            }
        }
        let mut table = [0; BIN_BYTES];
        self.memory.read(Purpose::Payload, bins, &mut table)?;
        for (bin, found) in table.as_chunks_mut().0.iter_mut().zip(found) {
            *bin = u32::from_le_bytes(*bin).wrapping_add(found).to_le_bytes();
        }
        self.memory.write(Purpose::Payload, bins, &table)?;
        Ok(0)
    }

    /// Every thread reads the counter and writes it back, so that other devices see, and the record of the DMA
    /// has, the accesses of that many threads.
    fn atomic_add(
        &mut self,
        counter: GpuAddress,
        value: u64,
        threads: u64,
        wanted: &dyn Fn() -> bool,
    ) -> Result<u64, Failure> {
        let mut word = [0; 8];
        self.memory.check(counter, 8, true)?;
        self.memory.read(Purpose::Payload, counter, &mut word)?;
        let before = u64::from_le_bytes(word);
        for thread in 0..threads {
            if thread.is_multiple_of(ADDITIONS) {
                check_wanted(wanted)?;
            }
            if thread > 0 {
                self.memory.read(Purpose::Payload, counter, &mut word)?;
            }
            let sum = u64::from_le_bytes(word).wrapping_add(value);
            self.memory
                .write(Purpose::Payload, counter, &sum.to_le_bytes())?;
        }
        Ok(before)
    }
}

fn fetch(
    memory: &GpuMemory,
    place: GpuAddress,
    step: Step,
    data: &mut [u8],
) -> Result<(), Failure> {
    Ok(memory.read(Purpose::Payload, place.after(step.start), data)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use peerbar_dma::{Completer, Direction, MemoryFile, Requester, Route};

    use super::*;
    use crate::executor::STEP;
    use crate::faults::{Fault, FaultCode};

    const RAM_AT: u64 = 0x10_0000;
    const SIZE: u64 = 8 << 20;

    fn work() -> Executor {
        let requester = Requester::new();
        requester.set_bus_master(true);
        let ram = MemoryFile::create("ram", SIZE).unwrap();
        let fd = ram.file().try_clone().unwrap().into();
        requester
            .map(RAM_AT, SIZE, (true, true), Some((fd, 0)))
            .unwrap();
        let vram = Arc::new(MemoryFile::create("vram", SIZE).unwrap());
        Executor::new(GpuMemory::new(vram, Arc::new(requester)))
    }

    fn launch(work: &mut Executor, launch: Launch) -> Result<u64, Failure> {
        work.launch(&launch, &|| true)
    }

    fn put<const N: usize, T>(
        work: &Executor,
        place: GpuAddress,
        values: &[T],
        bytes: fn(&T) -> [u8; N],
    ) {
        let data: Vec<u8> = values.iter().flat_map(bytes).collect();
        work.memory.write(Purpose::Payload, place, &data).unwrap();
    }

    fn floats(work: &Executor, place: GpuAddress, count: usize) -> Vec<f32> {
        let mut data = vec![0; count * 4];
        work.memory
            .read(Purpose::Payload, place, &mut data)
            .unwrap();
        let words = data.as_chunks().0.iter();
        words.map(|word| f32::from_le_bytes(*word)).collect()
    }

    #[test]
    fn vectors_are_added_across_spaces_and_steps() {
        let mut work = work();
        let count = STEP / 4 + 3;
        let a: Vec<f32> = (0..count).map(|i| (i % 1000) as f32).collect();
        let b: Vec<f32> = a.iter().map(|a| a * 0.5).collect();
        put(&work, GpuAddress::Vram(0), &a, |v| v.to_le_bytes());
        put(&work, GpuAddress::Bus(RAM_AT), &b, |v| v.to_le_bytes());
        let c = GpuAddress::Bus(RAM_AT + (4 << 20));
        let add = Launch::VectorAdd {
            a: GpuAddress::Vram(0),
            b: GpuAddress::Bus(RAM_AT),
            c,
            count: count as u64,
        };
        assert_eq!(launch(&mut work, add), Ok(0));
        let expected: Vec<f32> = a.iter().map(|a| a * 1.5).collect();
        assert!(floats(&work, c, count) == expected);
        assert_eq!(floats(&work, c, count + 1)[count], 0.0);
    }

    #[test]
    fn saxpy_adds_to_what_is_there() {
        let mut work = work();
        put(&work, GpuAddress::Vram(0), &[1.0f32, 2.0, 3.0], |v| {
            v.to_le_bytes()
        });
        put(&work, GpuAddress::Vram(64), &[10.0f32, 20.0, 30.0], |v| {
            v.to_le_bytes()
        });
        let saxpy = Launch::Saxpy {
            x: GpuAddress::Vram(0),
            y: GpuAddress::Vram(64),
            count: 2,
            factor: 2.5,
        };
        assert_eq!(launch(&mut work, saxpy), Ok(0));
        assert_eq!(floats(&work, GpuAddress::Vram(64), 3), [12.5, 25.0, 30.0]);
    }

    #[test]
    fn a_sum_does_not_overflow_32_bits() {
        let mut work = work();
        put(&work, GpuAddress::Vram(4), &[u32::MAX; 5], |v| {
            v.to_le_bytes()
        });
        let reduction = Launch::Reduction {
            x: GpuAddress::Vram(4),
            count: 5,
        };
        let sum = launch(&mut work, reduction);
        assert_eq!(sum, Ok(5 * u64::from(u32::MAX)));
    }

    #[test]
    fn a_histogram_adds_to_its_bins() {
        let mut work = work();
        let bytes: Vec<u8> = (0..STEP + 300).map(|i| i.to_le_bytes()[0]).collect();
        put(&work, GpuAddress::Bus(RAM_AT), &bytes, |v| [*v]);
        let bins = GpuAddress::Vram(0);
        put(&work, bins, &[7u32; 256], |v| v.to_le_bytes());
        let histogram = Launch::Histogram {
            bytes: GpuAddress::Bus(RAM_AT),
            count: bytes.len() as u64,
            bins,
        };
        assert_eq!(launch(&mut work, histogram), Ok(0));
        let mut table = [0; 1024];
        work.memory
            .read(Purpose::Payload, bins, &mut table)
            .unwrap();
        let bin = |i: usize| u32::from_le_bytes(table[i * 4..i * 4 + 4].try_into().unwrap());
        assert_eq!(
            (bin(0), bin(43), bin(44), bin(255)),
            (4105, 4105, 4104, 4104)
        );
    }

    #[test]
    fn every_thread_adds_by_a_read_and_a_write_of_its_own() {
        let mut work = work();
        put(&work, GpuAddress::Bus(RAM_AT), &[5u64], |v| v.to_le_bytes());
        let add = Launch::AtomicAdd {
            counter: GpuAddress::Bus(RAM_AT),
            value: 1,
            threads: 512 * 1000,
        };
        let requests = |work: &Executor, direction| {
            let counts = work.memory.requester().counters().snapshot();
            let of = |(entry, count): &(peerbar_dma::DmaKind, peerbar_dma::Count)| {
                let wanted = entry.route == Route::GuestRam
                    && entry.completer == Completer::GuestRam
                    && entry.direction == direction;
                wanted.then_some((count.requests, count.bytes))
            };
            counts.iter().find_map(of).unwrap_or_default()
        };
        assert_eq!(launch(&mut work, add), Ok(5));
        assert_eq!(requests(&work, Direction::Read), (512_000, 4_096_000));
        assert_eq!(
            requests(&work, Direction::Write),
            (512_001, 4_096_008),
            "one is the test's own"
        );
        let mut word = [0; 8];
        work.memory
            .read(Purpose::Payload, GpuAddress::Bus(RAM_AT), &mut word)
            .unwrap();
        assert_eq!(u64::from_le_bytes(word), 512_005);
    }

    #[test]
    fn no_threads_tell_the_counter_and_leave_it() {
        let mut work = work();
        put(&work, GpuAddress::Vram(8), &[9u64], |v| v.to_le_bytes());
        let add = Launch::AtomicAdd {
            counter: GpuAddress::Vram(8),
            value: 1,
            threads: 0,
        };
        assert_eq!(launch(&mut work, add), Ok(9));
        let add = Launch::AtomicAdd {
            counter: GpuAddress::Vram(8),
            value: u64::MAX,
            threads: 2,
        };
        assert_eq!(launch(&mut work, add), Ok(9));
        assert_eq!(launch(&mut work, add), Ok(7));
    }

    #[test]
    fn operands_out_of_reach_are_faults() {
        let mut work = work();
        let beyond = Launch::Histogram {
            bytes: GpuAddress::Vram(0),
            count: 16,
            bins: GpuAddress::Vram(SIZE - 1023),
        };
        let fault = Fault {
            code: FaultCode::VramRange,
            write: true,
            address: SIZE - 1023,
        };
        assert_eq!(launch(&mut work, beyond), Err(Failure::Fault(fault)));
        let nobody = Launch::Reduction {
            x: GpuAddress::Bus(0x1000),
            count: 4,
        };
        let fault = Fault {
            code: FaultCode::Dma,
            write: false,
            address: 0x1000,
        };
        assert_eq!(launch(&mut work, nobody), Err(Failure::Fault(fault)));
    }
}
