//! The server's requests for DMA, which a thread of their own answers in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use peerbar_pci::{Iova, Range};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::framing::{Descriptors, Message, Payload};
use crate::request::parse;
use crate::version::MAX_TRANSFER;
use crate::wire::{DmaAccess, command};

use super::connection::Connection;
use super::{CallError, RemoteEnd, RemoteHandler};

/// Limit of the server's requests that wait for their turn, in bytes of this process. Replies come
/// on the same stream, so the thread that receives never waits for a request.
const MOST_WAITING: usize = 64 << 20;

/// Makes a queue for the server's requests.
pub(super) fn queue() -> (Requests, WaitingRequests) {
    let (sender, receiver) = channel();
    let bytes = Arc::<AtomicUsize>::default();
    let requests = Requests {
        sender,
        bytes: bytes.clone(),
    };
    (requests, WaitingRequests { receiver, bytes })
}

/// An entry of the queue.
enum Entry {
    Request(Message),
    /// To be notified once the requests before it are answered.
    Marker(Sender<()>),
}

/// Takes the server's requests from the thread that receives.
pub(super) struct Requests {
    sender: Sender<Entry>,
    /// The bytes of the requests that wait.
    bytes: Arc<AtomicUsize>,
}

/// The server's requests for the thread that answers them.
pub(super) struct WaitingRequests {
    receiver: Receiver<Entry>,
    bytes: Arc<AtomicUsize>,
}

impl Requests {
    /// Passes a request on. Its descriptors, which belong to no request, are closed.
    ///
    /// # Errors
    /// [`RemoteEnd::TooManyRequests`], or [`RemoteEnd::HungUp`] if the thread that answers has
    /// ended.
    pub(super) fn pass_on(&self, mut request: Message) -> Result<(), RemoteEnd> {
        request.descriptors = Descriptors::default();
        let size = size(&request);
        if self.bytes.fetch_add(size, Ordering::Relaxed) > MOST_WAITING.saturating_sub(size) {
            return Err(RemoteEnd::TooManyRequests);
        }
        let sent = self.sender.send(Entry::Request(request));
        sent.map_err(|_| RemoteEnd::HungUp)
    }

    /// Waits at most for this time until the requests that have been passed on are answered.
    ///
    /// # Errors
    /// [`CallError::TimedOut`], or [`CallError::Gone`] if the thread that answers has ended.
    pub(super) fn finish(&self, limit: Duration) -> Result<(), CallError> {
        let (marker, answered) = channel();
        let sent = self.sender.send(Entry::Marker(marker));
        sent.map_err(|_| CallError::Gone)?;
        answered.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => CallError::TimedOut,
            RecvTimeoutError::Disconnected => CallError::Gone,
        })
    }
}

/// Returns the bytes that a request takes while it waits.
fn size(request: &Message) -> usize {
    let payload = match &request.payload {
        Payload::Whole(payload) => payload.capacity(),
        Payload::TooLong => 0,
    };
    size_of::<Message>() + payload
}

/// Answers the server's requests until the session ends. Those that wait then are not executed.
pub(super) fn serve(
    connection: &Connection,
    handler: &dyn RemoteHandler,
    requests: &WaitingRequests,
) {
    for entry in &requests.receiver {
        if connection.ended().is_some() {
            return;
        }
        match entry {
            Entry::Request(request) => {
                requests.bytes.fetch_sub(size(&request), Ordering::Relaxed);
                answer(connection, handler, request);
            }
            Entry::Marker(marker) => {
                // Fails if nobody waits any more.
                let _ = marker.send(());
            }
        }
    }
}

fn answer(connection: &Connection, handler: &dyn RemoteHandler, request: Message) {
    let header = request.header;
    let result = match request.payload {
        Payload::TooLong => Err(Errno::TOOBIG),
        Payload::Whole(payload) => execute(handler, header.command.get(), &payload),
    };
    let parts = result.as_ref().map_err(|error| *error);
    let parts = parts.map(|(access, data)| [access.as_bytes(), data.as_slice()]);
    connection.answer(&header, parts);
}

/// Executes a request. Returns the contents of its reply.
fn execute(
    handler: &dyn RemoteHandler,
    command: u16,
    payload: &[u8],
) -> Result<(DmaAccess, Vec<u8>), Errno> {
    let (access, written) = parse::<DmaAccess>(payload)?;
    let (address, count) = (Iova(access.address.get()), access.count.get());
    if count > MAX_TRANSFER.into() {
        return Err(Errno::TOOBIG);
    }
    let count = usize::try_from(count).map_err(|_| Errno::TOOBIG)?;
    let is_inside = count == 0 || Range::new(address, access.count.get()).is_some();
    match (command, written.len()) {
        _ if !is_inside => Err(Errno::INVAL),
        (command::DMA_READ, 0) => {
            let mut data = vec![0; count];
            handler.dma_read(address, &mut data)?;
            Ok((*access, data))
        }
        (command::DMA_WRITE, len) if len == count => {
            handler.dma_write(address, written)?;
            Ok((*access, Vec::new()))
        }
        (command::DMA_READ | command::DMA_WRITE, _) => Err(Errno::INVAL),
        _ => Err(Errno::NOTSUP),
    }
}
