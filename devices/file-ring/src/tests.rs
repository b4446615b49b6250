//! Transfers with existing files, and with pipes, which block until a test feeds them.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use io_uring::types;
use peerbar_dma::{Direction, MapAccess, MemoryFile, Purpose, Requester, Session};
use peerbar_flight::{Event, FlightFile, Level, Recorder};
use peerbar_pci::{Iova, Range};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, Rlimit};

use super::*;

const RAM_BYTES: u64 = 0x80_0000;

/// RAM at 0..RAM_BYTES, by two mappings that meet at 0x2000, and a ring.
struct Fixture {
    requester: Arc<Requester>,
    ram: MemoryFile,
    ring: FileRing<u32>,
    event_fd: OwnedFd,
}

impl Fixture {
    /// Returns `None` on a machine that does not permit io_uring. Then the test is skipped.
    fn new() -> Option<Self> {
        let event_fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let ring = match FileRing::new(event_fd.as_fd()) {
            Ok(ring) => ring,
            Err(error) if is_missing(&error) => {
                eprintln!("skipped: there is no io_uring here: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let requester = Arc::new(Requester::new());
        requester.set_bus_master(true);
        let ram = MemoryFile::create("ram", RAM_BYTES).unwrap();
        for (start, size) in [(0, 0x2000), (0x2000, RAM_BYTES - 0x2000)] {
            let fd = ram.file().try_clone().unwrap().into();
            let access = MapAccess::READ_WRITE;
            requester
                .map(
                    Range::new(Iova(start), size).unwrap(),
                    access,
                    Some((fd, start)),
                )
                .unwrap();
        }
        Some(Self {
            requester,
            ram,
            ring,
            event_fd,
        })
    }

    fn start(
        &mut self,
        direction: Direction,
        file: (&RingFile, u64),
        memory: &[(u64, usize)],
        owner: u32,
    ) {
        let mut session = Session::new(self.requester.clone());
        let memory = memory.iter().map(|(address, len)| (Iova(*address), *len));
        let memory = session.pin(Purpose::Payload, direction, memory);
        self.ring.transfer(file, memory.unwrap(), owner);
    }

    /// Starts a comparison of a file, from an offset on, with memory.
    fn check(&mut self, (file, offset): (&RingFile, u64), memory: &[(u64, usize)], owner: u32) {
        let mut session = Session::new(self.requester.clone());
        let len = memory.iter().map(|(_, len)| *len as u64).sum();
        let memory = memory.iter().map(|(address, len)| (Iova(*address), *len));
        let memory = session.pin(Purpose::Payload, Direction::Read, memory);
        self.ring
            .check(file, (offset, len), Some(memory.unwrap()), owner);
    }

    /// Starts a write of the first page of RAM to a file.
    fn store(&mut self, file: (&RingFile, u64), owner: u32) {
        self.start(Direction::Read, file, &[(0, 0x1000)], owner);
    }

    /// Waits, by the eventfd, for the next operation that ends.
    fn next(&mut self) -> (u32, io::Result<()>) {
        loop {
            if let Some(ended) = self.ring.take_ended() {
                return ended;
            }
            // After the poll, which may have queued a further step.
            assert!(self.ring.submit());
            rustix::io::read(&self.event_fd, &mut [0; 8]).unwrap();
        }
    }

    fn ram(&self, address: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.ram.read(address, &mut data).unwrap();
        data
    }

    /// Returns the payload so far: requests, bytes and failures.
    fn counts(&self) -> (u64, u64, u64) {
        let counts = self.requester.ledger().counters().snapshot();
        counts.iter().fold((0, 0, 0), |sum, (_, count)| {
            (
                sum.0 + count.requests,
                sum.1 + count.bytes,
                sum.2 + count.failures,
            )
        })
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS))
}

fn pattern(len: usize) -> Vec<u8> {
    let byte = |at: usize| {
        let [low, high, ..] = at.to_le_bytes();
        low.wrapping_mul(31) ^ high
    };
    (0..len).map(byte).collect()
}

fn file(data: &[u8]) -> RingFile {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(data).unwrap();
    RingFile::new(file)
}

/// Returns a file that is empty until data is written to the other one.
fn pipe() -> (RingFile, File) {
    let (reads, writes) = rustix::pipe::pipe().unwrap();
    (RingFile::new(reads.into()), writes.into())
}

#[test]
fn data_goes_both_ways_between_a_file_and_memory_in_pieces() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let data = pattern(0x3000);
    let image = file(&data);
    let list = [(0x1800, 0x1000), (0x10, 0x200), (0x7000, 0x1c00)];
    fixture.start(Direction::Write, (&image, 0x100), &list, 1);
    assert!(matches!(fixture.next(), (1, Ok(()))));
    let mut found = Vec::new();
    for (address, len) in list {
        found.extend(fixture.ram(address, len));
    }
    assert!(found == data[0x100..0x100 + 0x2e00]);
    // The first range lies in two mappings.
    assert_eq!(fixture.counts(), (4, 0x2e00, 0));
    let copy = file(&[]);
    fixture.start(Direction::Read, (&copy, 0x40), &list, 2);
    assert!(matches!(fixture.next(), (2, Ok(()))));
    fixture.ring.sync(&copy, None, 3);
    assert!(matches!(fixture.next(), (3, Ok(()))));
    fixture.start(Direction::Write, (&copy, 0x40), &[(0x2_0000, 0x2e00)], 4);
    assert!(matches!(fixture.next(), (4, Ok(()))));
    assert!(fixture.ram(0x2_0000, 0x2e00) == found);
}

#[test]
fn more_stretches_of_memory_than_one_step_takes_are_filled() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let data = pattern(1500 * 4096);
    let image = file(&data);
    // From the last page to the first, so that no two are joined.
    let list: Vec<_> = (0..1500).rev().map(|page| (page * 4096, 4096)).collect();
    fixture.start(Direction::Write, (&image, 0), &list, 1);
    assert!(matches!(fixture.next(), (1, Ok(()))));
    for (index, (address, len)) in list.into_iter().enumerate() {
        assert!(fixture.ram(address, len) == data[index * 4096..][..4096]);
    }
}

