//! The server's requests for DMA, which a thread of their own answers in order.

use std::sync::mpsc::Receiver;

use peerbar_pci::{Iova, Range};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::framing::{Message, Payload};
use crate::request::parse;
use crate::version::MAX_TRANSFER;
use crate::wire::{DmaAccess, command};

use super::RemoteHandler;
use super::connection::Connection;

/// Limit of the server's requests that wait for their turn. While that many wait, no message of the
/// server is received.
pub(super) const MOST_WAITING: usize = 64;

/// Answers the server's requests until the thread that receives ends.
pub(super) fn serve(
    connection: &Connection,
    handler: &dyn RemoteHandler,
    requests: &Receiver<Message>,
) {
    for request in requests {
        // Descriptors, which do not belong to a request, are closed here.
        let header = request.header;
        let result = match request.payload {
            Payload::TooLong => Err(Errno::TOOBIG),
            Payload::Whole(payload) => execute(handler, header.command.get(), &payload),
        };
        let parts = result.as_ref().map_err(|error| *error);
        let parts = parts.map(|(access, data)| [access.as_bytes(), data.as_slice()]);
        connection.answer(&header, parts);
    }
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
