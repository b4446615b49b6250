//! A work request of a send queue, read once from the queue and checked.

use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::{
    FastInvalidation, FastRegistration, INLINE_BYTES, LONG_INLINE_BYTES, LONG_SEND_ENTRY_BYTES,
    LocalBuffer, Operation, RDMA_BUFFERS, RemoteBuffer, SEND_BUFFERS, SendMeta,
};
use zerocopy::{FromBytes, FromZeros};

use crate::limits;

/// The identity of a work request, which its completion repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    pub(crate) low: u16,
    pub(crate) high: [u16; 3],
}

/// A buffer of the requester.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Buffer {
    pub(crate) key: u32,
    pub(crate) address: u64,
    pub(crate) bytes: u32,
}

impl Buffer {
    /// Returns a part of it.
    pub(crate) fn part(self, part: Part) -> Self {
        Self {
            address: self.address.wrapping_add(u64::from(part.offset)),
            bytes: part.len,
            ..self
        }
    }
}

/// A part of the data of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its offset in the data.
    pub(crate) offset: u32,
    /// Its bytes.
    pub(crate) len: u32,
}

impl Part {
    pub(crate) fn new(offset: u32, len: u32) -> Self {
        Self { offset, len }
    }

    /// Returns all of data of this length.
    pub(crate) fn whole(len: u32) -> Self {
        Self { offset: 0, len }
    }

    /// Returns its start, at most `len` bytes long.
    pub(crate) fn at_most(self, len: u32) -> Self {
        let len = self.len.min(len);
        Self { len, ..self }
    }
}

/// The data of a work request.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    /// In the request itself.
    Inline(Vec<u8>),
    /// In memory, one buffer after the other.
    Buffers(Vec<Buffer>),
    /// No data: memory is added to a region.
    Register(FastRegistration),
    /// No data: the memory of the region of this local key is removed.
    Invalidate(u32),
    /// The request cannot be executed, and ends with this status.
    Refused(CompletionStatus),
}

impl Data {
    fn bytes(&self) -> u64 {
        match self {
            Self::Inline(data) => data.len() as u64,
            Self::Buffers(buffers) => buffers.iter().map(|it| u64::from(it.bytes)).sum(),
            Self::Register(_) | Self::Invalidate(_) | Self::Refused(_) => 0,
        }
    }
}

/// A work request.
#[derive(Clone, Debug)]
pub(crate) struct WorkRequest {
    pub(crate) id: RequestId,
    pub(crate) operation: Operation,
    /// Number of the destination's queue pair.
    pub(crate) destination: u16,
    pub(crate) address_handle: u16,
    pub(crate) qkey: u32,
    pub(crate) immediate: Option<u32>,
    /// `true` if a completion is wanted even if it succeeds.
    pub(crate) is_signalled: bool,
    pub(crate) data: Data,
    /// The remote buffer of RDMA.
    pub(crate) remote: Buffer,
    /// The number of bytes that it moves.
    pub(crate) bytes: u32,
}

const META_BYTES: usize = size_of::<SendMeta>();
const BUFFER_BYTES: usize = size_of::<LocalBuffer>();

impl WorkRequest {
    /// Parses the request in an entry of 64 or 128 bytes.
    pub(crate) fn parse(entry: &[u8]) -> Self {
        let parsed = SendMeta::read_from_prefix(entry);
        let (meta, body) = parsed.unwrap_or_else(|_| (SendMeta::new_zeroed(), &[]));
        let operation = Operation::from_number(meta.control.operation());
        let contents = contents(operation, &meta, body);
        let (data, remote, bytes) =
            contents.unwrap_or_else(|status| (Data::Refused(status), Buffer::default(), 0));
        Self {
            id: RequestId {
                low: meta.req_id.get(),
                high: meta.req_id_ex.map(|part| part.get()),
            },
            operation: operation.unwrap_or(Operation::Send),
            destination: meta.dest_qp_num.get(),
            address_handle: meta.ah.get(),
            qkey: meta.qkey.get(),
            immediate: meta
                .control
                .has_immediate()
                .then(|| meta.immediate_data.get()),
            is_signalled: meta.flags.completion(),
            data,
            remote,
            bytes,
        }
    }
}

/// Returns the data of a request, its remote buffer, and the number of bytes that it moves.
fn contents(
    operation: Option<Operation>,
    meta: &SendMeta,
    body: &[u8],
) -> Result<(Data, Buffer, u32), CompletionStatus> {
    let is_whole = meta.control.is_meta() && meta.flags.first() && meta.flags.last();
    let operation = operation.filter(|_| is_whole && !meta.control.meta_extension());
    let operation = operation.ok_or(CompletionStatus::LocalUnsupportedOperation)?;
    let is_long = META_BYTES + body.len() >= LONG_SEND_ENTRY_BYTES;
    let (data, remote) = match operation {
        Operation::Send => (send_data(meta, body, is_long)?, None),
        Operation::RdmaRead | Operation::RdmaWrite => rdma_data(meta, operation, body, is_long)?,
        Operation::FastRegister => (register_data(body)?, None),
        Operation::FastInvalidate => (invalidate_data(body)?, None),
    };
    let bytes = length(operation, &data, remote)?;
    Ok((data, remote.unwrap_or_default(), bytes))
}