#[test]
fn transfer_to_lost_memory_fails_however_the_kernel_ends_it() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let in_memory = MemoryFile::create("image", 0x5000).unwrap();
    let in_memory = RingFile::new(in_memory.file().try_clone().unwrap());
    for image in [file(&pattern(0x5000)), in_memory] {
        for direction in [Direction::Read, Direction::Write] {
            let lent = rustix::fs::memfd_create("lent", rustix::fs::MemfdFlags::CLOEXEC);
            let lent = File::from(lent.unwrap());
            lent.set_len(0x2000).unwrap();
            let fd = lent.try_clone().unwrap().into();
            let requester = fixture.requester.clone();
            let mapped = requester.map(
                Range::new(Iova(RAM_BYTES), 0x2000).unwrap(),
                MapAccess::READ_WRITE,
                Some((fd, 0)),
            );
            mapped.unwrap();
            lent.set_len(0).unwrap();
            // Before anything has touched the memory, and afterwards, when it is replaced.
            for owner in [1, 2] {
                fixture.start(direction, (&image, 0), &[(RAM_BYTES, 0x2000)], owner);
                let (_, Err(error)) = fixture.next() else {
                    panic!("success of transfer {owner}");
                };
                assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
                let touched = requester.read(Purpose::Payload, Iova(RAM_BYTES), &mut [0; 64]);
                assert!(touched.is_err());
            }
            fixture.check((&image, 0), &[(RAM_BYTES, 0x2000)], 3);
            let (3, Err(error)) = fixture.next() else {
                panic!("success");
            };
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
            requester.unmap(Range::from_bounds(Iova(RAM_BYTES), Iova(RAM_BYTES + 0x1fff)).unwrap());
        }
    }
    assert!(!fixture.ring.has_pinned());
}

