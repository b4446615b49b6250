//! A Unix socket's messages with descriptors in ancillary data (SCM_RIGHTS). Only [`wait_until`]
//! waits.
//!
//! A file of a file system in user space, or of a network file system, is not passed on, and a
//! socket only if one is expected: close(2) may not return.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, recvmsg, sendmsg, shutdown,
};

pub use crate::socket_file::closing::Sockets;
use crate::socket_file::closing::{self, Kind, MOST_OF_A_MESSAGE, MOST_PACKETS, rights};

/// The most descriptors that one call of [`receive`] returns.
pub const MAX_DESCRIPTORS: usize = 16;

/// The result of one call of [`receive`].
#[derive(Debug)]
pub struct Received {
    /// Number of bytes; 0 is the end.
    pub bytes: usize,
    /// The descriptors that came with them.
    pub descriptors: Vec<OwnedFd>,
    /// Number of other descriptors that were files of FUSE or of a network file system. Another
    /// thread closes them.
    pub foreign: usize,
    /// Number of other descriptors that were sockets. They are closed, too.
    pub sockets: usize,
    /// Set if bytes ([`ReturnFlags::TRUNC`]) or descriptors ([`ReturnFlags::CTRUNC`]) are lost.
    pub flags: ReturnFlags,
}

/// Receives the available data. Fails with [`Errno::AGAIN`] if there is none. Sockets are not
/// passed on.
pub fn receive(socket: impl AsFd, space: &mut [u8]) -> Result<Received, Errno> {
    receive_with(socket, space, Sockets::None)
}

/// Like [`receive`], but the sender may pass `sockets`.
pub fn receive_with(
    socket: impl AsFd,
    space: &mut [u8],
    sockets: Sockets,
) -> Result<Received, Errno> {
    let mut space_for_rights = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    // Without space the kernel drops them, and reports that by CTRUNC.
    let space_for_rights = match closing::is_exhausted() {
        true => &mut [],
        false => space_for_rights.as_mut_slice(),
    };
    let mut control = RecvAncillaryBuffer::new(space_for_rights);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(&socket, &mut [IoSliceMut::new(space)], &mut control, flags)?;
    let is_full = closing::is_full(&socket);
    let mut result = Received {
        bytes: received.bytes,
        descriptors: Vec::new(),
        foreign: 0,
        sockets: 0,
        flags: received.flags,
    };
    for descriptor in rights(&mut control) {
        let kind = closing::kind(&descriptor, sockets);
        match kind {
            Kind::Own if !is_full => {
                result.descriptors.push(descriptor);
                continue;
            }
            _ if is_full => result.flags |= ReturnFlags::CTRUNC,
            Kind::Socket => result.sockets += 1,
            Kind::Own | Kind::Foreign => result.foreign += 1,
        }
        closing::close(&socket, descriptor);
    }
    Ok(result)
}

/// Like [`receive`], but returns all descriptors of any kind, up to the most that a message can
/// have. The caller sends them on and passes them to [`close_copy`], because close(2) may not
/// return. While too many descriptors wait to be closed, no more are received.
pub fn receive_all(socket: impl AsFd, space: &mut [u8]) -> Result<Received, Errno> {
    let has_space = !closing::is_exhausted() && !closing::is_full(&socket);
    let mut space_for_rights = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST_OF_A_MESSAGE))];
    let space_for_rights = match has_space {
        true => space_for_rights.as_mut_slice(),
        false => &mut [],
    };
    let mut control = RecvAncillaryBuffer::new(space_for_rights);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(space)], &mut control, flags)?;
    Ok(Received {
        bytes: received.bytes,
        descriptors: rights(&mut control).collect(),
        foreign: 0,
        sockets: 0,
        flags: received.flags,
    })
}

/// Closes a descriptor that came on `socket` and was sent on. Another thread does so if close(2)
/// may wait.
pub fn close_copy(socket: impl AsFd, descriptor: OwnedFd) {
    match closing::kind(&descriptor, Sockets::None) {
        Kind::Own => drop(descriptor),
        Kind::Foreign | Kind::Socket => closing::close_copy(socket, descriptor),
    }
}

/// Ends a connection: receives and drops the remaining data. Otherwise the kernel would close the
/// remaining descriptors together with the socket, and might wait for that. Another thread
/// continues if many descriptors do not close.
pub fn discard(socket: impl AsFd) {
    // Fails only if the other side has closed the socket already.
    let _ = shutdown(&socket, Shutdown::Read);
    let mut space = [0; 4096];
    // An empty packet cannot be told from the end.
    for _ in 0..MOST_PACKETS {
        if closing::is_full(&socket) {
            if let Ok(rest) = socket.as_fd().try_clone_to_owned() {
                // The other side now sees the end.
                let _ = shutdown(&socket, Shutdown::Both);
                return closing::close(&socket, rest);
            }
        }
        // Data may follow the news that the other side has gone (ECONNRESET).
        if receive(&socket, &mut space).is_err_and(|error| error == Errno::AGAIN) {
            return;
        }
    }
}

/// Sends some of `parts`, and all descriptors with the first byte. Returns the number of bytes
/// sent. Fails with [`Errno::AGAIN`] if the socket buffer is full.
pub fn send(
    socket: impl AsFd,
    parts: &[IoSlice<'_>],
    descriptors: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    let mut space_for_rights = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST_OF_A_MESSAGE))];
    let mut control = SendAncillaryBuffer::new(&mut space_for_rights);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, parts, &mut control, flags)
}

/// Waits until the socket is ready or a signal comes. Fails with [`Errno::TIMEDOUT`] if neither
/// happens by `deadline`.
pub fn wait_until(
    socket: impl AsFd,
    ready: PollFlags,
    deadline: Option<Instant>,
) -> Result<(), Errno> {
    let left = deadline
        .map(|deadline| Timespec::try_from(deadline.saturating_duration_since(Instant::now())));
    let left = left.transpose().map_err(|_| Errno::INVAL)?;
    match poll(&mut [PollFd::new(&socket, ready)], left.as_ref()) {
        Ok(0) => Err(Errno::TIMEDOUT),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn what_is_left_behind_news_of_the_end_is_discarded_too() {
        let (family, flags) = (AddressFamily::UNIX, SocketFlags::empty());
        let pair = socketpair(family, SocketType::SEQPACKET, flags, None);
        let (ours, theirs) = pair.unwrap();
        // Data that they have not read makes the next call here fail with ECONNRESET.
        send(&ours, &[IoSlice::new(b"unread")], &[]).unwrap();
        for _ in 0..2 {
            send(&theirs, &[IoSlice::new(b"left")], &[ours.as_fd()]).unwrap();
        }
        drop(theirs);
        discard(&ours);
        let left = receive(&ours, &mut [0; 8]);
        assert!(left.is_err() || left.is_ok_and(|left| left.bytes == 0));
    }
}
