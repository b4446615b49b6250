//! Requests to the client: it reads and writes the guest's memory for us, through the guest's IOMMU.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use crate::dispatch::parse;
use crate::framing::Payload;
use crate::pending::{Pending, Reply};
use crate::pieces::{Piece, Pieces};
use crate::version::MAX_TRANSFER;
use crate::wire::{DmaAccess, HEADER_SIZE, Header, command, flags};
use crate::writer::{Closed, Writer};

/// The most data of one DMA_READ, in bytes. QEMU sends the reply in one go and loses its stream when a larger one does
/// not fit into the socket buffer.
const READ_SIZE: u64 = 32 << 10;

/// How many requests of one call may be on their way.
const WINDOW: u32 = 16;

/// Requests to the client of a session, from any number of threads. All clones are the same one.
///
/// A call blocks until the client has answered, which QEMU does only after its own accesses are answered: so never
/// call from a method of [`Device`](crate::Device).
#[derive(Clone, Debug)]
pub struct Client {
    session: Arc<Session>,
}

#[derive(Debug)]
struct Session {
    writer: Arc<Writer>,
    pending: Pending,
    time_out: Duration,
    /// The most data of one DMA_READ and of one DMA_WRITE, in bytes.
    read_size: u64,
    write_size: u64,
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
            read_size: max_transfer.clamp(1, READ_SIZE),
            write_size: max_transfer.clamp(1, MAX_TRANSFER.into()),
        };
        Self {
            session: Arc::new(session),
        }
    }

    /// Reads `data.len()` bytes at `address` (vfio-user, DMA_READ). On failure the contents of `data` are undefined.
    pub fn dma_read(&self, address: u64, data: &mut [u8]) -> Result<(), RequestError> {
        let pieces = Pieces::new(address, data.len(), self.session.read_size)?;
        self.session.transfer(
            &pieces,
            |id, piece| self.session.send(id, command::DMA_READ, piece, &[]),
            |piece, reply| {
                let came = read_data(piece, &reply)?;
                let place = data.get_mut(piece.range.clone());
                place.ok_or(MALFORMED)?.copy_from_slice(came);
                Ok(())
            },
        )
    }

    /// Writes `data` at `address` (vfio-user, DMA_WRITE). On failure any part of it may have been written, but nothing
    /// is written after the return, unless it is [`RequestError::TimedOut`].
    pub fn dma_write(&self, address: u64, data: &[u8]) -> Result<(), RequestError> {
        let pieces = Pieces::new(address, data.len(), self.session.write_size)?;
        self.session.transfer(
            &pieces,
            |id, piece| {
                let data = data.get(piece.range.clone()).unwrap_or_default();
                self.session.send(id, command::DMA_WRITE, piece, data)
            },
            |piece, reply| check_written(piece, &reply),
        )
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
    /// Sends all pieces, at most [`WINDOW`] at a time, and takes their replies. After a failure no more are sent, but
    /// those under way are waited for: what has returned does nothing any more.
    fn transfer(
        &self,
        pieces: &Pieces,
        send: impl Fn(u16, &Piece) -> Result<(), RequestError>,
        mut accept: impl FnMut(&Piece, Reply) -> Result<(), RequestError>,
    ) -> Result<(), RequestError> {
        let (call, arrivals) = channel();
        let mut outcome = Ok(());
        let mut next = 0;
        let mut under_way = 0_u32;
        loop {
            while outcome.is_ok()
                && under_way < WINDOW
                && let Some(piece) = pieces.get(next)
            {
                send(self.pending.register(next, &call)?, &piece)?;
                next += 1;
                under_way += 1;
            }
            if under_way == 0 {
                return outcome;
            }
            let arrival = arrivals.recv_timeout(self.time_out);
            let (number, reply) = arrival.map_err(|_| RequestError::TimedOut)?;
            under_way -= 1;
            let piece = pieces.get(number).ok_or(MALFORMED)?;
            outcome = outcome.and(reply.and_then(|reply| accept(&piece, reply)));
        }
    }

    fn send(&self, id: u16, command: u16, piece: &Piece, data: &[u8]) -> Result<(), RequestError> {
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

/// A reply that is not the one to our request.
const MALFORMED: RequestError = RequestError::Refused(Errno::PROTO);

/// The data of a reply to DMA_READ.
fn read_data<'r>(piece: &Piece, reply: &'r Reply) -> Result<&'r [u8], RequestError> {
    let payload = success(reply, command::DMA_READ)?;
    let (access, data) = parse::<DmaAccess>(payload).map_err(|_| MALFORMED)?;
    if !describes(access, piece) || data.len() != piece.range.len() {
        return Err(MALFORMED);
    }
    Ok(data)
}

/// QEMU replies to DMA_WRITE with a header alone, libvfio-user's clients repeat the address and the count.
fn check_written(piece: &Piece, reply: &Reply) -> Result<(), RequestError> {
    let payload = success(reply, command::DMA_WRITE)?;
    if payload.is_empty() {
        return Ok(());
    }
    match parse::<DmaAccess>(payload) {
        Ok((access, [])) if describes(access, piece) => Ok(()),
        _ => Err(MALFORMED),
    }
}

fn describes(access: &DmaAccess, piece: &Piece) -> bool {
    access.address.get() == piece.address && access.count.get() == piece.length
}

fn success(reply: &Reply, command: u16) -> Result<&[u8], RequestError> {
    if reply.header.is_error() {
        return Err(RequestError::Refused(errno(reply.header.error.get())));
    }
    match &reply.payload {
        Payload::Whole(payload) if reply.header.command.get() == command => Ok(payload),
        _ => Err(MALFORMED),
    }
}

/// The errno of a reply, EIO if it is none that Linux knows.
fn errno(raw: u32) -> Errno {
    match i32::try_from(raw) {
        Ok(raw @ 1..4096) => Errno::from_raw_os_error(raw),
        _ => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_becomes_an_errno() {
        assert_eq!(errno(19), Errno::NODEV);
        assert_eq!(errno(7), Errno::TOOBIG);
        for raw in [0, 4096, u32::MAX, 1 << 31] {
            assert_eq!(errno(raw), Errno::IO);
        }
    }
}