#[test]
fn short_file_is_an_error_and_its_data_is_recorded() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let image = file(&pattern(0x1234));
    fixture.start(Direction::Write, (&image, 0x1000), &[(0x1000, 0x1000)], 1);
    let (1, Err(error)) = fixture.next() else {
        panic!("success");
    };
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(fixture.counts(), (1, 0x234, 0));
    assert!(!fixture.ring.has_pinned() && fixture.ring.is_empty());
}

#[test]
fn a_file_that_cannot_be_written_is_an_error() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let image = tempfile::NamedTempFile::new().unwrap();
    let image = RingFile::new(File::open(image.path()).unwrap());
    fixture.start(Direction::Read, (&image, 0), &[(0x1000, 0x1000)], 1);
    assert!(matches!(fixture.next(), (1, Err(_))));
    assert_eq!(fixture.counts(), (0, 0, 0));
}

#[test]
fn what_is_written_is_synced_or_the_sync_fails() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    fixture.ram.write(0, &pattern(0x1000)).unwrap();
    let image = file(&[]);
    fixture.store((&image, 0x1000), 1);
    assert!(matches!(fixture.next(), (1, Ok(()))));
    for part in [None, Some((0x1000, 0x1000)), Some((0, u64::MAX))] {
        fixture.ring.sync(&image, part, 1);
        assert!(matches!(fixture.next(), (1, Ok(()))));
    }
    let mut data = vec![0; 0x1000];
    image.file().read_exact_at(&mut data, 0x1000).unwrap();
    assert!(data == pattern(0x1000));
    // A pipe has no stable storage.
    let (reads, writes) = rustix::pipe::pipe().unwrap();
    let pipe = RingFile::new(writes.into());
    fixture.store((&pipe, 0), 2);
    assert!(matches!(fixture.next(), (2, Ok(()))));
    fixture.ring.sync(&pipe, None, 3);
    assert!(matches!(fixture.next(), (3, Err(_))));
    let mut came = vec![0; 0x1000];
    assert_eq!(rustix::io::read(&reads, &mut came), Ok(0x1000));
    assert_eq!(fixture.counts(), (2, 0x2000, 0));
    assert!(!fixture.ring.has_pinned() && fixture.ring.is_empty());
}

#[test]
fn what_is_in_memory_is_moved_at_once() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let memory = MemoryFile::create("image", 0x5000).unwrap();
    memory.write(0, &pattern(0x5000)).unwrap();
    let image = RingFile::new(memory.file().try_clone().unwrap());
    let list = [(0x1800, 0x1000), (0x6000, 0x2000)];
    fixture.start(Direction::Write, (&image, 0x1000), &list, 1);
    fixture.store((&image, 0x4000), 2);
    fixture.start(Direction::Write, (&image, 0x4000), &list, 3);
    assert!(!fixture.ring.has_pinned() && fixture.ring.is_empty());
    let mut ended = [(); 3].map(|()| fixture.ring.take_ended().unwrap());
    assert_eq!([0, 1, 2].map(|at: usize| ended[at].0), [1, 2, 3]);
    assert!(ended[0].1.is_ok() && ended[1].1.is_ok());
    fixture.ring.sync(&image, None, 4);
    assert!(matches!(fixture.ring.take_ended(), Some((4, Ok(())))));
    let too_short = std::mem::replace(&mut ended[2].1, Ok(())).unwrap_err();
    assert_eq!(too_short.kind(), io::ErrorKind::UnexpectedEof);
    assert!(fixture.ram(0x7000, 0x1000) == pattern(0x5000)[0x3000..0x4000]);
    let mut data = vec![1; 0x1000];
    memory.read(0x4000, &mut data).unwrap();
    assert!(data == fixture.ram(0, 0x1000));
    // Two mappings meet at 0x2000.
    assert_eq!(fixture.counts(), (3 + 1 + 2, 0x3000 + 0x1000 + 0x1000, 0));
}

