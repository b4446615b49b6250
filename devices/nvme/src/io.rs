//! The commands of the NVM command set (NVM Command Set 1.0, 3.2).

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use peerbar_dma::{Direction, Origin, Purpose};
use peerbar_fault::{Action, Kind};
use peerbar_file_ring::{Differs, FileRing, MOST};
use peerbar_nvme_spec::command::nvm::{BlockRange, DatasetManagement, DatasetRange};
use peerbar_nvme_spec::command::{NSID_ALL, NvmOpcode, SubmissionEntry};
use peerbar_nvme_spec::completion::Status;
use rustix::io::Errno;
use zerocopy::FromBytes;
use zerocopy::little_endian::U16;

use crate::data::DataPath;
use crate::injected::{Held, HeldBack, Posting};
use crate::io_queue::completion::{Generation, Permit};
use crate::job::{InProgress, Job, Work};
use crate::namespace::{DirectAccess, Extent, Namespace, OutOfRange};
use crate::storage::Storage;

/// How much of a namespace is read in one step where no data is transferred to the host.
const STEP: usize = 1 << 14;

/// What a thread carries I/O commands out with.
pub(crate) struct Io {
    pub(crate) data: DataPath,
    storage: Arc<Storage>,
    tally: Tally,
    /// Permits of earlier generations have expired.
    pub(crate) generation: Generation,
    /// Lists that are not in use: no command need allocate one.
    lists: Vec<Vec<Extent>>,
    held: HeldBack,
}

/// A command that has ended after the kernel worked on it.
pub(crate) struct Ended {
    /// The number of its submission queue.
    pub(crate) queue: u16,
    pub(crate) cid: U16,
    pub(crate) permit: Permit,
    pub(crate) status: Status,
    pub(crate) posting: Posting,
}

/// What has been done and is not in the health yet.
#[derive(Default)]
struct Tally {
    reads: u64,
    bytes_read: u64,
    writes: u64,
    bytes_written: u64,
}

impl Io {
    pub(crate) fn new(data: DataPath, storage: Arc<Storage>) -> Self {
        Self {
            data,
            storage,
            tally: Tally::default(),
            generation: Generation::default(),
            lists: Vec::new(),
            held: HeldBack::default(),
        }
    }

    /// Prefetches the first blocks of a command that comes soon, if they are in memory. It checks nothing.
    pub(crate) fn expect(&self, entry: Option<&SubmissionEntry>) {
        let moves_data = |entry: &&SubmissionEntry| {
            [NvmOpcode::Read as u8, NvmOpcode::Write as u8].contains(&entry.opcode)
        };
        let Some(entry) = entry.filter(moves_data) else {
            return;
        };
        let namespace = find(&self.storage.namespaces, entry.nsid.get()).ok();
        let direct = namespace.map(|namespace| (namespace, namespace.backend().direct()));
        if let Some((namespace, DirectAccess::Memory(memory))) = direct {
            let range = BlockRange::from(entry);
            if let Ok(extent) = namespace.extent(range.slba.get(), range.blocks().into()) {
                memory.prefetch(extent.offset, extent.len);
            }
        }
    }

    /// How many more commands of a queue with `outstanding` ones the kernel can take on, if any need it. Each of `queues` queues has
    /// its share, so that slow commands of one do not hold up another.
    pub(crate) fn free_operations(&self, queues: usize, outstanding: usize) -> usize {
        let Some(files) = &self.data.files else {
            return usize::MAX;
        };
        let share = MOST / queues.max(1);
        share.saturating_sub(outstanding).min(files.free_entries())
    }

    /// How many bytes have been read and written since the last [`Io::settle`].
    pub(crate) fn moved(&self) -> u64 {
        self.tally
            .bytes_read
            .saturating_add(self.tally.bytes_written)
    }

