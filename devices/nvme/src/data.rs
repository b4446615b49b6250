//! The data of commands: its path between the host's memory and a namespace's storage.

use std::sync::Arc;

use peerbar_dma::{
    Direction, DmaError, MappedMemory, Operation, Origin, Pinned, Purpose, Requester, Session, Tag,
};
use peerbar_file_ring::{FileRing, MOST_PARTS};
use peerbar_nvme_spec::command::{NvmOpcode, SubmissionEntry};
use peerbar_nvme_spec::completion::Status;
use peerbar_pci::Iova;

use crate::job::Job;
use crate::late_data::LateData;
use crate::prp::{self, PAGE_BYTES, Segment};
use crate::seeded_fault::{FaultKind, SeededFault};
use crate::sgl::{self, Location, Transfer};

/// Moves the data of commands: directly between two memories; asynchronously by the kernel between
/// memory and a file; or through a buffer that is allocated once.
///
/// Before the thread that answers the guest confirms that memory is unmapped, it waits for the
/// kernel. The completer of a DMA by message may wait for that thread. So no DMA by message is
/// requested while the kernel moves data of this path.
pub(crate) struct DataPath {
    pub(crate) session: Session,
    /// Asynchronous transfers with files, if the kernel permits them.
    pub(crate) files: Option<FileRing<Job>>,
    /// Commands may locate their data by SGLs.
    pub(crate) offers_sgls: bool,
    origin: Origin,
    location: Location,
    /// Buffer for PRP lists and segments of SGLs.
    list: Box<[u8; PAGE_BYTES]>,
    buffer: Vec<u8>,
    seeded_faults: Vec<SeededFault>,
    /// The address of the previous command's data, for the faults that use it.
    stale: Option<Iova>,
}

/// A range of the memory where a namespace keeps its blocks.
#[derive(Clone, Copy)]
pub(crate) struct BlockMemory<'a> {
    pub(crate) memory: &'a MappedMemory,
    pub(crate) offset: u64,
    pub(crate) len: usize,
}

impl DataPath {
    /// Makes a path for transfers of up to `limit` bytes, without asynchronous ones and without
    /// SGLs.
    pub(crate) fn new(
        requester: Arc<Requester>,
        limit: usize,
        seeded_faults: Vec<SeededFault>,
    ) -> Self {
        Self {
            session: Session::new(requester),
            files: None,
            offers_sgls: false,
            origin: Origin::Device,
            location: Location::default(),
            list: Box::new([0; PAGE_BYTES]),
            buffer: vec![0; limit],
            seeded_faults,
            stale: None,
        }
    }

    /// Returns the access to memory.
    pub(crate) fn requester(&self) -> &Requester {
        self.session.requester()
    }

    /// Sets the origin of the following transfers: a command that begins.
    pub(crate) fn begin(&mut self, origin: Origin, command: &SubmissionEntry) {
        self.resume(origin);
        let operation = Operation {
            opcode: command.opcode,
            flags: command.flags.into_bits(),
        };
        self.requester().ledger().begin(origin, operation);
    }

    /// Sets the origin of the following transfers to a command that has begun before.
    pub(crate) fn resume(&mut self, origin: Origin) {
        self.origin = origin;
    }

    /// Checks that the command describes the location of `len` bytes, without moving any. Fails
    /// with the command's status if it does not.
    pub(crate) fn check(&mut self, command: &SubmissionEntry, len: usize) -> Result<(), Status> {
        self.locate(Purpose::Payload, command, len)
    }

    /// Fetches `len` bytes from the command's data pointer. Fails with the command's status if any
    /// byte cannot be read.
    pub(crate) fn receive(
        &mut self,
        purpose: Purpose,
        command: &SubmissionEntry,
        len: usize,
    ) -> Result<&[u8], Status> {
        self.locate(purpose, command, len)?;
        self.gather(purpose, len)
    }

    /// Lets `fill` produce `len` bytes and writes them to the command's data pointer.
    pub(crate) fn send(
        &mut self,
        purpose: Purpose,
        command: &SubmissionEntry,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Status>,
    ) -> Result<(), Status> {
        self.locate(purpose, command, len)?;
        self.fill(purpose, len, fill)
    }