#[test]
fn slow_operation_blocks_no_other_and_is_continued() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let (slow, mut slow_end) = pipe();
    let image = file(&pattern(0x1000));
    fixture.start(Direction::Write, (&slow, 0), &[(0x1000, 0x1000)], 1);
    for owner in 2..10 {
        fixture.start(Direction::Write, (&image, 0), &[(0x4000, 0x1000)], owner);
        assert!(matches!(fixture.next(), (ended, Ok(())) if ended == owner));
    }
    fixture.ring.sync(&image, None, 10);
    assert!(matches!(fixture.next(), (10, Ok(()))));
    slow_end.write_all(&[7; 0x800]).unwrap();
    fixture.start(Direction::Write, (&image, 0), &[(0x4000, 0x1000)], 11);
    assert!(matches!(fixture.next(), (11, Ok(()))));
    slow_end.write_all(&[8; 0x800]).unwrap();
    assert!(matches!(fixture.next(), (1, Ok(()))));
    assert_eq!(fixture.ram(0x1000, 0x800), [7; 0x800]);
    assert_eq!(fixture.ram(0x1800, 0x800), [8; 0x800]);
}

/// Returns a pipe that accepts no data until its other end is read.
fn full_pipe() -> (RingFile, File) {
    let (reads, writes) = rustix::pipe::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writes, true).unwrap();
    while rustix::io::write(&writes, &[7; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writes, false).unwrap();
    (RingFile::new(writes.into()), reads.into())
}

#[test]
fn zeroed_parts_read_as_zero_and_may_free_storage() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    for (owner, deallocate) in [(1, false), (2, true)] {
        let image = file(&[7; 0x10_0000]);
        let part = (0x1_0000, 0xe_0000);
        fixture.ring.zero(&image, part, deallocate, owner);
        assert!(matches!(fixture.next(), (ended, Ok(())) if ended == owner));
        assert_zeroed(&image, 0x10_0000, part);
        let kept = image.file().metadata().unwrap().blocks() * 512;
        assert!(!deallocate || kept <= 0x4_0000, "{kept:#x}");
    }
}

#[test]
fn zeroes_are_written_where_the_file_system_has_no_other_way() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    // tmpfs cannot zero a range and keep its storage.
    let memory = MemoryFile::create("image", 0x10_0000).unwrap();
    memory.write(0, &[7; 0x10_0000]).unwrap();
    let image = RingFile::new(memory.file().try_clone().unwrap());
    let part = (0x1001, 0x2_1234);
    fixture.ring.zero(&image, part, false, 1);
    assert!(matches!(fixture.next(), (1, Ok(()))));
    assert_zeroed(&image, 0x10_0000, part);
}

fn assert_zeroed(image: &RingFile, len: usize, (offset, zeroed): (u64, u64)) {
    let mut data = vec![1; len];
    image.file().read_exact_at(&mut data, 0).unwrap();
    let (before, rest) = data.split_at(usize::try_from(offset).unwrap());
    let (part, behind) = rest.split_at(usize::try_from(zeroed).unwrap());
    assert!(part.iter().all(|byte| *byte == 0));
    assert!(before.iter().chain(behind).all(|byte| *byte == 7));
}

#[test]
fn a_file_is_compared_with_memory_to_the_byte() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let len = 2 * check::STEP + 0x10;
    let data = pattern(len);
    let image = file(&[&[1; 0x100], &data[..]].concat());
    // The first range lies in two mappings.
    let list = [(0x1000, 0x1800), (0x8000, len - 0x1800)];
    let (first, rest) = data.split_at(0x1800);
    fixture.ram.write(0x1000, first).unwrap();
    fixture.ram.write(0x8000, rest).unwrap();
    fixture.check((&image, 0x100), &list, 1);
    assert!(matches!(fixture.next(), (1, Ok(()))));
    assert_eq!(fixture.counts(), (3, len as u64, 0));
    for (owner, address) in [(2, 0x1000), (3, 0x2000), (4, 0x8000 + len as u64 - 0x1801)] {
        let [byte] = fixture.ram(address, 1)[..] else {
            panic!("more than a byte");
        };
        fixture.ram.write(address, &[!byte]).unwrap();
        fixture.check((&image, 0x100), &list, owner);
        let (ended, Err(error)) = fixture.next() else {
            panic!("{address:#x}: success");
        };
        assert_eq!(ended, owner);
        assert!(error.get_ref().unwrap().is::<Differs>(), "{address:#x}");
        fixture.ram.write(address, &[byte]).unwrap();
    }
    assert!(!fixture.ring.has_pinned() && fixture.ring.is_empty());
}

