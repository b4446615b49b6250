//! Requests to the client: it reads and writes the guest's memory for us, through the guest's IOMMU.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use crate::call::{Call, Data, Request};
use crate::pending::{Pending, Reply};
use crate::pieces::Piece;
use crate::reply::MALFORMED;
use crate::wire::{DmaAccess, HEADER_SIZE, Header, flags};
use crate::writer::{Closed, Writer};

/// The most data of one message, in bytes. QEMU sends the reply to DMA_READ in one go and loses its stream when a larger
/// one does not fit into the socket buffer. It could take larger ones of DMA_WRITE, but neither those of other threads nor
/// the guest get their turn before it has done with one.
const PIECE_SIZE: usize = 32 << 10;

/// Requests to the client of a session, from any number of threads. All clones are the same one.
///
/// A call blocks until the client has answered, which QEMU does only after its own accesses are answered: so never
/// call from a method of [`Device`](crate::Device).
#[derive(Clone, Debug)]
pub struct Client {
    session: Arc<Session>,
}

#[derive(Debug)]
pub(crate) struct Session {
    writer: Arc<Writer>,
    pub(crate) pending: Pending,
    /// How long is waited for the next reply.
    pub(crate) time_out: Duration,
    /// The most data of one message, in bytes.
    pub(crate) piece_size: usize,
}

/// Why a request to the client failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The client refused it: no mapping, no permission, bus mastering off. EPROTO if its reply makes no sense, EINVAL
    /// if the range passes the end of the address space.
    #[error("the client refused it: {0}")]
    Refused(Errno),
    /// The session is over.
    #[error("the client is gone")]
    Gone,
    /// The client did not answer in time.
    #[error("the client did not answer in time")]
    TimedOut,
    /// It was not sent, or not all of it: the caller has changed its mind, or another request of the call had failed.
    #[error("not asked of the client any more")]
    Stopped,
}

impl From<Closed> for RequestError {
    fn from(_: Closed) -> Self {
        Self::Gone
    }
}

impl Client {
    /// `max_transfer` is what the client said it takes with one message, in bytes.
    pub(crate) fn new(writer: Arc<Writer>, time_out: Duration, max_transfer: u64) -> Self {
        let session = Session {
            writer,
            pending: Pending::new(),
            time_out,
            piece_size: usize::try_from(max_transfer)
                .map_or(PIECE_SIZE, |most| most.clamp(1, PIECE_SIZE)),
        };
        Self {
            session: Arc::new(session),
        }
    }

    /// Reads `data.len()` bytes at `address` (vfio-user, DMA_READ). On failure the contents of `data` are undefined.
    pub fn dma_read(&self, address: u64, data: &mut [u8]) -> Result<(), RequestError> {
        self.one(Request::new(address, Data::Read(data)))
    }

    /// Writes `data` at `address` (vfio-user, DMA_WRITE). On failure any part of it may have been written, but nothing
    /// is written after the return, unless it is [`RequestError::TimedOut`].
    pub fn dma_write(&self, address: u64, data: &[u8]) -> Result<(), RequestError> {
        self.one(Request::new(address, Data::Write(data)))
    }

    fn one(&self, request: Request<'_>) -> Result<(), RequestError> {
        let mut requests = [request];
        self.carry_out(&mut requests, &|| true);
        let [request] = requests;
        request.outcome.unwrap_or(Err(RequestError::Stopped))
    }

    /// Carries out `requests`, many at a time and in any order, and notes what came of each, as with [`Client::dma_read`] and
    /// [`Client::dma_write`]. Before each message `may_go_on` is asked; once it says no, or one has failed, no more is sent,
    /// and what has been sent is waited for.
    pub fn carry_out(&self, requests: &mut [Request<'_>], may_go_on: &dyn Fn() -> bool) {
        Call::new(&self.session, requests).carry_out(may_go_on);
    }

    /// Hands a reply to the call that waits for it. False if there is none.
    pub(crate) fn complete(&self, reply: Reply) -> bool {
        self.session.pending.complete(reply)
    }

    /// Fails all calls with [`RequestError::Gone`], now and for good.
    pub(crate) fn close(&self) {
        self.session.pending.close();
    }
}

impl Session {
    pub(crate) fn send(
        &self,
        id: u16,
        command: u16,
        piece: &Piece,
        data: &[u8],
    ) -> Result<(), RequestError> {
        let access = DmaAccess {
            address: U64::new(piece.address),
            count: U64::new(piece.length),
        };
        let size = HEADER_SIZE + size_of::<DmaAccess>() + data.len();
        let header = Header {
            id: U16::new(id),
            command: U16::new(command),
            size: U32::new(u32::try_from(size).map_err(|_| MALFORMED)?),
            flags: U32::new(flags::COMMAND),
            error: U32::new(0),
        };
        Ok(self.writer.send(&header, [access.as_bytes(), data], None)?)
    }
}
