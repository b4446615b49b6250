//! The admin queue in the driver's memory: commands are fetched from it, and completions posted to
//! it.

use peerbar_dma::{DmaError, Origin, Purpose, Requester, Tag};
use peerbar_efa_spec::admin::{
    ANSWER_BYTES, COMMAND_ID, CommandFlags, CompletionHeader, ENTRY_BYTES, PAYLOAD_BYTES, Status,
    SubmissionHeader, WIDE_ENTRY_BYTES, WideSubmissionHeader, checksum,
};
use peerbar_pci::Iova;
use thiserror::Error;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::entry::{ring_entry, write_word_last};
use crate::registers::AdminSetup;

/// Maximum number of entries of an admin queue. Linux' driver uses 32.
const MAX_DEPTH: u16 = 4096;
/// Its number as an origin of DMA; queue pairs have other numbers.
const QUEUE: u16 = 0;

/// The reason why the admin queue cannot be used until the device is reset.
#[derive(Debug, Error)]
pub(crate) enum QueueError {
    /// Its registers do not describe a queue.
    #[error(
        "admin queue {0:x?}: its depth must be a power of two up to {MAX_DEPTH}, its entries 64 or 128 bytes long"
    )]
    Setup(AdminSetup),
    /// The doorbell claims more commands than the queue has entries.
    #[error(
        "doorbell of the admin queue is {submitted:#x}, with {taken:#x} commands taken of {depth}"
    )]
    Doorbell {
        /// Value of the doorbell.
        submitted: u16,
        /// Number of commands fetched.
        taken: u16,
        /// Number of entries.
        depth: u16,
    },
    /// Its memory cannot be reached.
    #[error(transparent)]
    Memory(#[from] DmaError),
}

/// A fetched command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) id: u16,
    pub(crate) opcode: u8,
    pub(crate) flags: CommandFlags,
    pub(crate) payload: [u8; PAYLOAD_BYTES],
    /// `true` if phase and checksum are correct.
    pub(crate) is_intact: bool,
}

impl Command {
    /// Returns the command as an origin of DMA.
    pub(crate) fn origin(&self) -> Origin {
        Origin::command(QUEUE, self.id)
    }

    /// Returns the payload as `T`, unless `T` is longer.
    pub(crate) fn view<T: FromBytes>(&self) -> Result<T, Status> {
        match T::read_from_prefix(&self.payload) {
            Ok((payload, _)) => Ok(payload),
            Err(_) => Err(Status::MalformedRequest),
        }
    }
}

/// The payload of a completion.
pub(crate) type Answer = [u8; ANSWER_BYTES];

/// The admin submission queue and the admin completion queue.
#[derive(Debug)]
pub(crate) struct AdminQueue {
    submission: u64,
    completion: u64,
    /// Number of entries of each, a power of two.
    depth: u16,
    completion_depth: u16,
    entry_bytes: usize,
    /// Number of commands fetched, modulo 2^16.
    taken: u16,
    /// Number of completions posted, modulo 2^16.
    posted: u16,
    pub(crate) vector: u16,
}

impl AdminQueue {
    pub(crate) fn new(setup: AdminSetup) -> Result<Self, QueueError> {
        let (submission, completion) = (setup.submission_caps, setup.completion_caps);
        let is_depth = |depth: u16| depth.is_power_of_two() && depth <= MAX_DEPTH;
        let entry_bytes = usize::from(submission.entry_size());
        if !is_depth(submission.depth())
            || !is_depth(completion.depth())
            || ![ENTRY_BYTES, WIDE_ENTRY_BYTES].contains(&entry_bytes)
            || usize::from(completion.entry_size()) != ENTRY_BYTES
        {
            return Err(QueueError::Setup(setup));
        }
        Ok(Self {
            submission: setup.submission,
            completion: setup.completion,
            depth: submission.depth(),
            completion_depth: completion.depth(),
            entry_bytes,
            taken: 0,
            posted: 0,
            vector: completion.vector().into(),
        })
    }