#[test]
fn a_file_is_read_to_its_end_and_what_is_beyond_is_an_error() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let image = file(&pattern(0x1_2345));
    fixture.ring.check(&image, (0x45, 0x1_2300), None, 1);
    assert!(matches!(fixture.next(), (1, Ok(()))));
    fixture.ring.check(&image, (0x45, 0x1_2301), None, 2);
    let (2, Err(error)) = fixture.next() else {
        panic!("success");
    };
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(fixture.counts(), (0, 0, 0));
}

#[test]
fn checks_that_go_on_at_once_read_to_buffers_of_their_own() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let (one, mut one_end) = pipe();
    let (other, mut other_end) = pipe();
    fixture.ram.write(0x1000, &[1; 0x1000]).unwrap();
    fixture.ram.write(0x3000, &[2; 0x1000]).unwrap();
    fixture.check((&one, 0), &[(0x1000, 0x1000)], 1);
    fixture.check((&other, 0), &[(0x3000, 0x1000)], 2);
    assert!(fixture.ring.submit());
    one_end.write_all(&[1; 0x1000]).unwrap();
    other_end.write_all(&[2; 0x1000]).unwrap();
    rustix::io::read(&fixture.event_fd, &mut [0; 8]).unwrap();
    let mut ended = [fixture.next(), fixture.next()].map(|(owner, end)| (owner, end.is_ok()));
    ended.sort_unstable();
    assert_eq!(ended, [(1, true), (2, true)]);
}

#[test]
fn what_cannot_be_zeroed_is_an_error() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let image = tempfile::NamedTempFile::new().unwrap();
    let image = RingFile::new(File::open(image.path()).unwrap());
    fixture.ring.zero(&image, (0, 0x1000), true, 1);
    assert!(matches!(fixture.next(), (1, Err(_))));
}

#[test]
fn stop_waits_for_the_step_in_progress_and_no_other() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let (full, mut full_end) = full_pipe();
    fixture.ring.zero(&full, (0, 1 << 30), true, 1);
    // The pipe has no holes, so zeros are written to it.
    assert!(fixture.ring.submit());
    rustix::io::read(&fixture.event_fd, &mut [0; 8]).unwrap();
    assert!(fixture.ring.take_ended().is_none() && fixture.ring.submit());
    let image = file(&pattern(0x1000));
    fixture.start(Direction::Write, (&image, 0), &[(0x4000, 0x1000)], 2);
    assert!(matches!(fixture.next(), (2, Ok(()))));
    let written = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut all = Vec::new();
            full_end.read_to_end(&mut all).unwrap();
            all
        });
        fixture.ring.stop();
        assert!(fixture.ring.is_empty());
        drop(full);
        reader.join().unwrap()
    });
    assert!(matches!(fixture.next(), (1, Err(_))));
    let zeroes = written.iter().filter(|byte| **byte == 0).count();
    assert!((1..=1 << 16).contains(&zeroes), "{zeroes:#x}");
}