    /// Carries out a command of I/O queue `queue`. Returns how it ends. `None`: the kernel works on it, and its permit comes back
    /// with [`Io::take_ended`].
    pub(crate) fn execute(
        &mut self,
        queue: u16,
        entry: &SubmissionEntry,
        permit: Permit,
    ) -> Option<Ended> {
        let command = Job {
            queue,
            entry,
            permit: Some(permit),
            work: (),
        };
        match self.data.injected(Kind::Command, queue, entry) {
            Some(Action::FailCommand(status)) => self.end(command, Err(status)),
            Some(Action::Delay(by)) => {
                self.held.add(by, Held::Command(command.owned()));
                None
            }
            _ => self.carry_out(command),
        }
    }

    /// Carries out a command that no fault is injected into.
    fn carry_out(&mut self, mut command: InProgress<'_>) -> Option<Ended> {
        let Job { queue, entry, .. } = command;
        let origin = Origin::command(queue, entry.cid.get());
        self.data.begin(origin, entry.opcode);
        let progress = self.command(&mut command);
        self.end(command, progress)
    }

    /// How a command ends, unless its permit is with the kernel's job, or its completion is held back.
    fn end(&mut self, command: InProgress<'_>, progress: Result<(), Status>) -> Option<Ended> {
        let Job { queue, entry, .. } = command;
        let permit = command.permit?;
        let status = match progress {
            Ok(()) => Status::SUCCESS,
            Err(status) => self.storage.failed(queue, entry, status),
        };
        let mut ended = Ended {
            queue,
            cid: entry.cid,
            permit,
            status,
            posting: Posting::Once,
        };
        match self.data.injected(Kind::Completion, queue, entry) {
            Some(Action::Drop) => ended.posting = Posting::Never,
            Some(Action::Duplicate) => ended.posting = Posting::Twice,
            Some(Action::Delay(by)) => {
                self.held.add(by, Held::Completion(ended));
                return None;
            }
            _ => {}
        }
        Some(ended)
    }

