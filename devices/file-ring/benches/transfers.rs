//! Reads and writes of an image in the page cache, many at once: by the kernel directly to memory,
//! and by one system call each into a buffer that is then copied.
#![allow(clippy::unwrap_used, missing_docs, reason = "benchmarks")]

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use divan::Bencher;
use divan::counter::ItemsCount;
use peerbar_dma::{Direction, MapAccess, MemoryFile, Purpose, Requester, Session};
use peerbar_file_ring::{FileRing, RingFile};
use peerbar_pci::{Iova, Range};
use rustix::event::{EventfdFlags, eventfd};

const BYTES: usize = 16 << 20;
/// Transfers that are submitted at once.
const BATCH: usize = 32;
const SIZES: [usize; 3] = [4 << 10, 16 << 10, 128 << 10];

fn main() {
    divan::main();
}

/// Makes an image, and guest RAM of the same size.
fn fixture() -> (RingFile, Session) {
    let image = tempfile::tempfile().unwrap();
    image.write_all_at(&vec![7; BYTES], 0).unwrap();
    let requester = Arc::new(Requester::new());
    requester.set_bus_master(true);
    let ram = MemoryFile::create("ram", BYTES as u64).unwrap();
    ram.write(0, &vec![1; BYTES]).unwrap();
    let fd = ram.file().try_clone().unwrap().into();
    let access = MapAccess::READ_WRITE;
    requester
        .map(
            Range::new(Iova(0), BYTES as u64).unwrap(),
            access,
            Some((fd, 0)),
        )
        .unwrap();
    (RingFile::new(image), Session::new(requester))
}

/// Returns addresses in random order, each of this many bytes.
fn addresses(bytes: usize) -> impl Iterator<Item = u64> {
    let mut at = 1_usize;
    std::iter::repeat_with(move || {
        at = at * 1237 % (BYTES / bytes);
        (at * bytes) as u64
    })
}

fn by_the_kernel(bencher: Bencher, bytes: usize, direction: Direction) {
    let (image, mut session) = fixture();
    let event_fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let mut ring = FileRing::new(event_fd.as_fd()).unwrap();
    let mut addresses = addresses(bytes);
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        for address in addresses.by_ref().take(BATCH) {
            let memory = session.pin(Purpose::Payload, direction, [(Iova(address), bytes)]);
            ring.transfer((&image, address), memory.unwrap(), ());
        }
        session.release();
        assert!(ring.submit());
        ring.unpin();
        while ring.take_ended().is_some() {}
    });
}

#[divan::bench(args = SIZES)]
fn reads_by_the_kernel(bencher: Bencher, bytes: usize) {
    by_the_kernel(bencher, bytes, Direction::Write);
}

#[divan::bench(args = SIZES)]
fn writes_by_the_kernel(bencher: Bencher, bytes: usize) {
    by_the_kernel(bencher, bytes, Direction::Read);
}

#[divan::bench(args = SIZES)]
fn reads_through_a_buffer(bencher: Bencher, bytes: usize) {
    let (image, session) = fixture();
    let mut buffer = vec![0; bytes];
    let mut addresses = addresses(bytes);
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        for address in addresses.by_ref().take(BATCH) {
            image.file().read_exact_at(&mut buffer, address).unwrap();
            let requester = session.requester();
            requester
                .write(Purpose::Payload, Iova(address), &buffer)
                .unwrap();
        }
    });
}

#[divan::bench(args = SIZES)]
fn writes_through_a_buffer(bencher: Bencher, bytes: usize) {
    let (image, session) = fixture();
    let mut buffer = vec![0; bytes];
    let mut addresses = addresses(bytes);
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        for address in addresses.by_ref().take(BATCH) {
            let requester = session.requester();
            let read = requester.read(Purpose::Payload, Iova(address), &mut buffer);
            read.unwrap();
            image.file().write_all_at(&buffer, address).unwrap();
        }
    });
}
