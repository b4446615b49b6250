//! The limits of the machine: bare copies, two threads that answer each other, a queue without
//! storage.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use fastrand::Rng;
use hdrhistogram::Histogram;
use peerbar_nvme_driver::{Doorbell, QueueMemory, QueuePair, Registers};

use crate::controller::queue_offsets;
use crate::drive::drive;
use crate::jobs::{Extent, Timed};
use crate::loaded_queue::{Buffer, Direction, LoadedQueue, Slot};
use crate::memory::{BusMemory, PAGE, Pages, SharedMemory};
use crate::spread::latencies;

/// Rounds of a loop between two readings of the clock.
const BATCH: u32 = 64;
/// Number of restarts of a ping-pong.
const PING_PONG_STARTS: u32 = 20;

/// Copies by one thread between memory of the kind that servers and guests have.
pub(crate) struct Copies {
    disk: SharedMemory,
    buffers: SharedMemory,
    rng: Rng,
}

impl Copies {
    /// Copies from a disk of `disk_bytes` bytes to buffers of `buffer_bytes` bytes in total.
    pub(crate) fn new(disk_bytes: usize, buffer_bytes: usize) -> anyhow::Result<Self> {
        Ok(Self {
            disk: SharedMemory::create(disk_bytes)?.0,
            buffers: SharedMemory::create(buffer_bytes)?.0,
            rng: Rng::with_seed(2),
        })
    }

    /// Returns the copies a second of `bytes` bytes from random offsets of the disk (or to them,
    /// for writes), measured for `time`. `buffers` buffers are used in turn.
    pub(crate) fn rate(
        &mut self,
        direction: Direction,
        bytes: usize,
        buffers: usize,
        time: Duration,
    ) -> anyhow::Result<f64> {
        let mut rng = self.rng.fork();
        let begun = Instant::now();
        let mut copies = 0_u32;
        let mut buffer = 0;
        while begun.elapsed() < time {
            for _ in 0..BATCH {
                let offset = rng.usize(..self.disk.bytes() / bytes) * bytes;
                let range = self.disk.slice(offset, bytes)?;
                let buffered = self.buffers.slice(buffer * bytes, bytes)?;
                match direction {
                    Direction::Read => range.copy_to_volatile_slice(buffered),
                    Direction::Write => buffered.copy_to_volatile_slice(range),
                }
                buffer = if buffer + 1 == buffers { 0 } else { buffer + 1 };
            }
            copies = copies.saturating_add(BATCH);
        }
        Ok(f64::from(copies) / begun.elapsed().as_secs_f64())
    }

    /// Returns the times of single copies of `bytes` bytes from random offsets of the disk, in
    /// nanoseconds. Each begins after the previous one.
    pub(crate) fn times(&mut self, bytes: usize, time: Duration) -> anyhow::Result<Histogram<u64>> {
        let mut times = latencies();
        let mut now = Instant::now();
        let until = now + time;
        while now < until {
            let offset = self.rng.usize(..self.disk.bytes() / bytes) * bytes;
            let range = self.disk.slice(offset, bytes)?;
            range.copy_to_volatile_slice(self.buffers.slice(0, bytes)?);
            // Without it, the processor may read the clock before the data has arrived.
            fence(Ordering::SeqCst);
            record(&mut times, &mut now);
        }
        Ok(times)
    }
}

/// System calls by one thread on an image in the machine's page cache.
pub(crate) struct Calls {
    image: File,
    bytes: u64,
    rng: Rng,
}

impl Calls {
    /// Makes an image of `bytes` bytes.
    pub(crate) fn new(bytes: u64) -> anyhow::Result<Self> {
        let image = tempfile::tempfile().context("cannot make an image")?;
        let mut at = 0;
        while at < bytes {
            let part = [1; 1 << 16];
            image
                .write_all_at(&part, at)
                .context("cannot write an image")?;
            at += part.len() as u64;
        }
        Ok(Self {
            image,
            bytes,
            rng: Rng::with_seed(3),
        })
    }

    /// Returns the transfers a second of `bytes` bytes at random addresses by one thread, measured
    /// for `time`.
    pub(crate) fn rate(
        &mut self,
        direction: Direction,
        bytes: usize,
        time: Duration,
    ) -> anyhow::Result<f64> {
        let mut data = vec![2; bytes];
        let begun = Instant::now();
        let mut calls = 0_u32;
        while begun.elapsed() < time {
            for _ in 0..BATCH {
                let at = self.rng.u64(..self.bytes / bytes as u64) * bytes as u64;
                match direction {
                    Direction::Read => self.image.read_exact_at(&mut data, at),
                    Direction::Write => self.image.write_all_at(&data, at),
                }
                .context("cannot transfer data of an image")?;
            }
            calls = calls.saturating_add(BATCH);
        }
        Ok(f64::from(calls) / begun.elapsed().as_secs_f64())
    }
}

/// Returns the round trips of a word between two threads that spin, in nanoseconds. Two loops that
/// wait for each other fall into one of a few rhythms, which last and differ by a factor of two, so
/// they are restarted now and then.
pub(crate) fn ping_pong(time: Duration) -> anyhow::Result<Histogram<u64>> {
    let mut times = latencies();
    for _ in 0..PING_PONG_STARTS {
        bounce_anew(time / PING_PONG_STARTS, &mut times)?;
    }
    Ok(times)
}

