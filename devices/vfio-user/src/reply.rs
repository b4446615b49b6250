//! Checks of replies.

use rustix::io::Errno;

use crate::chunks::Chunk;
use crate::framing::Payload;
use crate::pending::Reply;
use crate::request::parse;
use crate::request_error::RequestError;
use crate::wire::{DmaAccess, command};

/// Returns the data of a reply to DMA_READ.
pub(crate) fn read_data<'r>(chunk: &Chunk, reply: &'r Reply) -> Result<&'r [u8], RequestError> {
    let payload = success(reply, command::DMA_READ)?;
    let (access, data) = parse::<DmaAccess>(payload).map_err(|_| RequestError::MALFORMED)?;
    if !describes(access, chunk) || data.len() != chunk.range.len() {
        return Err(RequestError::MALFORMED);
    }
    Ok(data)
}

/// QEMU replies to DMA_WRITE with a header alone, libvfio-user's clients repeat the address and the count.
pub(crate) fn check_written(chunk: &Chunk, reply: &Reply) -> Result<(), RequestError> {
    let payload = success(reply, command::DMA_WRITE)?;
    if payload.is_empty() {
        return Ok(());
    }
    match parse::<DmaAccess>(payload) {
        Ok((access, [])) if describes(access, chunk) => Ok(()),
        _ => Err(RequestError::MALFORMED),
    }
}

fn describes(access: &DmaAccess, chunk: &Chunk) -> bool {
    access.address.get() == chunk.address.0 && access.count.get() == chunk.length
}

/// Returns the contents of a reply to `command`.
pub(crate) fn success(reply: &Reply, command: u16) -> Result<&[u8], RequestError> {
    if reply.header.is_error() {
        return Err(RequestError::Refused(errno(reply.header.error.get())));
    }
    match &reply.payload {
        Payload::Whole(payload) if reply.header.command.get() == command => Ok(payload),
        _ => Err(RequestError::MALFORMED),
    }
}

/// Returns the errno of a reply, or EIO if Linux has no such errno.
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
