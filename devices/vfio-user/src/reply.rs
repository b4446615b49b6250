//! What the client's replies say.

use rustix::io::Errno;

use crate::client::RequestError;
use crate::dispatch::parse;
use crate::framing::Payload;
use crate::pending::Reply;
use crate::pieces::Piece;
use crate::wire::{DmaAccess, command};

/// A reply that is not the one to our request.
pub(crate) const MALFORMED: RequestError = RequestError::Refused(Errno::PROTO);

/// The data of a reply to DMA_READ.
pub(crate) fn read_data<'r>(piece: &Piece, reply: &'r Reply) -> Result<&'r [u8], RequestError> {
    let payload = success(reply, command::DMA_READ)?;
    let (access, data) = parse::<DmaAccess>(payload).map_err(|_| MALFORMED)?;
    if !describes(access, piece) || data.len() != piece.range.len() {
        return Err(MALFORMED);
    }
    Ok(data)
}

/// QEMU replies to DMA_WRITE with a header alone, libvfio-user's clients repeat the address and the count.
pub(crate) fn check_written(piece: &Piece, reply: &Reply) -> Result<(), RequestError> {
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