fn bounce_anew(time: Duration, times: &mut Histogram<u64>) -> anyhow::Result<()> {
    let (memory, _) = SharedMemory::create(PAGE)?;
    // Separate cache lines, even if they are fetched in pairs.
    let (ping, pong) = (0, 256);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut seen = 0;
            while !over.load(Ordering::Relaxed) {
                let number = memory.load32(ping)?;
                if number == seen {
                    std::hint::spin_loop();
                    continue;
                }
                // Not earlier: a store takes the other's cache line away.
                memory.store32(pong, number)?;
                seen = number;
            }
            Ok(())
        });
        let rounds = bounce(&memory, [ping, pong], time, times);
        over.store(true, Ordering::Relaxed);
        rounds.and(joined(other.join()))
    })
}

fn bounce(
    memory: &SharedMemory,
    [ping, pong]: [usize; 2],
    time: Duration,
    times: &mut Histogram<u64>,
) -> anyhow::Result<()> {
    let until = Instant::now() + time;
    let mut number = 0_u32;
    let mut now = Instant::now();
    while now < until {
        number = number.wrapping_add(1);
        memory.store32(ping, number)?;
        while memory.load32(pong)? != number {
            std::hint::spin_loop();
        }
        record(times, &mut now);
    }
    Ok(())
}

/// Records the time since `since`, and sets `since` to now.
fn record(times: &mut Histogram<u64>, since: &mut Instant) {
    let then = std::mem::replace(since, Instant::now());
    let nanoseconds = u64::try_from((*since - then).as_nanos()).unwrap_or(u64::MAX);
    times.saturating_record(nanoseconds);
}

/// Returns the commands a second through a queue pair whose other side, a thread, completes
/// everything at once: with `depth` of them outstanding, measured for `time`.
pub(crate) fn empty_ring(depth: u16, time: Duration) -> anyhow::Result<f64> {
    let entries = (depth + 1).next_power_of_two().max(64);
    let bytes = 128 * usize::from(entries) + 4 * PAGE;
    let memory = Arc::new(SharedMemory::create(bytes)?.0);
    let pages = Pages::new(bytes);
    let at = queue_offsets(&pages, entries)?;
    let [submission, completion] = at.map(wide);
    let layout = QueueMemory {
        submission,
        completion,
        submission_entries: entries,
        completion_entries: entries,
    };
    let [tail, head] = [pages.take(PAGE)?, pages.take(PAGE)?];
    let shared = BusMemory {
        memory: memory.clone(),
        address: 0,
    };
    let doorbells = [tail, head].map(|offset| {
        let registers = DoorbellWords(memory.clone());
        Doorbell::new(registers, shared.clone(), wide(offset), None)
    });
    let buffer = Buffer {
        memory: memory.clone(),
        offset: 0,
        bytes: PAGE,
    };
    let mut queues = [LoadedQueue {
        pair: QueuePair::new(shared, layout, doorbells)?,
        slots: (0..depth)
            .map(|cid| Slot::new(cid, 4096, buffer.clone(), [0, 0]))
            .collect(),
    }];
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| complete_all(&memory, (at, entries), tail, &over));
        let extent = Extent {
            bytes: 4096,
            transfers: 1 << 20,
        };
        let mut job = Timed::new(Direction::Read, extent, Rng::with_seed(3), time);
        let driven = drive(&mut queues, &mut job);
        over.store(true, Ordering::Relaxed);
        driven.and(joined(other.join())).map(|()| job.rate())
    })
}

/// Doorbells that are words of shared memory.
struct DoorbellWords(Arc<SharedMemory>);

impl Registers for DoorbellWords {
    fn read_register(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write_register(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write_doorbell(&self, offset: u64, value: u32) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        self.0.store32(offset, value).map_err(io::Error::other)
    }
}

fn wide(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// The other side of [`empty_ring`].
fn complete_all(
    memory: &SharedMemory,
    ([submission, completion], entries): ([usize; 2], u16),
    tail: usize,
    over: &AtomicBool,
) -> anyhow::Result<()> {
    let mut head = 0_u16;
    let mut phase = 1_u64;
    while !over.load(Ordering::Relaxed) {
        let tail = memory.load32(tail)?;
        while u32::from(head) != tail {
            let index = usize::from(head);
            let command = memory.load32(submission + index * 64)?;
            let cid = u64::from(command >> 16);
            head = if head + 1 == entries { 0 } else { head + 1 };
            let entry = u64::from(head) | cid << 32 | phase << 48;
            memory.store64(completion + index * 16 + 8, entry)?;
            phase ^= u64::from(head == 0);
        }
        std::hint::spin_loop();
    }
    Ok(())
}

/// Returns the outcome of a thread. A panic of the thread is a bug here, and is raised again.
fn joined<T>(outcome: thread::Result<T>) -> T {
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(5);

    #[test]
    fn copies_go_the_way_of_the_transfers() {
        let mut copies = Copies::new(PAGE, PAGE).unwrap();
        for (direction, [disk, buffer]) in [(Direction::Read, [1, 1]), (Direction::Write, [2, 2])] {
            copies.disk.store32(0, 1).unwrap();
            copies.buffers.store32(0, 2).unwrap();
            copies.rate(direction, PAGE, 1, SHORT).unwrap();
            let found = [&copies.disk, &copies.buffers].map(|memory| memory.load32(0).unwrap());
            assert_eq!(found, [disk, buffer], "{direction:?}");
        }
    }

    #[test]
    fn every_limit_is_a_number() {
        let mut copies = Copies::new(64 * PAGE, 4 * PAGE).unwrap();
        for direction in [Direction::Read, Direction::Write] {
            assert!(copies.rate(direction, PAGE, 4, SHORT).unwrap() > 0.0);
        }
        assert!(!copies.times(PAGE, SHORT).unwrap().is_empty());
        assert!(!ping_pong(SHORT).unwrap().is_empty());
        assert!(empty_ring(3, SHORT).unwrap() > 0.0);
    }
}