    /// When a command or completion that is held back is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.held.due()
    }

    /// A command that has ended since.
    pub(crate) fn take_ended(&mut self) -> Option<Ended> {
        self.take_held().or_else(|| self.take_ended_by_kernel())
    }

    /// A command that has ended, of those that were held back.
    fn take_held(&mut self) -> Option<Ended> {
        loop {
            let ended = match self.held.take_due()? {
                Held::Completion(ended) => Some(ended),
                Held::Command(mut job) => self.carry_out(job.borrowed()),
            };
            if ended.is_some() {
                return ended;
            }
        }
    }

    /// A command that the kernel has ended. A late one, which it ends after a reset, expires.
    fn take_ended_by_kernel(&mut self) -> Option<Ended> {
        loop {
            let (job, outcome) = self.data.files.as_mut()?.take_ended()?;
            let is_current = |permit: &Permit| self.generation.is_current(permit);
            let Some(permit) = job.permit.filter(is_current) else {
                continue;
            };
            let mut command = Job {
                queue: job.queue,
                entry: &job.entry,
                permit: Some(permit),
                work: (),
            };
            let progress = self.proceed(&mut command, job.work, outcome);
            if let Some(ended) = self.end(command, progress) {
                return Some(ended);
            }
        }
    }

    /// The kernel has ended its work for a command.
    fn proceed(
        &mut self,
        command: &mut InProgress<'_>,
        work: Work,
        outcome: io::Result<()>,
    ) -> Result<(), Status> {
        let entry = command.entry;
        let namespaces = &self.storage.namespaces;
        match work {
            Work::Data { durable } => {
                let namespace = find(namespaces, entry.nsid.get())?;
                let bytes = blocks(namespace, entry)?.len;
                if entry.opcode == NvmOpcode::Read as u8 {
                    outcome.map_err(data_error(read_error(namespace)))?;
                    self.tally.read(bytes);
                } else {
                    outcome.map_err(data_error(write_error(namespace)))?;
                    self.tally.wrote(bytes);
                    if !durable && !self.storage.write_cache() {
                        // The cache was turned off, and flushed, while this was under way.
                        return self.flush(command);
                    }
                }
                Ok(())
            }
            Work::Check => {
                let namespace = find(namespaces, entry.nsid.get())?;
                outcome.map_err(check_error(namespace))?;
                if entry.opcode == NvmOpcode::Compare as u8 {
                    self.tally.read(blocks(namespace, entry)?.len);
                }
                Ok(())
            }
            Work::Flush(rest) => {
                let flushed = rest.start.checked_sub(1).and_then(|at| namespaces.get(at));
                if let Some(namespace) = flushed {
                    outcome.map_err(write_error(namespace))?;
                }
                self.flush_rest(command, rest)
            }
            Work::Zero(rest) => {
                let namespace = find(namespaces, entry.nsid.get())?;
                outcome.map_err(write_error(namespace))?;
                self.zero_rest(command, rest)
            }
        }
    }

    /// Hands what has been started to the kernel; whether it has taken it.
    pub(crate) fn submit(&mut self) -> bool {
        self.data.files.as_mut().is_none_or(FileRing::submit)
    }

    /// Whether the kernel works on any command.
    pub(crate) fn is_busy(&self) -> bool {
        let files = self.data.files.as_ref();
        files.is_some_and(|files| !files.is_empty())
    }

    /// Forgets all commands, whose permits expire. The kernel moves or changes no data for them any more.
    pub(crate) fn forget(&mut self) {
        self.data.session.forget();
        if let Some(files) = &mut self.data.files {
            files.stop();
        }
        self.generation.advance();
        self.held.clear();
    }

    /// Adds what has been done to the health log.
    pub(crate) fn settle(&mut self) {
        let tally = std::mem::take(&mut self.tally);
        let health = &self.storage.health;
        if tally.reads > 0 {
            health.read(tally.reads, tally.bytes_read);
        }
        if tally.writes > 0 {
            health.wrote(tally.writes, tally.bytes_written);
        }
    }

    fn command(&mut self, command: &mut InProgress<'_>) -> Result<(), Status> {
        let entry = command.entry;
        if entry.flags.fuse() != 0 {
            return Err(Status::INVALID_FIELD.with_dnr(true));
        }
        let opcode =
            NvmOpcode::try_from(entry.opcode).map_err(|_| Status::INVALID_OPCODE.with_dnr(true))?;
        match opcode {
            NvmOpcode::Read => return self.read(command),
            NvmOpcode::Write => return self.write(command),
            _ => {}
        }
        // The others may take their time with the disk.
        self.data.session.release();
        match opcode {
            NvmOpcode::Flush => self.flush(command),
            NvmOpcode::WriteZeroes => self.write_zeroes(command),
            NvmOpcode::Compare => self.compare(command),
            NvmOpcode::Verify => self.verify(command),
            NvmOpcode::DatasetManagement => self.dataset_management(command),
            _ => Err(Status::INVALID_OPCODE.with_dnr(true)),
        }
    }

    /// NVM Command Set 1.0, 3.2 refers to NVMe Base 2.0, 7.1: one namespace, or with the broadcast value all.
    fn flush(&mut self, command: &mut InProgress<'_>) -> Result<(), Status> {
        let entry = command.entry;
        let all = 0..self.storage.namespaces.len();
        let meant = match entry.nsid.get() {
            NSID_ALL => all,
            nsid => {
                find(&self.storage.namespaces, nsid)?;
                place_of(nsid).map_or(0..0, |place| place..place + 1)
            }
        };
        self.flush_rest(command, meant)
    }

    /// Brings these namespaces, by their places, to stable storage for a command, one after the other.
    fn flush_rest(
        &mut self,
        command: &mut InProgress<'_>,
        mut rest: Range<usize>,
    ) -> Result<(), Status> {
        let storage = self.storage.clone();
        while let Some(namespace) = rest.next().and_then(|at| storage.namespaces.get(at)) {
            match (&mut self.data.files, namespace.backend().direct()) {
                (Some(files), DirectAccess::File(file)) => {
                    files.sync(file, command.job(Work::Flush(rest)));
                    return Ok(());
                }
                _ => flush_each(std::slice::from_ref(namespace))?,
            }
        }
        Ok(())
    }

    fn read(&mut self, command: &mut InProgress<'_>) -> Result<(), Status> {
        let entry = command.entry;
        let namespace = find(&self.storage.namespaces, entry.nsid.get())?;
        let (extent, len) = transfer(namespace, entry)?;
        match namespace.backend().direct() {
            DirectAccess::Nothing => self.data.check(entry, len)?,
            DirectAccess::Memory(memory) => {
                self.data.send_from(entry, (memory, extent.offset), len)?
            }
            DirectAccess::File(file) => {
                self.data.locate(Purpose::Payload, entry, len)?;
                let place = (file, extent.offset);
                if let Some((files, memory)) = self.data.pin(Direction::Write) {
                    let job = command.job(Work::Data { durable: false });
                    files.transfer(place, memory, false, job);
                    return Ok(());
                }
                self.data.fill(Purpose::Payload, len, |data| {
                    let read = namespace.backend().read(extent.offset, data);
                    read.map_err(read_error(namespace))
                })?;
            }
        }
        self.tally.read(extent.len);
        Ok(())
    }

    fn write(&mut self, command: &mut InProgress<'_>) -> Result<(), Status> {
        let entry = command.entry;
        let namespace = find(&self.storage.namespaces, entry.nsid.get())?;
        let (extent, len) = transfer(namespace, entry)?;
        match namespace.backend().direct() {
            DirectAccess::Nothing => self.data.check(entry, len)?,
            DirectAccess::Memory(memory) => {
                self.data
                    .receive_into(entry, (memory, extent.offset), len)?;
            }
            DirectAccess::File(file) => {
                let control = BlockRange::from(entry).control;
                let durable = control.fua() || !self.storage.write_cache();
                self.data.locate(Purpose::Payload, entry, len)?;
                let place = (file, extent.offset);
                if let Some((files, memory)) = self.data.pin(Direction::Read) {
                    let job = command.job(Work::Data { durable });
                    files.transfer(place, memory, durable, job);
                    return Ok(());
                }
                let data = self.data.gather(Purpose::Payload, len)?;
                let written = namespace.backend().write(extent.offset, data, durable);
                written.map_err(write_error(namespace))?;
            }
        }
        self.tally.wrote(extent.len);
        Ok(())
    }

    fn compare(&mut self, command: &mut InProgress<'_>) -> Result<(), Status> {
        let entry = command.entry;
        let namespace = find(&self.storage.namespaces, entry.nsid.get())?;
        let (extent, len) = transfer(namespace, entry)?;
        self.data.locate(Purpose::Payload, entry, len)?;
        if let DirectAccess::File(file) = namespace.backend().direct()
            && let Some((files, memory)) = self.data.pin(Direction::Read)
        {
            let job = command.job(Work::Check);
            files.check(file, (extent.offset, extent.len), Some(memory), job);
            return Ok(());
        }
        let mut data = self.data.gather(Purpose::Payload, len)?;
        in_steps(namespace, extent, |stored| {
            let (expected, rest) = data
                .split_at_checked(stored.len())
                .ok_or(Status::INTERNAL_ERROR)?;
            data = rest;
            if expected == stored {
                Ok(())
            } else {
                Err(Status::COMPARE_FAILURE)
            }
        })?;
        self.tally.read(extent.len);
        Ok(())
    }

    /// Only what is in an image can have become unreadable.
    fn verify(&mut self, command: &mut InProgress<'_>) -> Result<(), Status> {
        let entry = command.entry;
        let namespace = find(&self.storage.namespaces, entry.nsid.get())?;
        let extent = blocks(namespace, entry)?;
        let DirectAccess::File(file) = namespace.backend().direct() else {
            return Ok(());
        };
        let Some(files) = &mut self.data.files else {
            return in_steps(namespace, extent, |_| Ok(()));
        };
        let job = command.job(Work::Check);
        files.check(file, (extent.offset, extent.len), None, job);
        Ok(())
    }

    fn write_zeroes(&mut self, command: &mut InProgress<'_>) -> Result<(), Status> {
        let entry = command.entry;
        let namespace = find(&self.storage.namespaces, entry.nsid.get())?;
        let extent = blocks(namespace, entry)?;
        let mut list = self.list();
        list.push(extent);
        self.zero_rest(command, list)
    }

    /// NVM Command Set 1.0, 3.2.3: deallocated blocks read as zero; the other attributes are hints.
    fn dataset_management(&mut self, command: &mut InProgress<'_>) -> Result<(), Status> {
        let entry = command.entry;
        let mut list = self.list();
        let namespace = find(&self.storage.namespaces, entry.nsid.get())?;
        let fields = DatasetManagement::from(entry);
        let len = fields.ranges() * size_of::<DatasetRange>();
        let data = self.data.receive(Purpose::Control, entry, len)?;
        let ranges = <[DatasetRange]>::ref_from_bytes(data).map_err(|_| Status::INTERNAL_ERROR)?;
        for range in ranges {
            let extent = namespace.extent(range.slba.get(), range.nlb.get().into());
            list.push(extent.map_err(out_of_range)?);
        }
        list.retain(|extent| fields.attributes.ad() && extent.len > 0);
        self.zero_rest(command, list)
    }

    /// An empty list.
    fn list(&mut self) -> Vec<Extent> {
        let mut list = self.lists.pop().unwrap_or_default();
        list.clear();
        list
    }

    /// Makes these extents read as zero for a command, one after the other.
    fn zero_rest(
        &mut self,
        command: &mut InProgress<'_>,
        mut rest: Vec<Extent>,
    ) -> Result<(), Status> {
        let entry = command.entry;
        let namespace = find(&self.storage.namespaces, entry.nsid.get())?;
        let control = BlockRange::from(entry).control;
        let writes = entry.opcode == NvmOpcode::WriteZeroes as u8;
        let deallocate = !writes || control.deac();
        while let Some(Extent { offset, len }) = rest.pop() {
            match (&mut self.data.files, namespace.backend().direct()) {
                (Some(files), DirectAccess::File(file)) => {
                    let job = command.job(Work::Zero(rest));
                    files.zero(file, (offset, len), deallocate, job);
                    return Ok(());
                }
                _ => namespace
                    .backend()
                    .zero(offset, len, deallocate)
                    .map_err(write_error(namespace))?,
            }
        }
        self.lists.push(rest);
        if writes && (control.fua() || !self.storage.write_cache()) {
            return self.flush(command);
        }
        Ok(())
    }
}

