//! The state that all calls of a session share: the path of requests, and the list of those that
//! are not answered yet.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use peerbar_host::eventfd::EventFd;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use crate::chunks::Chunk;
use crate::pending::{Arrival, Pending};
use crate::request_error::RequestError;
use crate::version::Capabilities;
use crate::wire::{DmaAccess, HEADER_SIZE, Header, flags};
use crate::writer::{Closed, Writer};

/// The most data of one message, in bytes. QEMU sends the reply to DMA_READ at once, and loses its
/// stream if a larger reply does not fit into the socket buffer. It accepts larger DMA_WRITEs, but
/// until it has completed one, it serves neither other threads' requests nor the guest.
const CHUNK_SIZE: usize = 32 << 10;

#[derive(Debug)]
pub(crate) struct Channel {
    writer: Arc<Writer>,
    /// Wakes the session's thread.
    pub(crate) attention: Arc<EventFd>,
    pub(crate) pending: Pending,
    /// The longest wait of a call for its next reply.
    pub(crate) time_out: Duration,
    /// The most data of one message, in bytes.
    pub(crate) chunk_size: usize,
    /// Set once the client answers.
    is_answered: bool,
}

impl Channel {
    pub(crate) fn new(
        writer: Arc<Writer>,
        attention: Arc<EventFd>,
        time_out: Duration,
        client: &Capabilities,
    ) -> Self {
        let most = usize::try_from(client.max_data_xfer_size);
        let chunk_size = most.map_or(CHUNK_SIZE, |most| most.clamp(1, CHUNK_SIZE));
        Self {
            writer,
            attention,
            pending: Pending::new(),
            time_out,
            chunk_size,
            is_answered: client.serves_dma,
        }
    }

    /// Ends the session. All calls fail with [`RequestError::Gone`], now and later.
    pub(crate) fn disconnect(&self) {
        self.writer.disconnect();
        self.pending.close();
    }

    /// Registers a message of slot `slot`. Its reply will come to `arrivals`. Returns its number.
    pub(crate) fn register(
        &self,
        slot: usize,
        arrivals: &Sender<Arrival>,
    ) -> Result<u16, RequestError> {
        match self.is_answered {
            true => self.pending.register(slot, arrivals),
            false => Err(RequestError::Unserved),
        }
    }

    pub(crate) fn send(
        &self,
        id: u16,
        command: u16,
        chunk: &Chunk,
        data: &[u8],
    ) -> Result<(), RequestError> {
        let access = DmaAccess {
            address: U64::new(chunk.address.0),
            count: U64::new(chunk.length),
        };
        let size = HEADER_SIZE + size_of::<DmaAccess>() + data.len();
        let header = Header {
            id: U16::new(id),
            command: U16::new(command),
            size: U32::new(u32::try_from(size).map_err(|_| RequestError::MALFORMED)?),
            flags: U32::new(flags::COMMAND),
            error: U32::new(0),
        };
        let sent = self.writer.send(&header, [access.as_bytes(), data], &[]);
        sent.map_err(|Closed| RequestError::Gone)
    }
}
