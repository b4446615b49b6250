//! Commands on images and in memory.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use peerbar_dma::{MapAccess, MemoryFile, Requester};
use peerbar_nvme_spec::command::NSID_ALL;
use peerbar_pci::{Iova, Range};
use zerocopy::FromZeros;
use zerocopy::little_endian::U32;

use super::*;
use crate::namespace::Backend;
use crate::namespace::Namespace;
use crate::namespace::{FileBackend, RamBackend};
use peerbar_host::eventfd::EventFd;

const RAM_BYTES: u64 = 0x1_0000;

/// Two images and a namespace in memory between them.
fn storage() -> Storage {
    let image = || {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let backend = FileBackend::open(file.path()).unwrap();
        Namespace::new(Box::new(backend), 512, false)
    };
    let ram = Namespace::new(Box::new(RamBackend::new(1 << 20).unwrap()), 512, false);
    Storage::new(vec![image(), ram, image()], None, || {})
}

/// Returns a thread's state with guest memory, all zero, at 0, or `None` on a machine that does not
/// permit io_uring.
fn io_on(storage: Arc<Storage>, event: &EventFd) -> Option<(Io, MemoryFile)> {
    let requester = Arc::new(Requester::new());
    let ram = MemoryFile::create("ram", RAM_BYTES).unwrap();
    let fd = ram.file().try_clone().unwrap().into();
    requester.set_bus_master(true);
    let access = MapAccess::READ_WRITE;
    requester
        .map(
            Range::new(Iova(0), RAM_BYTES).unwrap(),
            access,
            Some((fd, 0)),
        )
        .unwrap();
    let mut data = DataPath::new(requester, 1 << 16, Vec::new());
    let ring = FileRing::new(event.as_fd());
    data.files = Some(
        ring.inspect_err(|error| eprintln!("skipped: {error}"))
            .ok()?,
    );
    Some((Io::new(data, storage), ram))
}

fn io(event: &EventFd) -> Option<Io> {
    Some(io_on(Arc::new(storage()), event)?.0)
}

/// A command on the first eight blocks of a namespace, with its data at `page` of guest memory.
fn on_blocks(opcode: NvmOpcode, nsid: u32, page: u64) -> SubmissionEntry {
    let mut entry = command(opcode, nsid);
    entry.prp1.set(page * 0x1000);
    entry.cdw12.set(7);
    entry
}

/// Waits until the kernel has ended all operations. Returns queue and status of each command.
fn finish(io: &mut Io, event: &EventFd) -> Vec<(u16, Status)> {
    let mut ended = Vec::new();
    loop {
        while let Some(one) = take_ended(io) {
            ended.push(one);
        }
        // That may have started deferred commands.
        assert!(io.submit());
        if io.data.files.as_ref().is_none_or(FileRing::is_empty) {
            break;
        }
        event.wait(None);
    }
    ended
}

fn command(opcode: NvmOpcode, nsid: u32) -> SubmissionEntry {
    let mut entry = SubmissionEntry::new_zeroed();
    entry.opcode = opcode as u8;
    entry.nsid = U32::new(nsid);
    entry
}

/// Executes a command of a queue with a new permit. Returns its status, unless the kernel works on
/// it.
fn execute(io: &mut Io, queue: u16, entry: &SubmissionEntry) -> Option<Status> {
    let permit = Permit::new(&io.generation);
    let ended = io.execute(queue, entry, permit)?;
    ended.permit.expire();
    Some(ended.status)
}

/// Returns queue and status of a command that the kernel has ended.
fn take_ended(io: &mut Io) -> Option<(u16, Status)> {
    let ended = io.take_ended()?;
    ended.permit.expire();
    Some((ended.queue, ended.status))
}