    /// Lets `fill` produce `len` bytes and writes them to the located segments.
    pub(crate) fn fill(
        &mut self,
        purpose: Purpose,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Status>,
    ) -> Result<(), Status> {
        self.session.release();
        fill(self.buffer.get_mut(..len).unwrap_or_default())?;
        self.scatter(purpose, 0, len)
    }

    /// Pins the located segments, so that the kernel can move their data. Returns `None` if the
    /// kernel offers no asynchronous transfers, if a segment is not memory that is mapped here, if
    /// part of the data is discarded, or if the memory has too many parts for one step. Steps may
    /// end inside a logical block, and after a reset no further one follows.
    pub(crate) fn pin(&mut self, direction: Direction) -> Option<(&mut FileRing<Job>, Pinned)> {
        let files = self.files.as_mut()?;
        let Location {
            segments,
            discarded,
        } = &self.location;
        if !discarded.is_empty() || segments.len() > MOST_PARTS {
            return None;
        }
        let tag = Tag::new(Purpose::Payload, self.origin);
        self.session.learn();
        let memory = self.session.pin(tag, direction, ranges(segments))?;
        // A segment in several mappings has several parts.
        if memory.memory().count() > MOST_PARTS {
            return None;
        }
        // From here on, an unmap of this memory waits for the pin, and thus for the transfer,
        // however long it takes. Other unmaps do not.
        self.session.release();
        Some((files, memory))
    }

    /// Reads `data.len()` bytes at `address`.
    pub(crate) fn read(
        &mut self,
        tag: Tag,
        address: Iova,
        data: &mut [u8],
    ) -> Result<(), DmaError> {
        self.upstream().read(tag, address, data)
    }

    /// Writes entries of a queue, like [`Session::write_entries`].
    pub(crate) fn write_entries(
        &mut self,
        tag: Tag,
        address: Iova,
        data: &[u8],
        entry_bytes: usize,
    ) -> Result<(), DmaError> {
        let mut upstream = self.upstream();
        upstream.prepare(tag.purpose, Direction::Write, (address, data.len()));
        upstream
            .session
            .write_entries(tag, address, data, entry_bytes)
    }