impl Drop for Io {
    /// Commands that the kernel still works on expire with their worker.
    fn drop(&mut self) {
        self.generation.advance();
    }
}

impl Tally {
    fn read(&mut self, bytes: u64) {
        self.reads += 1;
        self.bytes_read += bytes;
    }

    fn wrote(&mut self, bytes: u64) {
        self.writes += 1;
        self.bytes_written += bytes;
    }
}

/// Brings what is in these namespaces to stable storage.
pub(crate) fn flush_each(namespaces: &[Namespace]) -> Result<(), Status> {
    for namespace in namespaces {
        let flushed = namespace.backend().flush();
        flushed.map_err(write_error(namespace))?;
    }
    Ok(())
}

/// The namespace of an NSID (NVMe Base 2.0, 3.2.1): 1 for the first.
pub(crate) fn find(namespaces: &[Namespace], nsid: u32) -> Result<&Namespace, Status> {
    place_of(nsid)
        .and_then(|place| namespaces.get(place))
        .ok_or(Status::INVALID_NAMESPACE.with_dnr(true))
}

fn place_of(nsid: u32) -> Option<usize> {
    usize::try_from(nsid.checked_sub(1)?).ok()
}

/// The blocks of a command.
fn blocks(namespace: &Namespace, entry: &SubmissionEntry) -> Result<Extent, Status> {
    let range = BlockRange::from(entry);
    namespace
        .extent(range.slba.get(), range.blocks().into())
        .map_err(out_of_range)
}

