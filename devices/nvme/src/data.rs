//! A command's data: from the host's memory to the controller's buffer and back.

use std::sync::Arc;

use peerbar_dma::{DmaError, Origin, Purpose, Requester, Tag};
use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::completion::Status;

use crate::prp::{self, Segment};
use crate::seeded_fault::SeededFault;

/// Moves the data of one command at a time through a buffer that is made once.
pub(crate) struct DataPath {
    requester: Arc<Requester>,
    origin: Origin,
    segments: Vec<Segment>,
    buffer: Vec<u8>,
    seeded_faults: Vec<SeededFault>,
}

impl DataPath {
    /// A path for transfers of up to `limit` bytes.
    pub(crate) fn new(
        requester: Arc<Requester>,
        limit: usize,
        seeded_faults: Vec<SeededFault>,
    ) -> Self {
        Self {
            requester,
            origin: Origin::Device,
            segments: Vec::new(),
            buffer: vec![0; limit],
            seeded_faults,
        }
    }

    /// The way to memory.
    pub(crate) fn requester(&self) -> &Requester {
        &self.requester
    }

    /// Whose data it is that moves from now on: that of a command which asks for `opcode`.
    pub(crate) fn begin(&mut self, origin: Origin, opcode: u8) {
        self.origin = origin;
        self.requester.begin(origin, opcode);
    }

    /// Moves nothing; fails as the command must if it does not say where its `len` bytes are.
    pub(crate) fn check(&mut self, command: &SubmissionEntry, len: usize) -> Result<(), Status> {
        if len > self.buffer.len() {
            return Err(Status::INVALID_FIELD.with_dnr(true));
        }
        locate(
            &self.requester,
            self.origin,
            &mut self.segments,
            command,
            len,
        )
    }

    /// Fetches `len` bytes from where the command says. Fails as the command must if any of them cannot be had.
    pub(crate) fn receive(
        &mut self,
        purpose: Purpose,
        command: &SubmissionEntry,
        len: usize,
    ) -> Result<&[u8], Status> {
        let Self {
            requester,
            origin,
            segments,
            buffer,
            seeded_faults,
        } = self;
        let tag = Tag::new(purpose, *origin);
        let data = buffer
            .get_mut(..len)
            .ok_or(Status::INVALID_FIELD.with_dnr(true))?;
        locate(requester, *origin, segments, command, len)?;
        commit(seeded_faults, purpose, command, segments);
        requester
            .gather(tag, places(segments), data)
            .map_err(transfer_error)?;
        Ok(data)
    }

    /// Has `fill` make `len` bytes and brings them to where the command says.
    pub(crate) fn send(
        &mut self,
        purpose: Purpose,
        command: &SubmissionEntry,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let Self {
            requester,
            origin,
            segments,
            buffer,
            seeded_faults,
        } = self;
        let tag = Tag::new(purpose, *origin);
        let data = buffer
            .get_mut(..len)
            .ok_or(Status::INVALID_FIELD.with_dnr(true))?;
        locate(requester, *origin, segments, command, len)?;
        commit(seeded_faults, purpose, command, segments);
        fill(data)?;
        requester
            .scatter(tag, places(segments), data)
            .map_err(transfer_error)
    }
}

fn places(segments: &[Segment]) -> impl Iterator<Item = (u64, usize)> {
    segments
        .iter()
        .map(|segment| (segment.address, segment.len))
}

/// Finds the segments of a command's data. Only PRPs are offered (Identify Controller, SGLS).
fn locate(
    requester: &Requester,
    origin: Origin,
    segments: &mut Vec<Segment>,
    command: &SubmissionEntry,
    len: usize,
) -> Result<(), Status> {
    if command.flags.psdt() != 0 {
        return Err(Status::INVALID_FIELD.with_dnr(true));
    }
    prp::walk(
        (command.prp1.get(), command.prp2.get()),
        len,
        segments,
        |address, entries| {
            requester
                .read(Tag::new(Purpose::List, origin), address, entries)
                .map_err(transfer_error)
        },
    )
}

/// Has the command go wrong if a test asks for that. Only commands with blocks have a payload.
fn commit(
    faults: &[SeededFault],
    purpose: Purpose,
    command: &SubmissionEntry,
    segments: &mut Vec<Segment>,
) {
    let due = |fault: &&SeededFault| purpose == Purpose::Payload && fault.meets(command);
    if let Some(fault) = faults.iter().find(due) {
        fault.commit(segments);
    }
}

/// The status of a command whose DMA failed: never success (NVMe Base 2.0, 3.3.3.2.1, Data Transfer Error).
fn transfer_error(_: DmaError) -> Status {
    Status::DATA_TRANSFER_ERROR
}
