//! A command of the client, and its answer.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::framing::Descriptors;

/// A command without its header.
pub(crate) struct ClientCommand<'p> {
    pub(crate) command: u16,
    pub(crate) payload: &'p [u8],
    /// Dropped, and thus closed, by every command that does not use them.
    pub(crate) descriptors: Descriptors,
}

/// The contents of a reply.
#[derive(Debug, Default)]
pub(crate) struct Answer<'d> {
    pub(crate) payload: Vec<u8>,
    pub(crate) descriptor: Option<BorrowedFd<'d>>,
}

impl From<Vec<u8>> for Answer<'_> {
    fn from(payload: Vec<u8>) -> Self {
        Self {
            payload,
            descriptor: None,
        }
    }
}

/// Returns the structure at the start of `payload`, and the bytes that follow it.
pub(crate) fn parse<T>(payload: &[u8]) -> Result<(&T, &[u8]), Errno>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_prefix(payload).map_err(|_| Errno::INVAL)
}

/// Refuses an argsz below the size of a `T`.
pub(crate) fn check_argsz<T>(argsz: U32) -> Result<(), Errno> {
    match usize::try_from(argsz.get()) {
        Ok(argsz) if argsz >= size_of::<T>() => Ok(()),
        _ => Err(Errno::INVAL),
    }
}