    fn upstream(&mut self) -> UpstreamAccess<'_> {
        UpstreamAccess {
            session: &mut self.session,
            files: &mut self.files,
        }
    }

    /// Fetches blocks of `block_bytes` from the memory of the command into a range. If any byte
    /// cannot be read, the range is unchanged, with one exception: if a lender takes its memory
    /// away during the copy, earlier blocks are new, and the block at that point may contain zeros.
    pub(crate) fn receive_into(
        &mut self,
        command: &SubmissionEntry,
        range: BlockMemory<'_>,
        block_bytes: u32,
    ) -> Result<(), Status> {
        let BlockMemory {
            memory,
            offset,
            len,
        } = range;
        self.locate(Purpose::Payload, command, len)?;
        // A block in two segments is moved by two copies, and the second one may fail.
        let mut segments = self.location.segments.iter();
        let block_bytes = u64::from(block_bytes);
        let is_whole = segments.all(|segment| (segment.len as u64) % block_bytes == 0);
        if is_whole && self.is_straight(Purpose::Payload) {
            let (_, done) = self.copy(Direction::Read, range)?;
            if done == len {
                return Ok(());
            }
        }
        let data = self.gather(Purpose::Payload, len)?;
        memory.write(offset, data).map_err(|_| Status::WRITE_FAULT)
    }

    /// Copies a range to the memory of the command.
    pub(crate) fn send_from(
        &mut self,
        command: &SubmissionEntry,
        range: BlockMemory<'_>,
    ) -> Result<(), Status> {
        let BlockMemory {
            memory,
            offset,
            len,
        } = range;
        self.locate(Purpose::Payload, command, len)?;
        self.session.learn();
        let (index, done) = if self.location.discarded.is_empty() {
            self.copy(Direction::Write, range)?
        } else {
            (0, 0)
        };
        if done == len {
            return Ok(());
        }
        let rest = self.buffer.get_mut(..len - done).unwrap_or_default();
        let filled = memory.read(offset + done as u64, rest);
        filled.map_err(|_| Status::UNRECOVERED_READ_ERROR)?;
        self.scatter(Purpose::Payload, index, len - done)
    }

    /// Copies between the segments and a range, up to the first segment whose memory is not mapped
    /// here. Returns the number of segments and bytes copied.
    fn copy(
        &mut self,
        direction: Direction,
        range: BlockMemory<'_>,
    ) -> Result<(usize, usize), Status> {
        let tag = Tag::new(Purpose::Payload, self.origin);
        let mut done = 0;
        let segments = self.location.segments.iter().copied();
        for (index, Segment { address, len }) in segments.enumerate() {
            let memory = (range.memory, range.offset + done as u64);
            let copied = self.session.transfer(tag, direction, address, memory, len);
            let Some(outcome) = copied else {
                return Ok((index, done));
            };
            outcome.map_err(transfer_error)?;
            done += len;
        }
        Ok((self.location.segments.len(), done))
    }

    /// Returns `true` if commands with this PSDT are offered (Identify Controller, SGLS). Without
    /// metadata the two kinds of SGLs mean the same.
    #[inline(always)]
    pub(crate) fn offers(&self, psdt: u8) -> bool {
        psdt == 0 || self.offers_sgls && psdt < 3
    }

    /// Finds the segments of a command's data.
    pub(crate) fn locate(
        &mut self,
        purpose: Purpose,
        command: &SubmissionEntry,
        len: usize,
    ) -> Result<(), Status> {
        if len > self.buffer.len() || !self.offers(command.flags.psdt()) {
            return Err(Status::INVALID_FIELD.with_dnr(true));
        }
        let mut upstream = UpstreamAccess {
            session: &mut self.session,
            files: &mut self.files,
        };
        let tag = Tag::new(Purpose::List, self.origin);
        let read_list = |address, entries: &mut [u8]| {
            upstream.read(tag, address, entries).map_err(transfer_error)
        };
        let (location, page) = (&mut self.location, &mut self.list);
        if command.flags.psdt() == 0 {
            location.discarded.clear();
            let prps = (Iova(command.prp1.get()), Iova(command.prp2.get()));
            prp::walk(prps, len, &mut location.segments, page, read_list)?;
        } else {
            let to_host = command.transfers_to_host();
            let transfer = Transfer { len, to_host };
            sgl::walk(command.sgl1(), transfer, location, page, read_list)?;
        }
        match self.seed_fault(purpose, command) {
            Some(FaultKind::WriteBack) => self.write_back(purpose, command, len),
            _ => Ok(()),
        }
    }

    /// Injects a seeded fault into the command, if a test has configured one. Returns its kind.
    /// Only commands with blocks have a payload.
    fn seed_fault(&mut self, purpose: Purpose, command: &SubmissionEntry) -> Option<FaultKind> {
        if self.seeded_faults.is_empty() || purpose != Purpose::Payload {
            return None;
        }
        let first = self.location.segments.first().map(|first| first.address);
        let before = std::mem::replace(&mut self.stale, first);
        let mut faults = self.seeded_faults.iter();
        let fault = faults.find(|fault| fault.meets(command))?;
        fault.commit(before, &mut self.location.segments);
        Some(fault.kind)
    }

    /// Writes zeros over data that is to be read: a deliberate fault.
    fn write_back(
        &mut self,
        purpose: Purpose,
        command: &SubmissionEntry,
        len: usize,
    ) -> Result<(), Status> {
        if command.opcode == NvmOpcode::Read as u8 {
            return Ok(());
        }
        self.buffer.fill(0);
        self.scatter(purpose, 0, len)
    }

    /// Returns the origin and the segments of the located data, and removes the parts of `bytes`
    /// that are discarded.
    pub(crate) fn located(&self, bytes: &mut Vec<u8>) -> (Origin, Vec<(Iova, usize)>) {
        let transferred = sgl::close_gaps(&self.location.discarded, bytes);
        bytes.truncate(transferred);
        (self.origin, ranges(&self.location.segments).collect())
    }

    /// Writes data whose command has completed.
    pub(crate) fn write_late(&mut self, late: &LateData) -> Result<(), DmaError> {
        self.upstream().wait_for_pinned();
        let tag = Tag::new(Purpose::Payload, late.origin);
        let list = late.ranges.iter().copied();
        self.requester().scatter(tag, list, &late.bytes)
    }

    /// Fetches `len` bytes from the segments into the buffer.
    pub(crate) fn gather(&mut self, purpose: Purpose, len: usize) -> Result<&[u8], Status> {
        let read = if self.is_straight(purpose) {
            self.gather_straight(purpose, len)
        } else {
            self.gather_at_once(purpose, len)
        };
        self.session.release();
        read.map_err(transfer_error)?;
        Ok(self.buffer.get(..len).unwrap_or_default())
    }

    /// Fetches the segments one after the other, without waiting.
    fn gather_straight(&mut self, purpose: Purpose, len: usize) -> Result<(), DmaError> {
        let tag = Tag::new(purpose, self.origin);
        let mut upstream = UpstreamAccess {
            session: &mut self.session,
            files: &mut self.files,
        };
        let mut data = self.buffer.get_mut(..len).unwrap_or_default();
        for segment in &self.location.segments {
            let (part, rest) = data.split_at_mut(segment.len.min(data.len()));
            upstream.read(tag, segment.address, part)?;
            data = rest;
        }
        Ok(())
    }

    /// Fetches the segments as one request, which may need messages to the client or a peer.
    fn gather_at_once(&mut self, purpose: Purpose, len: usize) -> Result<(), DmaError> {
        self.upstream().wait_for_pinned();
        let tag = Tag::new(purpose, self.origin);
        let data = self.buffer.get_mut(..len).unwrap_or_default();
        let requester = self.session.requester();
        requester.gather(tag, ranges(&self.location.segments), data)
    }

    /// Returns `true` if the memory of all segments is mapped here and may be read. This holds
    /// until the session is released.
    fn is_straight(&mut self, purpose: Purpose) -> bool {
        let session = &mut self.session;
        session.learn();
        ranges(&self.location.segments)
            .all(|range| session.reaches(purpose, Direction::Read, range))
    }

    /// Writes the buffer's first `len` bytes to the segments, from the one at `index` on, as one
    /// request, except for the parts that are discarded.
    fn scatter(&mut self, purpose: Purpose, index: usize, len: usize) -> Result<(), Status> {
        self.upstream().wait_for_pinned();
        let data = self.buffer.get_mut(..len).unwrap_or_default();
        let transferred = sgl::close_gaps(&self.location.discarded, data);
        let data = data.get(..transferred).unwrap_or_default();
        let tag = Tag::new(purpose, self.origin);
        let segments = self.location.segments.get(index..).unwrap_or_default();
        self.session
            .requester()
            .scatter(tag, ranges(segments), data)
            .map_err(transfer_error)
    }
}