#[test]
fn kernel_flushes_images_while_others_continue() {
    let event = EventFd::new().unwrap();
    let Some(mut io) = io(&event) else {
        return;
    };
    let all = command(NvmOpcode::Flush, NSID_ALL);
    assert_eq!(execute(&mut io, 1, &all), None);
    let of_memory = command(NvmOpcode::Flush, 2);
    assert_eq!(execute(&mut io, 1, &of_memory), Some(Status::SUCCESS));
    let mut durable = command(NvmOpcode::WriteZeroes, 3);
    durable.cdw12.set(1 << 30); // Force Unit Access
    assert_eq!(execute(&mut io, 2, &durable), None);
    let mut ended = Vec::new();
    while ended.len() < 2 {
        assert!(io.submit());
        event.wait(None);
        while let Some(outcome) = take_ended(&mut io) {
            assert_eq!(outcome.1, Status::SUCCESS);
            ended.push(outcome.0);
        }
    }
    ended.sort_unstable();
    assert_eq!(ended, [1, 2]);
}

#[test]
fn write_during_the_end_of_the_write_cache_is_durable() {
    let event = EventFd::new().unwrap();
    let Some(mut io) = io(&event) else {
        return;
    };
    assert_eq!(execute(&mut io, 1, &command(NvmOpcode::Write, 1)), None);
    assert!(io.submit());
    io.storage.set_write_cache(false);
    event.wait(None);
    assert_eq!(take_ended(&mut io), None, "it is written, and to be synced");
    assert!(io.submit());
    event.wait(None);
    assert_eq!(take_ended(&mut io), Some((1, Status::SUCCESS)));
}

#[test]
fn late_permit_after_a_reset_expires() {
    let event = EventFd::new().unwrap();
    let Some(mut io) = io(&event) else {
        return;
    };
    assert_eq!(execute(&mut io, 1, &command(NvmOpcode::Flush, 1)), None);
    io.forget();
    assert_eq!(execute(&mut io, 2, &command(NvmOpcode::Flush, 3)), None);
    let ended = loop {
        assert!(io.submit());
        if let Some(ended) = take_ended(&mut io) {
            break ended;
        }
        event.wait(None);
    };
    assert_eq!(ended, (2, Status::SUCCESS));
}

#[test]
fn commands_with_the_same_blocks_wait_for_each_other() {
    let event = EventFd::new().unwrap();
    let Some((mut io, ram)) = io_on(Arc::new(storage()), &event) else {
        return;
    };
    ram.write(0x1000, &[7; 0x1000]).unwrap();
    let entries = [
        on_blocks(NvmOpcode::Write, 1, 1),
        on_blocks(NvmOpcode::Read, 1, 2),
        on_blocks(NvmOpcode::Compare, 1, 1),
        on_blocks(NvmOpcode::WriteZeroes, 1, 0),
        on_blocks(NvmOpcode::Read, 1, 3),
    ];
    for (queue, entry) in (1..).zip(&entries) {
        assert_eq!(execute(&mut io, queue, entry), None);
    }
    assert_eq!(io.deferred.len(), 4, "all but the first");
    assert_eq!(execute(&mut io, 6, &on_blocks(NvmOpcode::Read, 3, 4)), None);
    assert_eq!(io.deferred.len(), 4, "another namespace");
    let mut ended = finish(&mut io, &event);
    ended.retain(|(queue, status)| *queue < 6 && *status == Status::SUCCESS);
    assert_eq!((ended.len(), ended[0].0), (5, 1));
    let mut pages = [0; 0x2000];
    ram.read(0x2000, &mut pages).unwrap();
    assert_eq!(pages, [[7; 0x1000], [0; 0x1000]].concat()[..]);
    assert!(io.deferred.is_empty());
}

