//! The commands of the NVM command set (NVM Command Set 1.0, 3.2).

use std::io;
use std::ops::Range;

use peerbar_dma::{Direction, Purpose};
use peerbar_fault::Kind;
use peerbar_nvme_spec::command::nvm::{BlockRange, DatasetManagement, DatasetRange};
use peerbar_nvme_spec::command::{NSID_ALL, NvmOpcode, SubmissionEntry};
use peerbar_nvme_spec::completion::Status;
use zerocopy::FromBytes;

use super::Io;
use super::status::{check_error, data_error, out_of_range, read_error, write_error};
use crate::data::BlockMemory;
use crate::job::{InProgress, Work};
use crate::namespace::{DirectAccess, Extent, LockMode, Namespace, Ticket};

/// Bytes of a namespace that are read in one step if no data is transferred to the host.
const STEP: usize = 1 << 14;

impl Io {
    /// Starts a command.
    #[inline(always)]
    pub(super) fn start(&mut self, command: &mut InProgress<'_>) -> Result<(), Status> {
        let entry = command.entry;
        if entry.flags.fuse() != 0 || !self.data.offers(entry.flags.psdt()) {
            return Err(Status::INVALID_FIELD.with_dnr(true));
        }
        self.storage.check_media()?;
        let opcode =
            NvmOpcode::try_from(entry.opcode).map_err(|_| Status::INVALID_OPCODE.with_dnr(true))?;
        if !matches!(opcode, NvmOpcode::Read | NvmOpcode::Write) {
            // The disk may be slow, and a change of the memory must not wait for it.
            self.data.session.release();
        }
        match opcode {
            NvmOpcode::Flush => self.flush(command),
            NvmOpcode::WriteZeroes => self.write_zeroes(command),
            NvmOpcode::DatasetManagement => self.dataset_management(command),
            _ => self.start_on_blocks(command, opcode),
        }
    }

    /// Starts a command with its blocks locked until it ends. It is deferred if other commands have
    /// them locked.
    #[inline(always)]
    fn start_on_blocks(
        &mut self,
        command: &mut InProgress<'_>,
        opcode: NvmOpcode,
    ) -> Result<(), Status> {
        let entry = command.entry;
        let mode = match opcode {
            NvmOpcode::Read | NvmOpcode::Compare | NvmOpcode::Verify => LockMode::Shared,
            NvmOpcode::Write => LockMode::Exclusive,
            _ => return Err(Status::INVALID_OPCODE.with_dnr(true)),
        };
        let namespace = self.storage.find(entry.nsid.get())?;
        let extent = blocks(namespace, entry)?;
        if !self.storage.lock(command, namespace, extent, mode) {
            self.deferred.push_back(command.job(Work::Start));
            return Ok(());
        }
        match opcode {
            NvmOpcode::Write => self.write(command, extent),
            NvmOpcode::Compare => self.compare(command, extent),
            NvmOpcode::Verify => self.verify(command, extent),
            _ => self.read(command, extent),
        }
    }

    /// Continues a command: the kernel has ended its work for it, or the commands that it waited
    /// for have ended.
    pub(super) fn proceed(
        &mut self,
        command: &mut InProgress<'_>,
        work: Work,
        outcome: io::Result<()>,
    ) -> Result<(), Status> {
        match work {
            Work::Start => self.start(command),
            Work::Data => self.moved_data(command, outcome),
            Work::Check => self.checked(command, outcome),
            Work::Sync { ticket, rest } => {
                let before = self.storage.end_sync(&rest, ticket, outcome.is_ok());
                self.synced(command, before, rest, outcome)
            }
            Work::Synced { before, rest } => self.synced(command, before, rest, outcome),
            Work::Zero(rest) => {
                let namespace = self.storage.find(command.entry.nsid.get())?;
                outcome.map_err(write_error(namespace))?;
                self.zero_rest(command, rest)
            }
        }
    }

    #[inline(always)]
    fn read(&mut self, command: &mut InProgress<'_>, extent: Extent) -> Result<(), Status> {
        let entry = command.entry;
        let len = data_bytes(extent)?;
        let is_armed = self.data.requester().faults().is_armed(Kind::Data);
        if is_armed && self.read_reordered(command, extent, len)? {
            return Ok(());
        }
        let namespace = self.storage.find(entry.nsid.get())?;
        self.copied += match namespace.backend().direct() {
            DirectAccess::Nothing => {
                self.data.check(entry, len)?;
                0
            }
            DirectAccess::Memory(memory) => {
                let range = BlockMemory {
                    memory,
                    offset: extent.offset,
                    len,
                };
                self.data.send_from(entry, range)?;
                extent.len
            }
            DirectAccess::File(file) => {
                self.data.locate(Purpose::Payload, entry, len)?;
                if let Some((files, memory)) = self.data.pin(Direction::Write) {
                    files.transfer((file, extent.offset), memory, command.job(Work::Data));
                    return Ok(());
                }
                self.data.fill(Purpose::Payload, len, |data| {
                    let read = namespace.backend().read(extent.offset, data);
                    read.map_err(read_error(namespace))
                })?;
                extent.len
            }
        };
        self.tally.read(extent.len);
        Ok(())
    }