/// The blocks of a command that transfers data to or from the host, and its length. The buffer's length is the
/// limit (Identify Controller, MDTS).
fn transfer(namespace: &Namespace, entry: &SubmissionEntry) -> Result<(Extent, usize), Status> {
    let extent = blocks(namespace, entry)?;
    let len = usize::try_from(extent.len).map_err(|_| Status::INVALID_FIELD.with_dnr(true))?;
    Ok((extent, len))
}

/// Reads an extent step by step.
fn in_steps(
    namespace: &Namespace,
    extent: Extent,
    mut step: impl FnMut(&[u8]) -> Result<(), Status>,
) -> Result<(), Status> {
    let mut buffer = [0; STEP];
    let (mut offset, mut left) = (extent.offset, extent.len);
    while left > 0 {
        let len = usize::try_from(left).map_or(STEP, |left| left.min(STEP));
        let part = buffer.get_mut(..len).ok_or(Status::INTERNAL_ERROR)?;
        namespace
            .backend()
            .read(offset, part)
            .map_err(read_error(namespace))?;
        step(part)?;
        offset += len as u64;
        left -= len as u64;
    }
    Ok(())
}

/// The status of a command if the kernel could not move its data, because of the memory or for another reason.
fn data_error(other: impl Fn(io::Error) -> Status) -> impl Fn(io::Error) -> Status {
    move |error| match Errno::from_io_error(&error) {
        Some(Errno::FAULT) => Status::DATA_TRANSFER_ERROR,
        _ => other(error),
    }
}