    /// Fetches the next command, if the driver has `submitted` more than were fetched.
    pub(crate) fn fetch(
        &mut self,
        requester: &Requester,
        submitted: u16,
    ) -> Result<Option<Command>, QueueError> {
        let depth = self.depth;
        match submitted.wrapping_sub(self.taken) {
            0 => return Ok(None),
            waiting if waiting > depth => {
                return Err(QueueError::Doorbell {
                    submitted,
                    taken: self.taken,
                    depth,
                });
            }
            _ => {}
        }
        let (start, taken) = (self.submission, self.taken.into());
        let (address, phase) = ring_entry(start, depth, self.entry_bytes, taken);
        let mut entry = [0; WIDE_ENTRY_BYTES];
        let fetched = entry.get_mut(..self.entry_bytes).unwrap_or_default();
        let tag = Tag::new(Purpose::Command, Origin::Queue(QUEUE));
        requester.read(tag, Iova(address), fetched)?;
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(parse(fetched, phase)))
    }

    /// Posts the completion of a command.
    pub(crate) fn complete(
        &mut self,
        requester: &Requester,
        command: &Command,
        outcome: Result<Answer, Status>,
    ) -> Result<(), QueueError> {
        let (start, depth) = (self.completion, self.completion_depth);
        let (address, phase) = ring_entry(start, depth, ENTRY_BYTES, self.posted.into());
        let (status, answer) = match outcome {
            Ok(answer) => (Status::Success, answer),
            Err(status) => (status, [0; ANSWER_BYTES]),
        };
        let mut header = CompletionHeader {
            command_id: command.id.into(),
            status: status as u8,
            phase: phase.into(),
            checksum: 0.into(),
            reserved: 0.into(),
        };
        let mut entry = [0; ENTRY_BYTES];
        let (head, tail) = entry.split_at_mut(size_of::<CompletionHeader>());
        head.copy_from_slice(header.as_bytes());
        tail.copy_from_slice(&answer);
        header.checksum = checksum(&entry).into();
        let tag = Tag::new(Purpose::Completion, command.origin());
        let (head, _) = entry.split_at_mut(size_of::<CompletionHeader>());
        head.copy_from_slice(header.as_bytes());
        write_word_last(&entry, 0, |offset, part| {
            requester.write(tag, Iova(address.wrapping_add(offset)), part)
        })?;
        self.posted = self.posted.wrapping_add(1);
        Ok(())
    }
}

fn parse(entry: &[u8], phase: bool) -> Command {
    let header = SubmissionHeader::read_from_prefix(entry);
    let (header, rest) = match header {
        Ok(parsed) => parsed,
        // Cannot happen: an entry is longer than a header.
        Err(_) => (SubmissionHeader::new_zeroed(), &[][..]),
    };
    let is_wide = entry.len() == WIDE_ENTRY_BYTES;
    let skipped = size_of::<WideSubmissionHeader>() - size_of::<SubmissionHeader>();
    let payload = rest.get(if is_wide { skipped } else { 0 }..);
    let payload = payload.and_then(|bytes| bytes.get(..PAYLOAD_BYTES));
    Command {
        id: header.command_id.get() & COMMAND_ID,
        opcode: header.opcode,
        flags: header.flags,
        payload: payload
            .and_then(|bytes| bytes.try_into().ok())
            .unwrap_or([0; PAYLOAD_BYTES]),
        is_intact: header.flags.phase() == phase && (!is_wide || has_checksum(entry)),
    }
}

/// Returns `true` if the checksum of a wide entry is correct.
fn has_checksum(entry: &[u8]) -> bool {
    const AT: usize = size_of::<SubmissionHeader>();
    let mut plain = entry.to_vec();
    let Some(field) = plain.get_mut(AT..AT + 2) else {
        return false;
    };
    let found = [field.first().copied(), field.last().copied()];
    field.fill(0);
    checksum(&plain).to_le_bytes().map(Some) == found
}

#[cfg(test)]
mod tests {
    use peerbar_efa_spec::registers::{AdminQueueCaps, EventQueueCaps};

    use super::*;

    fn setup(depth: u16, entry: u16) -> AdminSetup {
        AdminSetup {
            submission: 0x1000,
            submission_caps: AdminQueueCaps::new()
                .with_depth(depth)
                .with_entry_size(entry),
            completion: 0x2000,
            completion_caps: EventQueueCaps::new().with_depth(depth).with_entry_size(64),
        }
    }

    #[test]
    fn only_possible_queues_can_be_made() {
        for (depth, entry) in [(32, 64), (32, 128), (1, 64), (4096, 64)] {
            AdminQueue::new(setup(depth, entry)).unwrap();
        }
        for (depth, entry) in [(0, 64), (31, 64), (8192, 64), (32, 63), (32, 0)] {
            let message = AdminQueue::new(setup(depth, entry))
                .unwrap_err()
                .to_string();
            assert!(message.contains("power of two"), "{message}");
        }
    }

    #[test]
    fn doorbell_beyond_the_queue_is_refused() {
        let mut queue = AdminQueue::new(setup(32, 64)).unwrap();
        let requester = Requester::new();
        assert!(queue.fetch(&requester, 0).unwrap().is_none());
        let error = queue.fetch(&requester, 33).unwrap_err();
        assert!(matches!(error, QueueError::Doorbell { .. }));
        let error = queue.fetch(&requester, 32).unwrap_err();
        assert!(matches!(error, QueueError::Memory(_)), "there is no memory");
    }

    #[test]
    fn wide_entry_is_intact_with_its_checksum_only() {
        let mut entry = [0u8; WIDE_ENTRY_BYTES];
        entry[..4].copy_from_slice(&[0x34, 0xf2, 16, 1]);
        entry[12] = 7;
        let sum = checksum(&entry);
        assert!(!parse(&entry, true).is_intact);
        entry[4..6].copy_from_slice(&sum.to_le_bytes());
        let command = parse(&entry, true);
        assert!(command.is_intact);
        assert_eq!((command.id, command.opcode), (0x234, 16));
        assert_eq!(command.payload[0], 7);
        assert!(!parse(&entry, false).is_intact, "it is of another round");
        entry[127] = 1;
        assert!(!parse(&entry, true).is_intact);
    }
}
