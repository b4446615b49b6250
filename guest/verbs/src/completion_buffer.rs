//! Completion queues in a program's buffer, in guest RAM or in VRAM (efadv_create_cq(3) of
//! rdma-core 59).

use std::cell::Cell;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::time::Duration;

use peerbar_efa_spec::completion::{
    CompletionCommon, CompletionFlags, CompletionStatus, EXTENDED_ENTRY_BYTES, ExtendedCompletion,
    QueueType,
};
use peerbar_efa_spec::work::Operation;
use peerbar_gds::Mapping;

use crate::completion::wait;
use crate::uverbs::{self, Value};
use crate::{Completion, Context, Error, Result, Status};

/// `UVERBS_OBJECT_CQ`.
const OBJECT: u16 = 3;
/// `UVERBS_METHOD_CQ_CREATE` and `…_DESTROY`.
const CREATE: u16 = 0;
const DESTROY: u16 = 1;
/// `UVERBS_ATTR_CREATE_CQ_…`, after that of the handle, which is 0.
mod attribute {
    pub(super) const ENTRIES: u16 = 1;
    pub(super) const USER_HANDLE: u16 = 2;
    pub(super) const VECTOR: u16 = 4;
    pub(super) const ANSWER: u16 = 6;
    pub(super) const ADDRESS: u16 = 8;
    pub(super) const LENGTH: u16 = 9;
    pub(super) const FILE: u16 = 10;
    pub(super) const OFFSET: u16 = 11;
    /// `UVERBS_ATTR_UHW_IN`.
    pub(super) const DRIVER: u16 = 1 << 12;
}
/// `UVERBS_ATTR_DESTROY_CQ_RESP`.
const DESTROYED: u16 = 1;
/// Bytes of an entry.
const ENTRY: u64 = EXTENDED_ENTRY_BYTES as u64;

/// Memory of a completion queue, mapped into this process.
pub trait CompletionMemory {
    /// Returns the mapping, which is always the same.
    fn mapping(&self) -> &Mapping;
}

impl CompletionMemory for Mapping {
    fn mapping(&self) -> &Mapping {
        self
    }
}

/// A completion, and the queue of its queue pair that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The completed request. Its number is the request's index, from 0, among all that the program
    /// has posted to its queue.
    pub completion: Completion,
    /// `true` if it belongs to a receive.
    pub is_receive: bool,
}

/// A completion queue of 32-byte entries in a buffer, until it is dropped. The adapter does not
/// learn which entries are consumed, so the program must not have more completions outstanding than
/// there are entries. Queue pairs hold it as long as they live.
pub struct CompletionBuffer {
    context: Context,
    handle: u32,
    memory: Rc<dyn CompletionMemory>,
    offset: u64,
    entries: u32,
    consumed: Cell<u64>,
}

impl CompletionBuffer {
    /// Makes a queue of `entries` entries, a power of two, in this part of memory of this process,
    /// which must be whole pages.
    ///
    /// # Errors
    /// [`Error::Refused`]: with EINVAL if the part is too short, or not contiguous for the adapter.
    pub fn in_memory(
        context: &Context,
        memory: Rc<Mapping>,
        part: Range<u64>,
        entries: u32,
    ) -> Result<Self> {
        let pointer = memory.pointer(part.clone());
        let (start, _) =
            pointer.map_err(Error::refused("find the memory of a completion queue"))?;
        let address = start.as_ptr().expose_provenance() as u64;
        let buffer = [
            (attribute::ADDRESS, Value::Number(address)),
            (attribute::LENGTH, Value::Number(length(&part))),
        ];
        Self::new(context, &buffer, (memory, part), entries)
    }

    /// Makes a queue in this part of a dma-buf, whose memory stays where it is as long as the queue
    /// lives, and which is mapped as `memory`.
    ///
    /// # Errors
    /// As above, and with EOPNOTSUPP if the exporter does not allow its memory to be pinned.
    pub fn in_dma_buf(
        context: &Context,
        dma_buf: impl AsFd,
        memory: Rc<dyn CompletionMemory>,
        part: Range<u64>,
        entries: u32,
    ) -> Result<Self> {
        let descriptor = dma_buf.as_fd().as_raw_fd();
        let buffer = [
            (attribute::FILE, Value::File(descriptor)),
            (attribute::OFFSET, Value::Number(part.start)),
            (attribute::LENGTH, Value::Number(length(&part))),
        ];
        Self::new(context, &buffer, (memory, part), entries)
    }

