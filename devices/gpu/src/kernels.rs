//! The compute kernels. They exist so that a check can prove that the GPU sees the data that a disk
//! wrote.
//!
//! Threads run one after the other, in their order.

use peerbar_dma::Purpose;

use crate::command::Launch;
use crate::executor::{Executor, Progress, Step, fetch, store};
use crate::faults::Fault;
use crate::gpu_memory::GpuAddress;

/// Bytes of a u32 or f32.
const WORD: u64 = 4;
/// Number of bins of a histogram.
const BINS: usize = 256;
/// The most threads of an atomic addition in a step. Each may be two messages, to QEMU or to a peer.
const ADDITIONS: u64 = 32;

impl Executor {
    /// Executes the next step of a kernel. Returns its result after the last one.
    pub(crate) fn launch(
        &mut self,
        launch: &Launch,
        progress: &mut Progress,
    ) -> Result<Option<u64>, Fault> {
        match *launch {
            Launch::VectorAdd { a, b, c, count } => {
                self.by_element((a, b, c), count, progress, |a, b| a + b)
            }
            Launch::Saxpy {
                x,
                y,
                count,
                factor,
            } => self.by_element((x, y, y), count, progress, |x, y| factor * x + y),
            Launch::Reduction { x, count } => self.reduce(x, count, progress),
            Launch::Histogram { bytes, count, bins } => {
                self.histogram(bytes, count, bins, progress)
            }
            Launch::AtomicAdd {
                counter,
                value,
                threads,
            } => self.atomic_add(counter, value, threads, progress),
            Launch::NvmeIo(ref io) => self.nvme_io(io, progress),
        }
    }

    /// `to[i] = kernel(one[i], other[i])`.
    fn by_element(
        &mut self,
        (one, other, to): (GpuAddress, GpuAddress, GpuAddress),
        count: u64,
        progress: &mut Progress,
        kernel: impl Fn(f32, f32) -> f32,
    ) -> Result<Option<u64>, Fault> {
        let length = count * WORD;
        self.memory.check(one, length, false)?;
        self.memory.check(other, length, false)?;
        self.memory.check(to, length, true)?;
        let step = Step::next(progress, length);
        let (left, right) = (step.of(&mut self.first), step.of(&mut self.second));
        fetch(&self.memory, one, step, left)?;
        fetch(&self.memory, other, step, right)?;
        let pairs = left.chunks_exact_mut(4).zip(right.chunks_exact(4));
        let pairs =
            pairs.filter_map(|(one, two)| Some((one.first_chunk_mut()?, two.first_chunk()?)));
        for (left, right) in pairs {
            *left = kernel(f32::from_le_bytes(*left), f32::from_le_bytes(*right)).to_le_bytes();
        }
        store(&self.memory, to, step, left)?;
        Ok(step.finish(progress))
    }

    fn reduce(
        &mut self,
        x: GpuAddress,
        count: u64,
        progress: &mut Progress,
    ) -> Result<Option<u64>, Fault> {
        let length = count * WORD;
        self.memory.check(x, length, false)?;
        let step = Step::next(progress, length);
        let data = step.of(&mut self.first);
        fetch(&self.memory, x, step, data)?;
        let words = data.chunks_exact(4).filter_map(<[u8]>::first_chunk);
        progress.result = words.fold(progress.result, |sum, word| {
            sum.wrapping_add(u32::from_le_bytes(*word).into())
        });
        Ok(step.finish(progress))
    }

    fn histogram(
        &mut self,
        bytes: GpuAddress,
        count: u64,
        bins: GpuAddress,
        progress: &mut Progress,
    ) -> Result<Option<u64>, Fault> {
        const BIN_BYTES: usize = BINS * 4;
        self.memory.check(bytes, count, false)?;
        self.memory.check(bins, BIN_BYTES as u64, true)?;
        let step = Step::next(progress, count);
        let data = step.of(&mut self.first);
        fetch(&self.memory, bytes, step, data)?;
        let mut found = [0u32; BINS];
        for byte in data {
            if let Some(bin) = found.get_mut(usize::from(*byte)) {
                *bin = bin.wrapping_add(1);
            }
        }
        let mut table = [0; BIN_BYTES];
        self.memory.read(Purpose::Payload, bins, &mut table)?;
        let bins_of_table = table
            .chunks_exact_mut(4)
            .filter_map(<[u8]>::first_chunk_mut);
        for (bin, found) in bins_of_table.zip(found) {
            *bin = u32::from_le_bytes(*bin).wrapping_add(found).to_le_bytes();
        }
        self.memory.write(Purpose::Payload, bins, &table)?;
        Ok(step.finish(progress))
    }