/// A thread's access to memory that may take a message to the client or a peer, and the kernel's
/// transfers that must end before such a message.
struct UpstreamAccess<'a> {
    session: &'a mut Session,
    files: &'a mut Option<FileRing<Job>>,
}

impl UpstreamAccess<'_> {
    /// Reads from memory that may not be mapped here.
    fn read(&mut self, tag: Tag, address: Iova, data: &mut [u8]) -> Result<(), DmaError> {
        self.prepare(tag.purpose, Direction::Read, (address, data.len()));
        self.session.read(tag, address, data)
    }

    /// Waits for pinned transfers if a request by the session may need a message. Call it before
    /// each request.
    fn prepare(&mut self, purpose: Purpose, direction: Direction, range: (Iova, usize)) {
        self.session.learn();
        let moves = self.files.as_ref().is_some_and(FileRing::has_pinned);
        if moves && !self.session.reaches(purpose, direction, range) {
            self.wait_for_pinned();
        }
    }

    /// Waits until no kernel transfer uses pinned memory: the completer of a message may wait for
    /// that.
    fn wait_for_pinned(&mut self) {
        self.session.release();
        if let Some(files) = self.files {
            files.unpin();
        }
    }
}

/// The segments in the form that `dma` takes: addresses and lengths.
fn ranges(segments: &[Segment]) -> impl Iterator<Item = (Iova, usize)> {
    segments
        .iter()
        .map(|segment| (segment.address, segment.len))
}