#[test]
fn unmap_waits_for_a_transfer_and_none_follows() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk0.flight");
    let recorder = Recorder::create(&path, "disk0", Level::All).unwrap();
    fixture.requester.ledger().record_in(recorder);
    let (slow, mut slow_end) = pipe();
    fixture.start(Direction::Write, (&slow, 0), &[(0x1000, 0x1000)], 1);
    assert!(fixture.ring.submit() && fixture.ring.take_ended().is_none());
    fixture
        .requester
        .unmap(Range::from_bounds(Iova(0x2000), Iova(u64::MAX)).unwrap());
    let requester = fixture.requester.clone();
    std::thread::scope(|scope| {
        let unmap =
            scope.spawn(|| requester.unmap(Range::from_bounds(Iova(0), Iova(0x1fff)).unwrap()));
        slow_end.write_all(&[7; 0x1000]).unwrap();
        assert!(matches!(fixture.next(), (1, Ok(()))));
        unmap.join().unwrap();
    });
    assert_eq!(fixture.ram(0x1000, 0x1000), [7; 0x1000]);
    assert_eq!(fixture.counts(), (1, 0x1000, 0));
    let record = FlightFile::open(&path).unwrap().read().unwrap();
    let record = record.records.iter().map(|record| record.event);
    let [Event::Unmap(before), Event::Dma(dma), Event::Unmap(after)] =
        record.collect::<Vec<_>>()[..]
    else {
        panic!("in another order");
    };
    assert_eq!((before.first(), after.first()), (Iova(0x2000), Iova(0)));
    assert_eq!((dma.address, dma.len), (Iova(0x1000), 0x1000));
}

/// A change of the routes while the host's disk does not answer.
#[test]
fn hung_read_touches_no_memory_after_the_unmap() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    fixture.requester.limit_transfers(Duration::from_millis(1));
    let (slow, mut slow_end) = pipe();
    fixture.start(Direction::Write, (&slow, 0), &[(0x1800, 0x1000)], 1);
    assert!(fixture.ring.submit());
    fixture
        .requester
        .unmap(Range::from_bounds(Iova(0x1000), Iova(0x1fff)).unwrap());
    // Another mapping of the same file is removed without a wait.
    fixture.requester.unmap_all();
    slow_end.write_all(&[5; 0x1000]).unwrap();
    let (1, Err(error)) = fixture.next() else {
        panic!("it succeeded");
    };
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    assert_eq!(fixture.ram(0, 0x4000), [0; 0x4000]);
}

#[test]
fn hung_write_writes_what_was_there_before_the_unmap() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    fixture.requester.limit_transfers(Duration::from_millis(1));
    let data = pattern(0x1000);
    fixture.ram.write(0x1800, &data).unwrap();
    let (full, mut full_end) = full_pipe();
    fixture.start(Direction::Read, (&full, 0), &[(0x1800, 0x1000)], 1);
    assert!(fixture.ring.submit());
    fixture.requester.unmap_all();
    fixture.ram.write(0x1800, &[9; 0x1000]).unwrap();
    let waits = rustix::io::ioctl_fionread(&full_end).unwrap();
    let mut before = vec![0; usize::try_from(waits).unwrap()];
    full_end.read_exact(&mut before).unwrap();
    assert!(matches!(fixture.next(), (1, Err(_))));
    let mut written = [0; 0x1000];
    full_end.read_exact(&mut written).unwrap();
    assert!(written == *data);
}

#[test]
fn requests_after_a_hung_one_fail_until_memory_is_mapped_again() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    fixture.requester.limit_transfers(Duration::from_millis(1));
    let (slow, mut slow_end) = pipe();
    fixture.start(Direction::Write, (&slow, 0), &[(0x1000, 0x1000)], 1);
    assert!(fixture.ring.submit());
    fixture
        .requester
        .unmap(Range::from_bounds(Iova(0x1000), Iova(0x1fff)).unwrap());
    let write = || {
        fixture
            .requester
            .write(Purpose::Payload, Iova(0x4000), &[7; 8])
    };
    assert!(write().is_err());
    fixture.requester.unmap_all();
    let fd = fixture.ram.file().try_clone().unwrap().into();
    let mapped = fixture.requester.map(
        Range::new(Iova(0), RAM_BYTES).unwrap(),
        MapAccess::READ_WRITE,
        Some((fd, 0)),
    );
    mapped.unwrap();
    write().unwrap();
    assert_eq!(fixture.ram(0x4000, 8), [7; 8]);
    slow_end.write_all(&[5; 0x1000]).unwrap();
    assert!(matches!(fixture.next(), (1, Err(_))));
    assert_eq!(fixture.ram(0x1000, 0x1000), [0; 0x1000]);
}