/// The status of a command if its blocks could not be read, or differ from what they were compared with.
fn check_error(namespace: &Namespace) -> impl Fn(io::Error) -> Status {
    move |error| match error.get_ref() {
        Some(cause) if cause.is::<Differs>() => Status::COMPARE_FAILURE,
        _ => data_error(read_error(namespace))(error),
    }
}

fn out_of_range(error: OutOfRange) -> Status {
    log::debug!("{error}");
    Status::LBA_OUT_OF_RANGE.with_dnr(true)
}

/// The status of a command if the backend could not read.
fn read_error(namespace: &Namespace) -> impl Fn(io::Error) -> Status {
    |error| {
        namespace.complain("read", &error);
        Status::UNRECOVERED_READ_ERROR
    }
}

/// The status of a command if the backend could not write.
fn write_error(namespace: &Namespace) -> impl Fn(io::Error) -> Status {
    |error| {
        namespace.complain("written", &error);
        match error.kind() {
            io::ErrorKind::StorageFull => Status::CAPACITY_EXCEEDED,
            _ => Status::WRITE_FAULT,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use peerbar_dma::{MemoryFile, Requester};
    use zerocopy::FromZeros;
    use zerocopy::little_endian::U32;

    use super::*;
    use crate::event_fd::EventFd;
    use crate::namespace::{FileBackend, RamBackend};

    /// Two images and a namespace in memory between them; `None` on a machine that permits no io_uring.
    fn io(event: &EventFd) -> Option<Io> {
        let image = || {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(1 << 20).unwrap();
            let backend = FileBackend::open(file.path()).unwrap();
            Namespace::new(Box::new(backend), 512)
        };
        let ram = Namespace::new(Box::new(RamBackend::new(1 << 20).unwrap()), 512);
        let storage = Storage::new(vec![image(), ram, image()]);
        let mut data = DataPath::new(Arc::new(Requester::new()), 1 << 16, Vec::new());
        let ring = FileRing::new(event.as_fd());
        data.files = Some(
            ring.inspect_err(|error| eprintln!("skipped: {error}"))
                .ok()?,
        );
        Some(Io::new(data, Arc::new(storage)))
    }

    fn command(opcode: NvmOpcode, nsid: u32) -> SubmissionEntry {
        let mut entry = SubmissionEntry::new_zeroed();
        entry.opcode = opcode as u8;
        entry.nsid = U32::new(nsid);
        entry
    }

    /// Carries out a command of a queue with a permit of its own; how it ends, unless the kernel works on it.
    fn execute(io: &mut Io, queue: u16, entry: &SubmissionEntry) -> Option<Status> {
        let permit = Permit::new(&io.generation);
        let ended = io.execute(queue, entry, permit)?;
        ended.permit.expire();
        Some(ended.status)
    }

    /// Queue and status of a command that the kernel has ended.
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
        let ram = MemoryFile::create("ram", 0x1000).unwrap();
        let fd = ram.file().try_clone().unwrap().into();
        let requester = io.data.requester();
        requester.set_bus_master(true);
        requester
            .map(0, 0x1000, (true, true), Some((fd, 0)))
            .unwrap();
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
}
