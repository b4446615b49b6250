//! Bytes and descriptors that wait to be sent on.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use peerbar_host::socket_file::descriptors;
use rustix::io::Errno;

/// Bytes that may wait.
pub(super) const SPACE: usize = 64 << 10;
/// Packets that may wait. The descriptors of a message usually come with its first byte.
const MOST_PACKETS: usize = 2;

/// Data on its way, in the order in which it came.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    packets: VecDeque<Packet>,
}

/// Bytes with the descriptors of the first one.
#[derive(Debug, Default)]
struct Packet {
    bytes: Vec<u8>,
    sent: usize,
    descriptors: Vec<OwnedFd>,
}

impl Outbox {
    /// Adds bytes, and the descriptors that came with the first of them.
    pub(super) fn push(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        match self.packets.back_mut() {
            Some(packet) if descriptors.is_empty() => packet.bytes.extend_from_slice(bytes),
            _ => self.packets.push_back(Packet {
                bytes: bytes.to_vec(),
                sent: 0,
                descriptors,
            }),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns a descriptor of the message that waits, unless a part of it has been sent.
    pub(super) fn descriptor(&mut self, index: usize) -> Option<&mut OwnedFd> {
        let is_whole = self.packets.iter().all(|packet| packet.sent == 0);
        let mut descriptors = self
            .packets
            .iter_mut()
            .flat_map(|packet| &mut packet.descriptors);
        descriptors.nth(index).filter(|_| is_whole)
    }

    /// Returns the number of bytes that may be added, or 0 while descriptors of a second packet
    /// wait, so that no sender exhausts the descriptors of this process.
    pub(super) fn space(&self) -> usize {
        if self.packets.len() >= MOST_PACKETS {
            return 0;
        }
        let packets = self.packets.iter();
        let waiting = packets.map(|packet| packet.bytes.len().saturating_sub(packet.sent));
        SPACE.saturating_sub(waiting.sum())
    }

    /// Sends as much as the socket has space for. `from` is the socket on which the data came.
    pub(super) fn flush(&mut self, from: &UnixStream, to: &UnixStream) -> Result<(), Errno> {
        while let Some(packet) = self.packets.front_mut() {
            match packet.send(to) {
                Ok(()) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            }
            packet.close_descriptors(from);
            if packet.sent >= packet.bytes.len() {
                self.packets.pop_front();
            }
        }
        Ok(())
    }

    /// Drops everything.
    pub(super) fn clear(&mut self, from: &UnixStream) {
        for packet in &mut self.packets {
            packet.close_descriptors(from);
        }
        self.packets.clear();
    }
}

impl Packet {
    fn send(&mut self, to: &UnixStream) -> Result<(), Errno> {
        let rest = self.bytes.get(self.sent..).unwrap_or_default();
        let fds: Vec<_> = self.descriptors.iter().map(AsFd::as_fd).collect();
        let sent = descriptors::send(to, &[IoSlice::new(rest)], &fds)?;
        self.sent = self.sent.saturating_add(sent);
        Ok(())
    }

    fn close_descriptors(&mut self, from: &UnixStream) {
        for descriptor in self.descriptors.drain(..) {
            descriptors::close_copy(from, descriptor);
        }
    }
}