/// Zeroes 64 MiB while Reads of the blocks behind them follow each other, eight at a time. It must
/// end within a number of their completions. `direct`: a thread without io_uring zeroes.
fn zero_during_reads(opcode: NvmOpcode, direct: bool) {
    const DEPTH: u64 = 8;
    const BLOCKS: u64 = 1 << 14;
    let event = EventFd::new().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(2 * BLOCKS * 0x1000).unwrap();
    for block in [0, BLOCKS / 2 + 7, BLOCKS - 1, BLOCKS] {
        let at = block * 0x1000;
        file.as_file().write_all_at(&[7; 0x1000], at).unwrap();
    }
    let image = FileBackend::open(file.path()).unwrap();
    let namespace = Namespace::new(Box::new(image), 4096, true);
    let storage = Arc::new(Storage::new(vec![namespace], None, || {}));
    let Some((mut reader, _ram)) = io_on(storage.clone(), &event) else {
        return;
    };
    let zeroes_event = EventFd::new().unwrap();
    let (mut zeroer, ram) = io_on(storage, &zeroes_event).unwrap();
    if direct {
        zeroer.data.files = None;
    }
    let mut reads = 0_u64;
    let mut read = |io: &mut Io| {
        let mut entry = on_blocks(NvmOpcode::Read, 1, 1);
        let block = BLOCKS + reads.wrapping_mul(0x9e37_79b9_7f4a_7c15) % BLOCKS;
        entry.cdw10.set(u32::try_from(block).unwrap());
        entry.cdw12.set(0);
        reads += 1;
        execute(io, 1, &entry).is_none()
    };
    for _ in 0..DEPTH {
        assert!(read(&mut reader));
    }
    let range = [0_u32, 1 << 14, 0, 0].map(u32::to_le_bytes).concat();
    ram.write(0x2000, &range).unwrap();
    let mut entry = on_blocks(opcode, 1, 2);
    match opcode {
        NvmOpcode::WriteZeroes => entry.cdw12.set((1 << 14) - 1),
        _ => {
            entry.cdw11.set(4); // Deallocate
            entry.cdw12.set(0);
        }
    }
    let mut ended = execute(&mut zeroer, 2, &entry);
    let mut completions = 0;
    let is_started = |io: &Io| {
        io.data
            .files
            .as_ref()
            .is_some_and(|files| !files.is_empty())
    };
    while ended.is_none() {
        assert!(completions < 2000, "{opcode:?} starves");
        assert!(reader.submit() && zeroer.submit());
        if is_started(&reader) {
            event.wait(None);
        }
        while let Some((_, status)) = take_ended(&mut reader) {
            assert_eq!(status, Status::SUCCESS);
            completions += 1;
            read(&mut reader);
        }
        if is_started(&zeroer) {
            zeroes_event.wait(None);
        }
        ended = take_ended(&mut zeroer).map(|(_, status)| status);
    }
    assert_eq!(ended, Some(Status::SUCCESS));
    let mut found = vec![0; 0x1000];
    for (block, byte) in [(0, 0), (BLOCKS / 2 + 7, 0), (BLOCKS - 1, 0), (BLOCKS, 7)] {
        let at = block * 0x1000;
        file.as_file().read_exact_at(&mut found, at).unwrap();
        assert_eq!(found, [byte; 0x1000], "block {block}");
    }
}

#[test]
fn large_extent_is_zeroed_while_reads_continue() {
    for direct in [false, true] {
        zero_during_reads(NvmOpcode::WriteZeroes, direct);
        zero_during_reads(NvmOpcode::DatasetManagement, direct);
    }
}