/// Returns the number of bytes that a request moves.
fn length(
    operation: Operation,
    data: &Data,
    remote: Option<Buffer>,
) -> Result<u32, CompletionStatus> {
    let limit = match operation {
        Operation::Send => limits::MESSAGE_BYTES,
        _ => limits::RDMA_BYTES,
    };
    let bytes = u32::try_from(data.bytes()).ok();
    let bytes = bytes.filter(|bytes| *bytes <= limit);
    // The remote buffer determines the length; the local one may be longer.
    let moved = match (bytes, remote) {
        (Some(bytes), None) => Some(bytes),
        (Some(bytes), Some(remote)) if remote.bytes <= bytes => Some(remote.bytes),
        _ => None,
    };
    moved.ok_or(CompletionStatus::LocalBadLength)
}

fn register_data(body: &[u8]) -> Result<Data, CompletionStatus> {
    let unsupported = CompletionStatus::LocalUnsupportedOperation;
    let (request, _) = FastRegistration::read_from_prefix(body).map_err(|_| unsupported)?;
    let is_zero = request.reserved == [0; 2]
        && !request.flags.reserved()
        && request.permissions.reserved() == 0;
    is_zero
        .then_some(Data::Register(request))
        .ok_or(unsupported)
}

fn invalidate_data(body: &[u8]) -> Result<Data, CompletionStatus> {
    let unsupported = CompletionStatus::LocalUnsupportedOperation;
    let (request, _) = FastInvalidation::read_from_prefix(body).map_err(|_| unsupported)?;
    let is_zero = request.reserved == [0; 28];
    let data = Data::Invalidate(request.lkey.get());
    is_zero.then_some(data).ok_or(unsupported)
}

fn send_data(meta: &SendMeta, body: &[u8], is_long: bool) -> Result<Data, CompletionStatus> {
    if meta.control.is_inline() {
        let room = if is_long {
            LONG_INLINE_BYTES
        } else {
            INLINE_BYTES
        };
        return inline(meta, body, room);
    }
    buffers(meta, body, SEND_BUFFERS)
}

fn rdma_data(
    meta: &SendMeta,
    operation: Operation,
    body: &[u8],
    is_long: bool,
) -> Result<(Data, Option<Buffer>), CompletionStatus> {
    let bad_length = CompletionStatus::LocalBadLength;
    let (remote, rest) = RemoteBuffer::read_from_prefix(body).map_err(|_| bad_length)?;
    let remote = Buffer {
        key: remote.rkey.get(),
        address: remote.address.get(),
        bytes: remote.length.get(),
    };
    let is_read = operation == Operation::RdmaRead;
    if is_read && meta.control.has_immediate() || meta.control.is_inline() && (is_read || !is_long)
    {
        return Err(CompletionStatus::LocalUnsupportedOperation);
    }
    let data = if meta.control.is_inline() {
        inline(meta, rest, LONG_INLINE_BYTES)?
    } else {
        buffers(meta, rest, RDMA_BUFFERS)?
    };
    Ok((data, Some(remote)))
}

fn inline(meta: &SendMeta, body: &[u8], room: usize) -> Result<Data, CompletionStatus> {
    let length = usize::from(meta.length.get());
    let data = body.get(..length).filter(|_| length <= room);
    let data = data.ok_or(CompletionStatus::LocalBadLength)?;
    Ok(Data::Inline(data.to_vec()))
}

fn buffers(meta: &SendMeta, body: &[u8], limit: usize) -> Result<Data, CompletionStatus> {
    let count = usize::from(meta.length.get());
    if count > limit {
        return Err(CompletionStatus::LocalBadLength);
    }
    let parts = body.chunks_exact(BUFFER_BYTES).take(count);
    let buffers = parts.filter_map(|part| LocalBuffer::read_from_bytes(part).ok());
    let buffers = buffers.map(|it| Buffer {
        key: it.lkey.get(),
        address: it.address.get(),
        bytes: it.length.get(),
    });
    Ok(Data::Buffers(buffers.collect()))
}

#[cfg(test)]
mod tests {
    use peerbar_efa_spec::work::{SEND_ENTRY_BYTES, SendControl, SendFlags};
    use proptest::prelude::*;
    use zerocopy::IntoBytes;
    use zerocopy::little_endian::{U16, U32, U64};

    use super::*;

    fn meta(operation: Operation, length: u16) -> SendMeta {
        let mut meta = SendMeta::read_from_bytes(&[0; META_BYTES]).unwrap();
        meta.req_id = U16::new(0x1234);
        meta.control = SendControl::new()
            .with_operation(operation as u8)
            .with_is_meta(true);
        meta.flags = SendFlags::new().with_first(true).with_last(true);
        meta.length = U16::new(length);
        meta
    }

    fn local(length: u32) -> LocalBuffer {
        LocalBuffer {
            length: U32::new(length),
            lkey: U32::new(7),
            address: U64::new(0x1_0000_0000),
        }
    }