    fn write(&mut self, command: &mut InProgress<'_>, extent: Extent) -> Result<(), Status> {
        let entry = command.entry;
        let len = data_bytes(extent)?;
        let namespace = self.storage.find(entry.nsid.get())?;
        namespace.check_kept().map_err(write_error(namespace))?;
        self.keep_former(namespace, extent)?;
        self.copied += match namespace.backend().direct() {
            DirectAccess::Nothing => {
                self.data.check(entry, len)?;
                0
            }
            DirectAccess::Memory(memory) => {
                let range = BlockMemory {
                    memory,
                    offset: extent.offset,
                    len,
                };
                self.data
                    .receive_into(entry, range, namespace.block_bytes())?;
                extent.len
            }
            DirectAccess::File(file) => {
                self.data.locate(Purpose::Payload, entry, len)?;
                if let Some((files, memory)) = self.data.pin(Direction::Read) {
                    files.transfer((file, extent.offset), memory, command.job(Work::Data));
                    return Ok(());
                }
                let data = self.data.gather(Purpose::Payload, len)?;
                let written = namespace.backend().write(extent.offset, data);
                written.map_err(write_error(namespace))?;
                extent.len
            }
        };
        self.tally.wrote(extent.len);
        self.sync_written(command, Some(extent))
    }

    /// Continues a Read or Write whose data the kernel has moved.
    fn moved_data(
        &mut self,
        command: &mut InProgress<'_>,
        outcome: io::Result<()>,
    ) -> Result<(), Status> {
        let entry = command.entry;
        let namespace = self.storage.find(entry.nsid.get())?;
        let extent = blocks(namespace, entry)?;
        if entry.opcode == NvmOpcode::Read as u8 {
            outcome.map_err(data_error(read_error(namespace)))?;
            self.tally.read(extent.len);
            return Ok(());
        }
        outcome.map_err(data_error(write_error(namespace)))?;
        self.tally.wrote(extent.len);
        self.sync_written(command, Some(extent))
    }