    fn new(
        context: &Context,
        buffer: &[(u16, Value<'_>)],
        (memory, part): (Rc<dyn CompletionMemory>, Range<u64>),
        entries: u32,
    ) -> Result<Self> {
        let what = "create a completion queue in a buffer";
        let answer = Cell::new(0);
        let driver = driver_data();
        let common = [
            (0, Value::Object(0)),
            (attribute::ENTRIES, Value::Word(entries)),
            (attribute::USER_HANDLE, Value::Number(0)),
            (attribute::VECTOR, Value::Word(0)),
            (attribute::ANSWER, Value::Answer(&answer)),
            (attribute::DRIVER, Value::Driver(&driver)),
        ];
        let attributes: Vec<_> = common.iter().chain(buffer).copied().collect();
        let created = uverbs::call(context.device_file(), (OBJECT, CREATE), &attributes);
        let handle = created.map_err(Error::refused(what))?;
        let queue = Self {
            context: context.clone(),
            handle,
            memory,
            offset: part.start,
            entries,
            consumed: Cell::new(0),
        };
        // The phase of an entry that was never written is 0. No queue pair has the queue yet.
        let zeros = vec![0; usize::try_from(u64::from(entries) * ENTRY).unwrap_or_default()];
        let cleared = queue.memory.mapping().write(part.start, &zeros);
        cleared.map_err(|error| Error::refused(what)(std::io::Error::other(error)))?;
        Ok(queue)
    }

    /// Returns the kernel's handle of it.
    pub(crate) fn handle(&self) -> u32 {
        self.handle
    }

    /// Returns the number of completions so far.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.consumed.get()
    }

    /// Returns the next completion, if there is one.
    ///
    /// # Errors
    /// [`Error::Refused`] if the mapping is shorter than the queue.
    pub fn poll(&self) -> Result<Option<Entry>> {
        let (offset, phase) = offset_and_phase(self.offset, self.entries, self.consumed.get());
        let mapping = self.memory.mapping();
        let what = "read a completion queue in a buffer";
        let head = mapping.load64(offset);
        let head = head.map_err(|error| Error::refused(what)(std::io::Error::other(error)))?;
        if flags(head).phase() != phase {
            return Ok(None);
        }
        let mut bytes = [0; EXTENDED_ENTRY_BYTES];
        let read = mapping.read(offset, &mut bytes);
        read.map_err(|error| Error::refused(what)(std::io::Error::other(error)))?;
        self.consumed.set(self.consumed.get() + 1);
        Ok(Some(entry(&bytes)))
    }

    /// Returns the next completion, which must arrive within `limit`.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Refused`].
    pub fn wait(&self, limit: Duration) -> Result<Entry> {
        wait(limit, || self.poll())
    }
}

impl Drop for CompletionBuffer {
    fn drop(&mut self) {
        let answer = Cell::new(0);
        let attributes = [
            (0, Value::Object(self.handle)),
            (DESTROYED, Value::LongAnswer(&answer)),
        ];
        // A queue that is in use ends with the context.
        let _ = uverbs::call(self.context.device_file(), (OBJECT, DESTROY), &attributes);
    }
}

fn length(part: &Range<u64>) -> u64 {
    part.end.saturating_sub(part.start)
}

/// Returns `struct efa_ibv_create_cq`: entries of 32 bytes, in one part, without events.
fn driver_data() -> [u8; 16] {
    const ENTRY_SIZE: usize = 4;
    const PARTS: usize = 8;
    let mut data = [0; 16];
    let fields = [
        (ENTRY_SIZE, EXTENDED_ENTRY_BYTES.to_le_bytes()),
        (PARTS, 1_usize.to_le_bytes()),
    ];
    for (at, [low, high, ..]) in fields {
        let bytes = data.iter_mut().skip(at).zip([low, high]);
        bytes.for_each(|(to, from)| *to = from);
    }
    data
}

/// Returns the offset of the completion of this number, and its phase.
fn offset_and_phase(start: u64, entries: u32, number: u64) -> (u64, bool) {
    let entries = u64::from(entries.max(1));
    let offset = start.saturating_add(number % entries * ENTRY);
    (offset, (number / entries) % 2 == 0)
}

/// Returns the flags in the first 8 bytes of an entry.
fn flags(head: u64) -> CompletionFlags {
    let bytes = head.to_le_bytes();
    let flags = bytes.get(offset_of!(CompletionCommon, flags));
    CompletionFlags::from_bits(flags.copied().unwrap_or_default())
}

fn entry(bytes: &[u8; EXTENDED_ENTRY_BYTES]) -> Entry {
    let entry: ExtendedCompletion = zerocopy::transmute!(*bytes);
    let base = entry.base;
    let flags = base.common.flags;
    let is_receive = flags.queue_type() == QueueType::Receive as u8;
    let is_write = flags.operation() == Operation::RdmaWrite as u8;
    let [low, high, ..] = entry.extension;
    let upper = if is_write {
        u32::from(u16::from_le_bytes([low, high])) << 16
    } else {
        0
    };
    let bytes = if is_receive {
        upper | u32::from(base.length.get())
    } else {
        0
    };
    Entry {
        completion: Completion {
            id: base.common.req_id.get().into(),
            status: status(base.common.status),
            vendor_error: base.common.status.into(),
            bytes,
            queue_pair: base.common.qp_num.get().into(),
            immediate: flags.has_immediate().then_some(base.immediate.get()),
        },
        is_receive,
    }
}

/// Returns the status to which libefa converts the adapter's.
fn status(number: u8) -> Status {
    use CompletionStatus as It;
    match CompletionStatus::from_number(number) {
        Some(It::Ok) => Status::SUCCESS,
        Some(It::Flushed) => Status::FLUSHED,
        Some(
            It::LocalQueuePair | It::LocalUnsupportedOperation | It::LocalInvalidAddressHandle,
        ) => Status::LOCAL_OPERATION,
        Some(It::LocalInvalidKey) => Status::LOCAL_PROTECTION,
        Some(It::LocalBadLength) => Status::LOCAL_LENGTH,
        Some(It::RemoteBadAddress) => Status::REMOTE_ACCESS,
        Some(It::RemoteAbort) => Status::REMOTE_ABORTED,
        Some(It::RemoteBadQueuePair) => Status::REMOTE_BAD_QUEUE_PAIR,
        Some(It::RemoteNotReady) => Status::RECEIVER_NOT_READY,
        Some(It::RemoteBadLength | It::RemoteFeatureMismatch) => Status::REMOTE_INVALID_REQUEST,
        Some(It::RemoteBadStatus) => Status::BAD_RESPONSE,
        Some(It::LocalUnresponsiveRemote | It::LocalUnreachableRemote) => Status::RESPONSE_TIMEOUT,
        Some(It::RemoteUnknownPeer) => Status::REMOTE_OPERATION,
        None => Status::GENERAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `efa_ibv_create_cq` of include/uapi/rdma/efa-abi.h: comp_mask, cq_entry_size, num_sub_cqs, flags.
    #[test]
    fn driver_is_asked_for_one_ring_of_32_byte_entries() {
        let mut wanted = [0; 16];
        wanted[4] = 32;
        wanted[8] = 1;
        assert_eq!(driver_data(), wanted);
    }

    #[test]
    fn phase_of_an_entry_changes_each_time_round() {
        let seen = [0, 1, 15, 16, 31, 32].map(|number| offset_and_phase(4096, 16, number));
        let wanted = [
            (4096, true),
            (4128, true),
            (4576, true),
            (4096, false),
            (4576, false),
            (4096, true),
        ];
        assert_eq!(seen, wanted);
    }

    #[test]
    fn entry_of_a_receive_has_length_and_immediate_data() {
        let mut bytes = [0; EXTENDED_ENTRY_BYTES];
        // Request 7, success; phase, receive queue, immediate data, operation 2 (a write).
        bytes[..6].copy_from_slice(&[7, 0, 0, 0b0010_1101, 9, 0]);
        bytes[6..8].copy_from_slice(&[0x10, 0]);
        bytes[12..18].copy_from_slice(&[4, 3, 2, 1, 1, 0]);
        let head = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert!(flags(head).phase());
        let wanted = Completion {
            id: 7,
            status: Status::SUCCESS,
            vendor_error: 0,
            bytes: 0x1_0010,
            queue_pair: 9,
            immediate: Some(0x0102_0304),
        };
        let found = entry(&bytes);
        assert!(found.is_receive);
        assert_eq!(found.completion, wanted);
    }

    #[test]
    fn memory_of_all_ones_is_no_success() {
        let found = entry(&[0xff; EXTENDED_ENTRY_BYTES]);
        assert_eq!(found.completion.status, Status::GENERAL);
        assert!(!found.is_receive);
    }

    #[test]
    fn status_is_the_one_of_the_library() {
        let found = [0, 1, 5, 7, 13, 14, 16, 200].map(|number| status(number).0);
        assert_eq!(found, [0, 5, 4, 10, 20, 11, 21, 21]);
    }
}