#[test]
fn unpinning_waits_for_transfers_and_leaves_their_outcomes() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let (slow, mut slow_end) = pipe();
    fixture.start(Direction::Write, (&slow, 0), &[(0x1000, 0x1000)], 1);
    std::thread::scope(|scope| {
        scope.spawn(|| slow_end.write_all(&[7; 0x1000]).unwrap());
        fixture.ring.unpin();
    });
    assert!(!fixture.ring.has_pinned());
    assert_eq!(fixture.ram(0x1000, 0x1000), [7; 0x1000]);
    assert!(matches!(fixture.next(), (1, Ok(()))));
}

#[test]
fn a_ring_goes_only_when_its_transfers_have_ended() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let (slow, slow_end) = pipe();
    fixture.start(Direction::Write, (&slow, 0), &[(0x1000, 0x1000)], 1);
    assert!(fixture.ring.submit());
    let Fixture {
        requester,
        ram,
        ring,
        ..
    } = fixture;
    std::thread::scope(|scope| {
        let gone = scope.spawn(|| drop(ring));
        // The end of the file comes before any data.
        drop(slow_end);
        gone.join().unwrap();
    });
    requester.unmap_all();
    let mut data = [7; 0x1000];
    ram.read(0x1000, &mut data).unwrap();
    assert_eq!(data, [0; 0x1000]);
}

#[test]
fn ring_refuses_every_operation_but_its_own() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let (at, stream) = (types::Fd(libc::AT_FDCWD), libc::SOCK_STREAM);
    let pipe = rustix::pipe::pipe().unwrap();
    let [reads, writes] = [&pipe.0, &pipe.1].map(|end| types::Fd(end.as_raw_fd()));
    let forbidden = [
        (
            "open a file",
            opcode::OpenAt::new(at, path.as_ptr())
                .flags(libc::O_CREAT)
                .mode(0o600)
                .build(),
        ),
        (
            "make a folder",
            opcode::MkDirAt::new(at, path.as_ptr()).build(),
        ),
        (
            "make a socket",
            opcode::Socket::new(libc::AF_INET, stream, 0).build(),
        ),
        ("close a file", opcode::Close::new(reads).build()),
        (
            "move data between files",
            opcode::Splice::new(reads, -1, writes, -1, 1).build(),
        ),
        (
            "give a file away",
            opcode::FilesUpdate::new(&raw const at.0, 0).build(),
        ),
        ("nothing", opcode::Nop::new().build()),
    ];
    for (name, entry) in forbidden {
        let ring = &mut fixture.ring.ring;
        // SAFETY: the path, the folder and the descriptors are there until the operation has ended, here below.
        unsafe { ring.submission().push(&entry) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        let done = ring.completion().next().unwrap();
        assert_eq!(done.result(), -libc::EACCES, "{name}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Set in the process of the test below that must end.
const DOOMED: &str = "PEERBAR_TEST_REFUSED_WAIT";

#[test]
fn refused_wait_for_pinned_memory_ends_the_process() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    if std::env::var_os(DOOMED).is_none() {
        let name = "tests::refused_wait_for_pinned_memory_ends_the_process";
        let mut again = Command::new(std::env::current_exe().unwrap());
        let ended = again.args([name, "--exact"]).env(DOOMED, "1").output();
        assert_eq!(ended.unwrap().status.signal(), Some(libc::SIGABRT));
        return;
    }
    rustix::process::setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    )
    .unwrap();
    let (slow, _slow_end) = pipe();
    fixture.start(Direction::Write, (&slow, 0), &[(0x1000, 0x1000)], 1);
    // The ring's descriptor no longer refers to a ring.
    let file = File::open("/dev/null").unwrap();
    // SAFETY: the kernel keeps the ring for its mappings; no other object owns the descriptor that
    // is replaced.
    assert!(unsafe { libc::dup2(file.as_raw_fd(), fixture.ring.ring.as_raw_fd()) } >= 0);
    fixture.ring.unpin();
}
