//! The cost of a small read, with few mappings and with many: `cargo bench -p peerbar-dma`.

#![allow(clippy::unwrap_used, reason = "a benchmark panics if it fails")]

use std::cell::Cell;
use std::sync::Arc;

use divan::Bencher;
use peerbar_dma::{CounterFile, Direction, MapAccess, MemoryFile, Purpose, Requester, Session};
use peerbar_pci::{Iova, Range};

const PAGE: u64 = 4096;
const MAPPINGS: [u64; 3] = [16, 4096, 65535];

fn main() {
    divan::main();
}

/// Returns a requester with this number of mappings of one page each, each followed by a gap.
fn requester(mappings: u64) -> Arc<Requester> {
    let memory = MemoryFile::create("bench", mappings * PAGE).unwrap();
    let requester = Requester::new();
    requester.set_bus_master(true);
    for page in 0..mappings {
        // Otherwise the first read of each page would include the page fault.
        memory.write(page * PAGE, &[1]).unwrap();
        let lent = memory.file().try_clone().unwrap().into();
        let backing = Some((lent, page * PAGE));
        requester
            .map(
                Range::new(Iova(page * 2 * PAGE), PAGE).unwrap(),
                MapAccess::READ_WRITE,
                backing,
            )
            .unwrap();
    }
    Arc::new(requester)
}

/// Addresses in mappings that are far apart.
fn addresses(mappings: u64) -> impl Fn() -> u64 {
    let next = Cell::new(0_u64);
    move || {
        next.set((next.get() + 7919) % mappings);
        next.get() * 2 * PAGE
    }
}

#[divan::bench(args = MAPPINGS, sample_size = 10_000)]
fn by_a_request_of_its_own(bencher: Bencher<'_, '_>, mappings: u64) {
    let (requester, address) = (requester(mappings), addresses(mappings));
    bencher.bench_local(|| {
        requester
            .read(Purpose::Payload, Iova(address()), &mut [0; 16])
            .unwrap()
    });
}

#[divan::bench(args = MAPPINGS, sample_size = 10_000)]
fn in_a_session(bencher: Bencher<'_, '_>, mappings: u64) {
    let (requester, address) = (requester(mappings), addresses(mappings));
    let mut session = Session::new(requester);
    bencher.bench_local(|| {
        session
            .read(Purpose::Payload, Iova(address()), &mut [0; 16])
            .unwrap()
    });
}

#[divan::bench(sample_size = 10_000)]
fn in_a_session_by_the_route_of_before(bencher: Bencher<'_, '_>) {
    let mut session = Session::new(requester(16));
    bencher.bench_local(|| {
        session
            .read(Purpose::Payload, Iova(0), &mut [0; 16])
            .unwrap()
    });
}

#[divan::bench(sample_size = 10_000)]
fn in_a_session_that_counts_in_a_file(bencher: Bencher<'_, '_>) {
    let folder = tempfile::TempDir::new().unwrap();
    let file = CounterFile::create(&folder.path().join("counters")).unwrap();
    let requester = requester(16);
    requester.count_in(file);
    let mut session = Session::new(requester);
    bencher.bench_local(|| {
        session
            .read(Purpose::Payload, Iova(0), &mut [0; 16])
            .unwrap()
    });
}

/// Bytes of a large transfer.
const LARGE: usize = 128 << 10;

#[divan::bench(sample_size = 100)]
fn large_copy_in_a_session(bencher: Bencher<'_, '_>) {
    let (ram, disk) = [(); 2].map(|()| filled_memory()).into();
    let requester = Requester::new();
    requester.set_bus_master(true);
    let lent = Some((ram.file().try_clone().unwrap().into(), 0));
    requester
        .map(
            Range::new(Iova(0), LARGE as u64).unwrap(),
            MapAccess::READ_WRITE,
            lent,
        )
        .unwrap();
    let mut session = Session::new(Arc::new(requester));
    bencher.bench_local(|| {
        let moved = session.transfer(
            Purpose::Payload,
            Direction::Write,
            Iova(0),
            (&disk, 0),
            LARGE,
        );
        moved.unwrap().unwrap();
    });
}

#[divan::bench(sample_size = 100)]
fn large_copy_by_memcpy(bencher: Bencher<'_, '_>) {
    let (from, mut to) = (vec![1_u8; LARGE], vec![2_u8; LARGE]);
    bencher.bench_local(|| divan::black_box(&mut to).copy_from_slice(divan::black_box(&from)));
}

fn filled_memory() -> MemoryFile {
    let memory = MemoryFile::create("bench", LARGE as u64).unwrap();
    memory.write(0, &[1; LARGE]).unwrap();
    memory
}