#[test]
fn thread_is_woken_when_another_unlocks_its_blocks() {
    let event = EventFd::new().unwrap();
    let woken = Arc::new(AtomicU32::new(0));
    let (count, images) = (woken.clone(), storage().namespaces);
    let storage = Arc::new(Storage::new(images, None, move || {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    let Some((mut one, _ram)) = io_on(storage.clone(), &event) else {
        return;
    };
    let (mut other, _other_ram) = io_on(storage, &event).unwrap();
    let read = on_blocks(NvmOpcode::Read, 1, 2);
    assert_eq!(
        execute(&mut one, 1, &on_blocks(NvmOpcode::Write, 1, 1)),
        None
    );
    assert_eq!(execute(&mut other, 2, &read), None);
    assert_eq!(
        (take_ended(&mut other), woken.load(Ordering::Relaxed)),
        (None, 0)
    );
    assert_eq!(finish(&mut one, &event), [(1, Status::SUCCESS)]);
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert_eq!(take_ended(&mut other), None, "it is started");
    assert_eq!(finish(&mut other, &event), [(2, Status::SUCCESS)]);
}

#[test]
fn reset_drops_deferred_commands_and_unlocks_blocks() {
    let event = EventFd::new().unwrap();
    let Some(mut io) = io(&event) else {
        return;
    };
    for queue in [1, 2] {
        let write = on_blocks(NvmOpcode::Write, 1, 1);
        assert_eq!(execute(&mut io, queue, &write), None);
    }
    io.forget();
    assert!(finish(&mut io, &event).is_empty());
    let write = on_blocks(NvmOpcode::Write, 1, 1);
    assert_eq!(execute(&mut io, 3, &write), None);
    assert!(io.deferred.is_empty());
    assert_eq!(finish(&mut io, &event), [(3, Status::SUCCESS)]);
}

#[test]
fn worker_that_stops_in_a_flush_holds_up_no_other_flush() {
    let event = EventFd::new().unwrap();
    let storage = Arc::new(storage());
    let Some((mut io, _ram)) = io_on(storage.clone(), &event) else {
        return;
    };
    assert_eq!(execute(&mut io, 1, &command(NvmOpcode::Flush, 1)), None);
    drop(io);
    assert_eq!(storage.flush_all(), Ok(()));
}

/// An image whose first flush fails once the second, which succeeds, has returned.
struct Failing {
    image: FileBackend,
    flushes: AtomicU32,
    has_succeeded: Barrier,
}

impl Backend for Failing {
    fn size(&self) -> u64 {
        self.image.size()
    }

    fn direct(&self) -> DirectAccess<'_> {
        self.image.direct()
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.image.read(offset, data)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.image.write(offset, data)
    }

    fn zero(&self, range: (u64, u64), deallocate: bool) -> io::Result<()> {
        self.image.zero(range, deallocate)
    }

    fn flush(&self) -> io::Result<()> {
        match self.flushes.fetch_add(1, Ordering::SeqCst) {
            0 => {
                self.has_succeeded.wait();
                Err(rustix::io::Errno::IO.into())
            }
            1 => {
                self.has_succeeded.wait();
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[test]
fn failed_flush_fails_concurrent_and_later_ones() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let failing = Failing {
        image: FileBackend::open(file.path()).unwrap(),
        flushes: AtomicU32::new(0),
        has_succeeded: Barrier::new(2),
    };
    let namespace = Namespace::new(Box::new(failing), 512, true);
    let storage = Arc::new(Storage::new(vec![namespace], None, || {}));
    let fails = Status::WRITE_FAULT.with_more(true);
    let run = |opcode| {
        let requester = Arc::new(Requester::new());
        let data = DataPath::new(requester, 1 << 16, Vec::new());
        let mut io = Io::new(data, storage.clone());
        execute(&mut io, 1, &command(opcode, 1))
    };
    std::thread::scope(|scope| {
        let flushes = [(); 2].map(|()| scope.spawn(|| run(NvmOpcode::Flush)));
        assert_eq!(flushes.map(|flush| flush.join().unwrap()), [Some(fails); 2]);
    });
    for opcode in [NvmOpcode::Flush, NvmOpcode::Write, NvmOpcode::WriteZeroes] {
        assert_eq!(run(opcode), Some(fails), "{opcode:?}");
    }
    assert_eq!(run(NvmOpcode::Verify), Some(Status::SUCCESS), "reads go on");
    assert!(storage.has_lost_data());
}