    fn compare(&mut self, command: &mut InProgress<'_>, extent: Extent) -> Result<(), Status> {
        let entry = command.entry;
        let len = data_bytes(extent)?;
        let namespace = self.storage.find(entry.nsid.get())?;
        self.data.locate(Purpose::Payload, entry, len)?;
        if let DirectAccess::File(file) = namespace.backend().direct() {
            if let Some((files, memory)) = self.data.pin(Direction::Read) {
                let job = command.job(Work::Check);
                files.check(file, (extent.offset, extent.len), Some(memory), job);
                return Ok(());
            }
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

    /// Verify: reads blocks of an image, because only these can have become unreadable.
    fn verify(&mut self, command: &mut InProgress<'_>, extent: Extent) -> Result<(), Status> {
        let namespace = self.storage.find(command.entry.nsid.get())?;
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

    /// Continues a Compare or Verify whose blocks the kernel has read.
    fn checked(
        &mut self,
        command: &mut InProgress<'_>,
        outcome: io::Result<()>,
    ) -> Result<(), Status> {
        let namespace = self.storage.find(command.entry.nsid.get())?;
        outcome.map_err(check_error(namespace))?;
        if command.entry.opcode == NvmOpcode::Compare as u8 {
            self.tally.read(blocks(namespace, command.entry)?.len);
        }
        Ok(())
    }

    /// Flush of one namespace, or of all with the broadcast value (NVM Command Set 1.0, 3.2, which
    /// refers to NVMe Base 2.0, 7.1).
    fn flush(&mut self, command: &mut InProgress<'_>) -> Result<(), Status> {
        let namespaces = match command.entry.nsid.get() {
            NSID_ALL => 0..self.storage.namespaces.len(),
            nsid => self.storage.index_range(nsid)?,
        };
        self.sync_rest(command, namespaces, None)
    }

    /// Completes a write. All written blocks lie in `written`, if that is given. Without a write
    /// cache, or with Force Unit Access, the command completes when they are on stable storage. The
    /// cache may have been turned off, and flushed, while they were written.
    fn sync_written(
        &mut self,
        command: &mut InProgress<'_>,
        written: Option<Extent>,
    ) -> Result<(), Status> {
        let control = BlockRange::from(command.entry).control;
        if self.storage.write_cache() && !control.fua() {
            return Ok(());
        }
        let index = self.storage.index_range(command.entry.nsid.get())?;
        self.sync_rest(command, index, written)
    }

    /// Brings these namespaces, by their indices, to stable storage for a command, one after the
    /// other. If `part` is given, only that part of the first one.
    fn sync_rest(
        &mut self,
        command: &mut InProgress<'_>,
        mut rest: Range<usize>,
        part: Option<Extent>,
    ) -> Result<(), Status> {
        let storage = self.storage.clone();
        while let Some(namespace) = rest.next().and_then(|at| storage.namespaces.get(at)) {
            let DirectAccess::File(file) = namespace.backend().direct() else {
                namespace.settle(part);
                continue;
            };
            namespace.check_kept().map_err(write_error(namespace))?;
            let Some(files) = &mut self.data.files else {
                storage.flush(namespace).map_err(write_error(namespace))?;
                continue;
            };
            let ticket = namespace.syncs().begin();
            if let Some(part) = part {
                namespace.syncs_part(ticket, part);
            }
            let part = part.map(|part| (part.offset, part.len));
            files.sync(file, part, command.job(Work::Sync { ticket, rest }));
            return Ok(());
        }
        Ok(())
    }

    /// Continues after the sync of the namespace before `rest`. It has succeeded if all syncs
    /// before that ticket have.
    fn synced(
        &mut self,
        command: &mut InProgress<'_>,
        before: Ticket,
        rest: Range<usize>,
        outcome: io::Result<()>,
    ) -> Result<(), Status> {
        if let Some(namespace) = self.storage.synced(&rest) {
            outcome.map_err(write_error(namespace))?;
            if !namespace.syncs().have_ended(before) {
                let work = Work::Synced { before, rest };
                self.deferred.push_back(command.job(work));
                return Ok(());
            }
            namespace.check_kept().map_err(write_error(namespace))?;
        }
        self.sync_rest(command, rest, None)
    }

    fn write_zeroes(&mut self, command: &mut InProgress<'_>) -> Result<(), Status> {
        let entry = command.entry;
        let namespace = self.storage.find(entry.nsid.get())?;
        let extent = blocks(namespace, entry)?;
        let mut list = self.list();
        list.push(extent);
        self.zero_rest(command, list)
    }

    /// Dataset Management (NVM Command Set 1.0, 3.2.3): deallocated blocks read as zero. The other
    /// attributes are hints and ignored.
    fn dataset_management(&mut self, command: &mut InProgress<'_>) -> Result<(), Status> {
        let entry = command.entry;
        let mut list = self.list();
        let namespace = self.storage.find(entry.nsid.get())?;
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

    /// Keeps the former contents of blocks before they are written, if a power loss may be
    /// injected.
    fn keep_former(&self, namespace: &Namespace, extent: Extent) -> Result<(), Status> {
        if !self.data.requester().faults().loses_power() {
            return Ok(());
        }
        let kept = namespace.keep_former(extent);
        kept.map_err(read_error(namespace))
    }

    /// Returns an empty list.
    fn list(&mut self) -> Vec<Extent> {
        let mut list = self.lists.pop().unwrap_or_default();
        list.clear();
        list
    }

    /// Makes these extents read as zero for a command, one after the other, each in parts: only a
    /// block has to be zeroed at once (AWUN), and under load all blocks of a large extent are
    /// hardly ever unlocked at the same time.
    fn zero_rest(
        &mut self,
        command: &mut InProgress<'_>,
        mut rest: Vec<Extent>,
    ) -> Result<(), Status> {
        let entry = command.entry;
        let storage = self.storage.clone();
        let namespace = storage.find(entry.nsid.get())?;
        let writes = entry.opcode == NvmOpcode::WriteZeroes as u8;
        let deallocate = !writes || BlockRange::from(entry).control.deac();
        namespace.check_kept().map_err(write_error(namespace))?;
        while let Some(extent) = rest.pop() {
            let Some(start) = storage.lock_start(command, namespace, extent) else {
                rest.push(extent);
                self.deferred.push_back(command.job(Work::Zero(rest)));
                return Ok(());
            };
            if start.len < extent.len {
                rest.push(Extent {
                    offset: extent.offset + start.len,
                    len: extent.len - start.len,
                });
            }
            self.keep_former(namespace, start)?;
            let range = (start.offset, start.len);
            match (&mut self.data.files, namespace.backend().direct()) {
                (Some(files), DirectAccess::File(file)) => {
                    files.zero(file, range, deallocate, command.job(Work::Zero(rest)));
                    return Ok(());
                }
                _ => {
                    let zeroed = namespace.backend().zero(range, deallocate);
                    zeroed.map_err(write_error(namespace))?;
                }
            }
            storage.unlock(entry, command.locked.take());
        }
        self.lists.push(rest);
        if writes {
            return self.sync_written(command, None);
        }
        Ok(())
    }
}

/// Returns the blocks of a command.
fn blocks(namespace: &Namespace, entry: &SubmissionEntry) -> Result<Extent, Status> {
    let range = BlockRange::from(entry);
    namespace
        .extent(range.slba.get(), range.blocks().into())
        .map_err(out_of_range)
}

/// Returns the number of bytes that a command transfers to or from the host. The buffer's length is
/// the limit (Identify Controller, MDTS).
fn data_bytes(extent: Extent) -> Result<usize, Status> {
    usize::try_from(extent.len).map_err(|_| Status::INVALID_FIELD.with_dnr(true))
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