    /// Every thread reads the counter and writes it back, so that other devices see the accesses of
    /// that many threads, and the DMA record shows them.
    fn atomic_add(
        &mut self,
        counter: GpuAddress,
        value: u64,
        threads: u64,
        progress: &mut Progress,
    ) -> Result<Option<u64>, Fault> {
        let mut word = [0; 8];
        self.memory.check(counter, 8, true)?;
        if threads == 0 {
            self.memory.read(Purpose::Payload, counter, &mut word)?;
            return Ok(Some(u64::from_le_bytes(word)));
        }
        let end = threads.min(progress.done + ADDITIONS);
        for thread in progress.done..end {
            self.memory.read(Purpose::Payload, counter, &mut word)?;
            let before = u64::from_le_bytes(word);
            if thread == 0 {
                progress.result = before;
            }
            let sum = before.wrapping_add(value).to_le_bytes();
            self.memory.write(Purpose::Payload, counter, &sum)?;
            progress.done = thread + 1;
            if self.slice_is_over() {
                break;
            }
        }
        Ok((progress.done == threads).then_some(progress.result))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use peerbar_dma::{Completer, Direction, MapAccess, MemoryFile, Requester, Route};
    use peerbar_pci::{Iova, Range};

    use super::*;
    use crate::executor::STEP;
    use crate::faults::FaultCode;
    use crate::gpu_memory::GpuMemory;

    const RAM_AT: u64 = 0x10_0000;
    const SIZE: u64 = 8 << 20;

    fn work() -> Executor {
        let requester = Requester::new();
        requester.set_bus_master(true);
        let ram = MemoryFile::create("ram", SIZE).unwrap();
        let fd = ram.file().try_clone().unwrap().into();
        requester
            .map(
                Range::new(Iova(RAM_AT), SIZE).unwrap(),
                MapAccess::READ_WRITE,
                Some((fd, 0)),
            )
            .unwrap();
        let vram = Arc::new(MemoryFile::create("vram", SIZE).unwrap());
        Executor::new(GpuMemory::new(vram, Arc::new(requester)))
    }

    fn launch(work: &mut Executor, launch: Launch) -> Result<u64, Fault> {
        let mut progress = Progress::default();
        loop {
            if let Some(result) = work.launch(&launch, &mut progress)? {
                return Ok(result);
            }
        }
    }

    fn put<const N: usize, T>(
        work: &Executor,
        address: GpuAddress,
        values: &[T],
        bytes: fn(&T) -> [u8; N],
    ) {
        let data: Vec<u8> = values.iter().flat_map(bytes).collect();
        work.memory.write(Purpose::Payload, address, &data).unwrap();
    }

    fn floats(work: &Executor, address: GpuAddress, count: usize) -> Vec<f32> {
        let mut data = vec![0; count * 4];
        work.memory
            .read(Purpose::Payload, address, &mut data)
            .unwrap();
        let words = data.chunks_exact(4).filter_map(<[u8]>::first_chunk);
        words.map(|word| f32::from_le_bytes(*word)).collect()
    }

    #[test]
    fn vectors_are_added_across_spaces_and_steps() {
        let mut work = work();
        let count = STEP / 4 + 3;
        let a: Vec<f32> = (0..count).map(|i| (i % 1000) as f32).collect();
        let b: Vec<f32> = a.iter().map(|a| a * 0.5).collect();
        put(&work, GpuAddress::Vram(0), &a, |v| v.to_le_bytes());
        put(&work, GpuAddress::Bus(Iova(RAM_AT)), &b, |v| {
            v.to_le_bytes()
        });
        let c = GpuAddress::Bus(Iova(RAM_AT + (4 << 20)));
        let add = Launch::VectorAdd {
            a: GpuAddress::Vram(0),
            b: GpuAddress::Bus(Iova(RAM_AT)),
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
        put(&work, GpuAddress::Bus(Iova(RAM_AT)), &bytes, |v| [*v]);
        let bins = GpuAddress::Vram(0);
        put(&work, bins, &[7u32; 256], |v| v.to_le_bytes());
        let histogram = Launch::Histogram {
            bytes: GpuAddress::Bus(Iova(RAM_AT)),
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
            (1033, 1033, 1032, 1032)
        );
    }

    #[test]
    fn every_thread_adds_by_a_read_and_a_write_of_its_own() {
        let mut work = work();
        put(&work, GpuAddress::Bus(Iova(RAM_AT)), &[5u64], |v| {
            v.to_le_bytes()
        });
        let add = Launch::AtomicAdd {
            counter: GpuAddress::Bus(Iova(RAM_AT)),
            value: 1,
            threads: 512 * 1000,
        };
        let requests = |work: &Executor, direction| {
            let counts = work.memory.requester().ledger().counters().snapshot();
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
            .read(Purpose::Payload, GpuAddress::Bus(Iova(RAM_AT)), &mut word)
            .unwrap();
        assert_eq!(u64::from_le_bytes(word), 512_005);
    }

    #[test]
    fn addition_whose_slice_is_over_does_one_thread_in_a_step() {
        let mut work = work();
        work.begin_slice(Instant::now());
        let add = Launch::AtomicAdd {
            counter: GpuAddress::Vram(0),
            value: 2,
            threads: 3,
        };
        let mut progress = Progress::default();
        for (done, outcome) in [(1, None), (2, None), (3, Some(0))] {
            assert_eq!(work.launch(&add, &mut progress), Ok(outcome));
            assert_eq!(progress.done, done);
        }
        let mut word = [0; 8];
        let counter = GpuAddress::Vram(0);
        work.memory
            .read(Purpose::Payload, counter, &mut word)
            .unwrap();
        assert_eq!(u64::from_le_bytes(word), 6);
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
        assert_eq!(launch(&mut work, beyond), Err(fault));
        let refused = Launch::Reduction {
            x: GpuAddress::Bus(Iova(0x1000)),
            count: 4,
        };
        let fault = Fault {
            code: FaultCode::Dma,
            write: false,
            address: 0x1000,
        };
        assert_eq!(launch(&mut work, refused), Err(fault));
    }
}