/// The status of a command whose DMA failed: never success (NVMe Base 2.0, 3.3.3.2.1, Data Transfer
/// Error).
fn transfer_error(_: DmaError) -> Status {
    Status::DATA_TRANSFER_ERROR
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use peerbar_dma::{MapAccess, MemoryFile, Upstream, UpstreamError, UpstreamRequest};
    use peerbar_file_ring::RingFile;
    use peerbar_pci::Range;
    use zerocopy::FromZeros;

    use super::*;
    use crate::job::Work;
    use peerbar_host::eventfd::EventFd;

    const TIMEOUT: Duration = Duration::from_secs(20);
    const RAM_BYTES: u64 = 0x1_0000;
    /// Addresses that only the client can translate.
    const BEYOND: u64 = RAM_BYTES;

    /// A client that unmaps memory, and answers no request until the unmap is confirmed.
    struct Unmapping {
        requester: Arc<Requester>,
        answered: AtomicU32,
    }

    impl Unmapping {
        fn unmap(&self) -> Result<(), UpstreamError> {
            let (done, wait) = channel();
            let requester = self.requester.clone();
            std::thread::spawn(move || {
                requester.unmap(Range::from_bounds(Iova(0), Iova(0xfff)).unwrap());
                done.send(())
            });
            wait.recv_timeout(TIMEOUT)
                .map_err(|_| UpstreamError::TimedOut)?;
            self.answered.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    impl Upstream for Unmapping {
        fn carry_out(&self, requests: &mut [UpstreamRequest<'_>], _may_go_on: &dyn Fn() -> bool) {
            for ask in requests {
                ask.outcome = Some(self.unmap());
            }
        }
    }

    fn read_to(address: u64) -> SubmissionEntry {
        let mut entry = SubmissionEntry::new_zeroed();
        entry.opcode = NvmOpcode::Read as u8;
        entry.prp1.set(address);
        entry
    }

    /// Returns a requester with RAM from address 0 on, in mappings of these sizes.
    fn requester_with_ram(mappings: &[u64]) -> Arc<Requester> {
        let requester = Arc::new(Requester::new());
        let mut start = 0;
        for &bytes in mappings {
            let ram = MemoryFile::create("ram", bytes).unwrap();
            let fd = ram.file().try_clone().unwrap().into();
            let range = Range::new(Iova(start), bytes).unwrap();
            requester
                .map(range, MapAccess::READ_WRITE, Some((fd, 0)))
                .unwrap();
            start += bytes;
        }
        requester.set_bus_master(true);
        requester
    }

    /// Returns a path with asynchronous transfers, or `None` on a machine that does not permit
    /// io_uring.
    fn path_with_ring(requester: Arc<Requester>) -> Option<DataPath> {
        let mut path = DataPath::new(requester, 0x1000, Vec::new());
        let ring = FileRing::new(EventFd::new().unwrap().as_fd());
        path.files = Some(
            ring.inspect_err(|error| eprintln!("skipped: {error}"))
                .ok()?,
        );
        Some(path)
    }

    /// Returns a path that has memory pinned at 0, and its client, or `None` on a machine that does
    /// not permit io_uring.
    fn pinned() -> Option<(DataPath, Arc<Unmapping>)> {
        let requester = requester_with_ram(&[RAM_BYTES]);
        let client = Arc::new(Unmapping {
            requester: requester.clone(),
            answered: AtomicU32::new(0),
        });
        requester.set_upstream(Some(client.clone()));
        let mut path = path_with_ring(requester)?;
        let image = tempfile::tempfile().unwrap();
        image.set_len(0x1000).unwrap();
        let entry = read_to(0);
        path.locate(Purpose::Payload, &entry, 0x1000).unwrap();
        let job = Job {
            queue: 1,
            entry,
            permit: None,
            locked: None,
            work: Work::Data,
        };
        let file = (&RingFile::new(image), 0);
        let (files, memory) = path.pin(Direction::Write).unwrap();
        files.transfer(file, memory, job);
        assert!(path.files.as_mut().unwrap().submit());
        Some((path, client))
    }

    #[test]
    fn block_in_two_segments_is_unchanged_if_one_is_lost() {
        let requester = Arc::new(Requester::new());
        requester.set_bus_master(true);
        let rams = [0x1000, 0x3000].map(|address| {
            let fd = rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&fd, 0x1000).unwrap();
            rustix::io::pwrite(&fd, &[7; 0x1000], 0).unwrap();
            let lent = fd.try_clone().unwrap();
            requester
                .map(
                    Range::new(Iova(address), 0x1000).unwrap(),
                    MapAccess::READ_WRITE,
                    Some((lent, 0)),
                )
                .unwrap();
            fd
        });
        let [_, lost] = rams;
        rustix::fs::ftruncate(&lost, 0).unwrap();
        let mut path = DataPath::new(requester, 0x1000, Vec::new());
        let disk = MemoryFile::create("disk", 0x1000).unwrap();
        disk.write(0, &[9; 0x1000]).unwrap();
        let mut write = read_to(0x1d00);
        write.opcode = NvmOpcode::Write as u8;
        write.prp2.set(0x3000);
        let range = BlockMemory {
            memory: &disk,
            offset: 0,
            len: 0x400,
        };
        let written = path.receive_into(&write, range, 0x200);
        assert_eq!(written, Err(Status::DATA_TRANSFER_ERROR));
        let mut found = [1; 0x400];
        disk.read(0, &mut found).unwrap();
        assert_eq!(found, [9; 0x400], "neither half of the second block");
    }

    #[test]
    fn memory_of_more_parts_than_a_step_is_not_pinned() {
        let half = RAM_BYTES / 2;
        let requester = requester_with_ram(&[half, half]);
        let Some(mut path) = path_with_ring(requester) else {
            return;
        };
        for (start, count, is_pinned) in [(0, 1024, true), (0, 1025, false), (0x18, 1024, false)] {
            let segment = |at: u64| Segment {
                address: Iova(start + 32 * at),
                len: 16,
            };
            path.location.segments = (0..count).map(segment).collect();
            let pinned = path.pin(Direction::Read).is_some();
            assert_eq!(pinned, is_pinned, "{count} segments from {start:#x} on");
        }
    }

    #[test]
    fn unmap_of_other_memory_does_not_wait_for_a_transfer() {
        let Some((path, client)) = pinned() else {
            return;
        };
        let (done, wait) = channel();
        let requester = client.requester.clone();
        std::thread::spawn(move || {
            requester.unmap(Range::from_bounds(Iova(BEYOND), Iova(BEYOND + 0xfff)).unwrap());
            done.send(())
        });
        assert_eq!(wait.recv_timeout(TIMEOUT), Ok(()));
        assert!(path.files.is_some_and(|files| files.has_pinned()));
    }

    #[test]
    fn no_message_is_sent_while_the_kernel_moves_data() {
        type MemoryRequest = fn(&mut DataPath) -> bool;
        let requests: [MemoryRequest; 4] = [
            |path| {
                path.read(Purpose::Command.into(), Iova(BEYOND), &mut [0; 4])
                    .is_ok()
            },
            |path| {
                let tag = Purpose::Completion.into();
                path.write_entries(tag, Iova(BEYOND), &[0; 4], 4).is_ok()
            },
            |path| path.receive(Purpose::Payload, &read_to(BEYOND), 4).is_ok(),
            |path| {
                let fill = |_: &mut [u8]| Ok(());
                path.send(Purpose::Payload, &read_to(BEYOND), 4, fill)
                    .is_ok()
            },
        ];
        for (index, request) in requests.into_iter().enumerate() {
            let Some((mut path, client)) = pinned() else {
                return;
            };
            assert!(request(&mut path), "request {index}");
            assert_eq!(client.answered.load(Ordering::Relaxed), 1);
            let (job, outcome) = path.files.as_mut().unwrap().take_ended().unwrap();
            assert!(job.queue == 1 && outcome.is_ok());
        }
    }
}
