//! Memory that its lender takes away during DMA: requests there fail, and nothing else does.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use peerbar_dma::{DmaFault, MapAccess, MapError, Purpose, Requester, Session};
use peerbar_pci::{Iova, Range};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::fs::{fallocate, fcntl_add_seals, ftruncate, memfd_create};

const BYTES: u64 = 0x2_0000;
const LEN: usize = 0x2_0000;
/// The address of the memory that stays.
const KEPT: u64 = 0x1000_0000;

fn memory(flags: MemfdFlags, bytes: u64) -> OwnedFd {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("lent", flags).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fd
}

fn map(requester: &Requester, address: u64, bytes: u64, fd: &OwnedFd) -> Result<(), MapError> {
    let fd = fd.try_clone().unwrap();
    requester.map(
        Range::new(Iova(address), bytes).unwrap(),
        MapAccess::READ_WRITE,
        Some((fd, 0)),
    )
}

fn requester() -> Arc<Requester> {
    let requester = Arc::new(Requester::new());
    requester.set_bus_master(true);
    map(&requester, KEPT, BYTES, &memory(MemfdFlags::empty(), BYTES)).unwrap();
    requester
}

/// Uses all of the memory at 0 until that fails, and then once more. The memory that stays can be
/// used all the time.
fn use_until_lost(requester: Arc<Requester>, in_use: &AtomicBool) {
    let mut session = Session::new(requester);
    let mut data = vec![0; LEN];
    loop {
        session
            .read(Purpose::Payload, Iova(KEPT), &mut data)
            .unwrap();
        let read = session.read(Purpose::Payload, Iova(0), &mut data);
        let written = session.write_entries(Purpose::Payload, Iova(0), &data, LEN);
        in_use.store(true, Ordering::Release);
        if let Some(error) = read.and(written).err() {
            assert_eq!(error.cause, DmaFault::NoMemory);
            break;
        }
    }
    assert!(
        session
            .read(Purpose::Payload, Iova(0x2000), &mut [0; 64])
            .is_err()
    );
    assert_eq!(session.load(Iova(0x2000)), None);
    assert!(!session.store(Iova(0x2000), 1));
    session
        .read(Purpose::Payload, Iova(KEPT), &mut data)
        .unwrap();
}

#[test]
fn memory_cut_short_under_load_fails_its_requests_alone() {
    for round in 0..20 {
        let requester = requester();
        let lent = memory(MemfdFlags::empty(), BYTES);
        map(&requester, 0, BYTES, &lent).unwrap();
        let in_use = [const { AtomicBool::new(false) }; 4];
        thread::scope(|scope| {
            for in_use in &in_use {
                let requester = requester.clone();
                scope.spawn(move || use_until_lost(requester, in_use));
            }
            while !in_use.iter().all(|one| one.load(Ordering::Acquire)) {
                thread::yield_now();
            }
            ftruncate(&lent, round % 2 * 0x1000).unwrap();
        });
        requester.unmap(Range::from_bounds(Iova(0), Iova(BYTES - 1)).unwrap());
        ftruncate(&lent, BYTES).unwrap();
        map(&requester, 0, BYTES, &lent).unwrap();
        let mut data = vec![0; LEN];
        requester
            .read(Purpose::Payload, Iova(0), &mut data)
            .unwrap();
    }
}

#[test]
fn memory_is_unmapped_and_mapped_while_other_memory_is_lost() {
    let requester = requester();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let remaps = scope.spawn(|| {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) || rounds < 10 {
                let other = memory(MemfdFlags::empty(), BYTES);
                map(&requester, 2 * KEPT, BYTES, &other).unwrap();
                requester
                    .write(Purpose::Payload, Iova(2 * KEPT), &[7; 64])
                    .unwrap();
                requester
                    .unmap(Range::from_bounds(Iova(2 * KEPT), Iova(2 * KEPT + BYTES - 1)).unwrap());
                rounds += 1;
            }
        });
        for _ in 0..200 {
            let lent = memory(MemfdFlags::empty(), BYTES);
            map(&requester, 0, BYTES, &lent).unwrap();
            ftruncate(&lent, 0).unwrap();
            let failed = requester.write(Purpose::Payload, Iova(0x3000), &[1; 0x3000]);
            assert_eq!(failed.unwrap_err().cause, DmaFault::NoMemory);
            requester.unmap(Range::from_bounds(Iova(0), Iova(BYTES - 1)).unwrap());
        }
        stop.store(true, Ordering::Relaxed);
        remaps.join().unwrap();
    });
}

/// A seal against shrinking does not keep the pages of such a file: a hole may be punched while the
/// pool is empty.
#[test]
fn huge_pages_from_an_empty_pool_fail_their_requests_alone() {
    const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
    const HUGE: u64 = 2 << 20;
    let pages = |kind: &str| std::fs::read_to_string(format!("{POOL}/{kind}"));
    match (pages("free_hugepages"), pages("nr_overcommit_hugepages")) {
        (Ok(free), Ok(more)) if free.trim() == "0" && more.trim() == "0" => {}
        found => return eprintln!("skipped: the pool of huge pages is not empty: {found:?}"),
    }
    let requester = requester();
    let lent = memory(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB, 2 * HUGE);
    fcntl_add_seals(&lent, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&lent, hole, 0, HUGE).unwrap();
    map(&requester, 0, 2 * HUGE, &lent).unwrap();
    let mut data = [0; 64];
    for address in [HUGE + 0x1000, 0] {
        let failed = requester.read(Purpose::Payload, Iova(address), &mut data);
        assert_eq!(failed.unwrap_err().cause, DmaFault::NoMemory);
        requester
            .read(Purpose::Payload, Iova(KEPT), &mut data)
            .unwrap();
    }
}
