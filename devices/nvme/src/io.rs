//! The commands of the NVM command set (NVM Command Set 1.0, 3.2).

use std::io;
use std::sync::Arc;

use peerbar_dma::{Origin, Purpose};
use peerbar_nvme_spec::command::nvm::{BlockRange, DatasetManagement, DatasetRange};
use peerbar_nvme_spec::command::{NSID_ALL, NvmOpcode, SubmissionEntry};
use peerbar_nvme_spec::completion::Status;
use zerocopy::FromBytes;

use crate::data::DataPath;
use crate::namespace::{Extent, Namespace, OutOfRange, Straight};
use crate::storage::Storage;

/// How much of a namespace is looked at in one step where no data goes to the host.
const STEP: usize = 1 << 14;

/// What a thread carries I/O commands out with.
pub(crate) struct Io {
    pub(crate) data: DataPath,
    storage: Arc<Storage>,
    tally: Tally,
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
        }
    }

    /// Carries out a command of I/O queue `queue`; how it ends.
    pub(crate) fn execute(&mut self, queue: u16, entry: &SubmissionEntry) -> Status {
        self.data
            .begin(Origin::command(queue, entry.cid.get()), entry.opcode);
        match self.command(entry) {
            Ok(()) => Status::SUCCESS,
            Err(status) => self.storage.failed(queue, entry, status),
        }
    }

    /// Has the health tell of everything that has been done.
    pub(crate) fn settle(&mut self) {
        let Tally {
            reads,
            bytes_read,
            writes,
            bytes_written,
        } = std::mem::take(&mut self.tally);
        if reads > 0 {
            self.storage.health.read(reads, bytes_read);
        }
        if writes > 0 {
            self.storage.health.wrote(writes, bytes_written);
        }
    }

    fn command(&mut self, entry: &SubmissionEntry) -> Result<(), Status> {
        if entry.flags.fuse() != 0 {
            return Err(Status::INVALID_FIELD.with_dnr(true));
        }
        let opcode =
            NvmOpcode::try_from(entry.opcode).map_err(|_| Status::INVALID_OPCODE.with_dnr(true))?;
        match opcode {
            NvmOpcode::Read => return self.read(entry),
            NvmOpcode::Write => return self.write(entry),
            _ => {}
        }
        // The others may take their time with the disk.
        self.data.session.release();
        match opcode {
            NvmOpcode::Flush => self.flush(entry),
            NvmOpcode::Compare => self.compare(entry),
            NvmOpcode::Verify => self.verify(entry),
            NvmOpcode::WriteZeroes => self.write_zeroes(entry),
            NvmOpcode::DatasetManagement => self.dataset_management(entry),
            _ => Err(Status::INVALID_OPCODE.with_dnr(true)),
        }
    }

    /// NVM Command Set 1.0, 3.2 refers to NVMe Base 2.0, 7.1: one namespace, or with the broadcast value all.
    fn flush(&mut self, entry: &SubmissionEntry) -> Result<(), Status> {
        match entry.nsid.get() {
            NSID_ALL => flush_each(&self.storage.namespaces)?,
            nsid => flush_each(std::slice::from_ref(find(&self.storage.namespaces, nsid)?))?,
        }
        Ok(())
    }

    fn read(&mut self, entry: &SubmissionEntry) -> Result<(), Status> {
        let namespace = find(&self.storage.namespaces, entry.nsid.get())?;
        let (extent, len) = transfer(namespace, entry)?;
        match namespace.backend().straight() {
            Straight::Nothing => self.data.check(entry, len)?,
            Straight::Memory(memory) => self.data.send_from(entry, (memory, extent.offset), len)?,
            Straight::No => self.data.send(Purpose::Payload, entry, len, |data| {
                let read = namespace.backend().read(extent.offset, data);
                read.map_err(read_error(namespace))
            })?,
        }
        self.tally.read(extent.len);
        Ok(())
    }

    fn write(&mut self, entry: &SubmissionEntry) -> Result<(), Status> {
        let namespace = find(&self.storage.namespaces, entry.nsid.get())?;
        let (extent, len) = transfer(namespace, entry)?;
        match namespace.backend().straight() {
            Straight::Nothing => self.data.check(entry, len)?,
            Straight::Memory(memory) => {
                self.data
                    .receive_into(entry, (memory, extent.offset), len)?;
            }
            Straight::No => {
                let control = BlockRange::from(entry).control;
                let durable = control.fua() || !self.storage.write_cache();
                let data = self.data.receive(Purpose::Payload, entry, len)?;
                let written = namespace.backend().write(extent.offset, data, durable);
                written.map_err(write_error(namespace))?;
            }
        }
        self.tally.wrote(extent.len);
        Ok(())
    }

    fn compare(&mut self, entry: &SubmissionEntry) -> Result<(), Status> {
        let namespace = find(&self.storage.namespaces, entry.nsid.get())?;
        let (extent, len) = transfer(namespace, entry)?;
        let mut data = self.data.receive(Purpose::Payload, entry, len)?;
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

    fn verify(&mut self, entry: &SubmissionEntry) -> Result<(), Status> {
        let namespace = find(&self.storage.namespaces, entry.nsid.get())?;
        in_steps(namespace, blocks(namespace, entry)?, |_| Ok(()))?;
        Ok(())
    }

    fn write_zeroes(&mut self, entry: &SubmissionEntry) -> Result<(), Status> {
        let namespace = find(&self.storage.namespaces, entry.nsid.get())?;
        let extent = blocks(namespace, entry)?;
        let control = BlockRange::from(entry).control;
        let backend = namespace.backend();
        backend
            .zero(extent.offset, extent.len, control.deac())
            .map_err(write_error(namespace))?;
        if control.fua() || !self.storage.write_cache() {
            backend.flush().map_err(write_error(namespace))?;
        }
        Ok(())
    }

    /// NVM Command Set 1.0, 3.2.3: deallocated blocks read as zero; the other attributes are hints.
    fn dataset_management(&mut self, entry: &SubmissionEntry) -> Result<(), Status> {
        let namespace = find(&self.storage.namespaces, entry.nsid.get())?;
        let command = DatasetManagement::from(entry);
        let len = command.ranges() * size_of::<DatasetRange>();
        let data = self.data.receive(Purpose::Control, entry, len)?;
        let ranges = <[DatasetRange]>::ref_from_bytes(data).map_err(|_| Status::INTERNAL_ERROR)?;
        let extents = || {
            ranges
                .iter()
                .map(|range| namespace.extent(range.slba.get(), range.nlb.get().into()))
        };
        extents()
            .try_for_each(|extent| extent.map(|_| ()))
            .map_err(out_of_range)?;
        for extent in extents()
            .flatten()
            .filter(|extent| command.attributes.ad() && extent.len > 0)
        {
            namespace
                .backend()
                .zero(extent.offset, extent.len, true)
                .map_err(write_error(namespace))?;
        }
        Ok(())
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
    let index = nsid
        .checked_sub(1)
        .and_then(|index| usize::try_from(index).ok());
    index
        .and_then(|index| namespaces.get(index))
        .ok_or(Status::INVALID_NAMESPACE.with_dnr(true))
}

/// The blocks of a command.
fn blocks(namespace: &Namespace, entry: &SubmissionEntry) -> Result<Extent, Status> {
    let range = BlockRange::from(entry);
    namespace
        .extent(range.slba.get(), range.blocks().into())
        .map_err(out_of_range)
}

/// The blocks of a command whose data goes to or comes from the host, and its length. The buffer's length is the
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
    let Extent {
        mut offset,
        len: mut left,
    } = extent;
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

fn out_of_range(error: OutOfRange) -> Status {
    log::debug!("{error}");
    Status::LBA_OUT_OF_RANGE.with_dnr(true)
}

/// The status of a command that the backend could not read for.
fn read_error(namespace: &Namespace) -> impl Fn(io::Error) -> Status {
    |error| {
        namespace.complain("read", &error);
        Status::UNRECOVERED_READ_ERROR
    }
}

/// The status of a command that the backend could not write for.
fn write_error(namespace: &Namespace) -> impl Fn(io::Error) -> Status {
    |error| {
        namespace.complain("written", &error);
        match error.kind() {
            io::ErrorKind::StorageFull => Status::CAPACITY_EXCEEDED,
            _ => Status::WRITE_FAULT,
        }
    }
}