    fn entry(meta: &SendMeta, parts: &[&[u8]], bytes: usize) -> Vec<u8> {
        let mut entry = meta.as_bytes().to_vec();
        parts.iter().for_each(|part| entry.extend_from_slice(part));
        assert!(entry.len() <= bytes);
        entry.resize(bytes, 0);
        entry
    }

    fn status(entry: &[u8]) -> Option<CompletionStatus> {
        match WorkRequest::parse(entry).data {
            Data::Refused(status) => Some(status),
            _ => None,
        }
    }

    #[test]
    fn buffers_of_a_send_are_taken_in_order() {
        let (a, b) = (local(100), local(28));
        let entry = entry(
            &meta(Operation::Send, 2),
            &[a.as_bytes(), b.as_bytes()],
            SEND_ENTRY_BYTES,
        );
        let request = WorkRequest::parse(&entry);
        let Data::Buffers(buffers) = &request.data else {
            panic!("{request:?}");
        };
        let lengths: Vec<_> = buffers.iter().map(|it| it.bytes).collect();
        assert_eq!((lengths, request.bytes), (vec![100, 28], 128));
        assert_eq!((request.id.low, request.immediate), (0x1234, None));
    }

    #[test]
    fn inline_data_fit_into_the_entry_or_are_refused() {
        for (operation, bytes, length, expected) in [
            (Operation::Send, 64, 32, None),
            (
                Operation::Send,
                64,
                33,
                Some(CompletionStatus::LocalBadLength),
            ),
            (Operation::Send, 128, 80, None),
            (
                Operation::Send,
                128,
                81,
                Some(CompletionStatus::LocalBadLength),
            ),
            (Operation::RdmaWrite, 128, 80, None),
            (
                Operation::RdmaWrite,
                128,
                81,
                Some(CompletionStatus::LocalBadLength),
            ),
            (
                Operation::RdmaWrite,
                64,
                8,
                Some(CompletionStatus::LocalUnsupportedOperation),
            ),
            (
                Operation::RdmaRead,
                128,
                8,
                Some(CompletionStatus::LocalUnsupportedOperation),
            ),
        ] {
            let mut meta = meta(operation, length);
            meta.control = meta.control.with_is_inline(true);
            let entry = entry(&meta, &[], bytes);
            assert_eq!(status(&entry), expected, "{operation:?} {bytes} {length}");
        }
    }

    #[test]
    fn rdma_moves_as_much_as_the_remote_buffer_has() {
        let remote = |length| RemoteBuffer {
            length: U32::new(length),
            rkey: U32::new(9),
            address: U64::new(4096),
        };
        let bytes = |remote_length: u32, local_length: u32| {
            let meta = meta(Operation::RdmaRead, 1);
            let (remote, local) = (remote(remote_length), local(local_length));
            let entry = entry(&meta, &[remote.as_bytes(), local.as_bytes()], 64);
            let request = WorkRequest::parse(&entry);
            status(&entry).map_or(Ok(request.bytes), Err)
        };
        assert_eq!(bytes(100, 100), Ok(100));
        assert_eq!(bytes(100, 4096), Ok(100));
        assert_eq!(bytes(101, 100), Err(CompletionStatus::LocalBadLength));
        let more = limits::RDMA_BYTES + 1;
        assert_eq!(bytes(more, more), Err(CompletionStatus::LocalBadLength));
    }

    #[test]
    fn message_longer_than_the_limit_is_refused() {
        let half = local(limits::MESSAGE_BYTES / 2);
        let whole = [half.as_bytes(), half.as_bytes()];
        let meta = meta(Operation::Send, 2);
        assert_eq!(status(&entry(&meta, &whole, 64)), None);
        for length in [limits::MESSAGE_BYTES / 2 + 1, u32::MAX] {
            let more = local(length);
            let parts = [half.as_bytes(), more.as_bytes()];
            let refused = Some(CompletionStatus::LocalBadLength);
            assert_eq!(status(&entry(&meta, &parts, 64)), refused);
        }
    }

    proptest! {
        #[test]
        fn any_entry_is_a_request_or_is_refused(
            mut bytes in prop_oneof![
                proptest::collection::vec(any::<u8>(), 64),
                proptest::collection::vec(any::<u8>(), 128),
                proptest::collection::vec(any::<u8>(), 0..130),
            ],
            shaped in any::<bool>(),
        ) {
            if shaped && bytes.len() > 3 {
                // More than one in a hundred must pass the first check.
                bytes[2] = bytes[2] & 0x3f | 0x80;
                bytes[3] |= 0x0c;
            }
            let request = WorkRequest::parse(&bytes);
            if !matches!(request.data, Data::Refused(_)) {
                prop_assert!(u64::from(request.bytes) <= request.data.bytes());
                let limit = if request.operation == Operation::Send {
                    limits::MESSAGE_BYTES
                } else {
                    limits::RDMA_BYTES
                };
                prop_assert!(request.bytes <= limit);
            }
        }
    }
}
