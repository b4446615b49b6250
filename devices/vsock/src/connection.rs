//! One connection: a Unix socket on the host, a port in the guest, and the credit of both directions (virtio 1.2, 5.10.6.3).

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use crate::header::{NO_MORE_RECEIVED, NO_MORE_SENT, PacketKind, Ports, VsockHeader};

/// Bytes that the guest may send before the host's program has taken them.
pub(crate) const BUFFER: u32 = 256 << 10;

/// The guest's state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The request has yet to be sent.
    Unasked,
    /// The request has been sent, without an answer so far.
    Asked,
    /// The guest has accepted.
    Accepted,
    /// The guest sends and receives no more, and must learn that this side does not either.
    Ending,
    /// The guest has forgotten the connection; the socket has not taken all of its data yet.
    Forgotten,
}

/// A connection is over: the other side learns of it by a reset, unless it knows already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The guest does not know.
    Reset,
    /// The guest knows, or never knew of the connection.
    Silent,
}

/// A connection that a program of the host has requested.
#[derive(Debug)]
pub(crate) struct VsockConnection {
    ports: Ports,
    stream: UnixStream,
    stage: Stage,
    /// The socket may have data, or its end. Its events are edge-triggered, so this stays set until
    /// a read finds nothing.
    readable: bool,
    /// The host's program sends no more.
    host_ended: bool,
    /// No process holds the other end of the socket.
    gone: bool,
    /// The end has been sent to the guest.
    end_sent: bool,
    /// The host's program knows that the guest sends no more.
    end_given: bool,
    /// The flags of the guest's shutdowns so far.
    guest_flags: u32,
    /// Bytes of the guest that the socket has not taken.
    held: Vec<u8>,
    /// Bytes of the guest that the socket has taken, modulo 2^32.
    forwarded: u32,
    /// The value of `forwarded` that the guest knows.
    reported_forwarded: u32,
    /// A credit update is due.
    update_due: bool,
    /// Bytes sent to the guest, modulo 2^32.
    sent: u32,
    /// Size of the guest's receive buffer.
    guest_buffer: u32,
    /// Bytes that the guest's program has taken, modulo 2^32.
    guest_forwarded: u32,
}

impl VsockConnection {
    /// Makes a connection of `stream`, which must be nonblocking, that the guest does not know of
    /// yet.
    pub(crate) fn new(ports: Ports, stream: UnixStream) -> Self {
        Self {
            ports,
            stream,
            stage: Stage::Unasked,
            readable: true,
            host_ended: false,
            gone: false,
            end_sent: false,
            end_given: false,
            guest_flags: 0,
            held: Vec::new(),
            forwarded: 0,
            reported_forwarded: 0,
            update_due: false,
            sent: 0,
            guest_buffer: 0,
            guest_forwarded: 0,
        }
    }

    /// Handles that the socket may have become readable or writable; `gone` if no process holds its
    /// other end.
    pub(crate) fn socket_changed(&mut self, gone: bool) -> Result<(), Over> {
        self.readable = true;
        self.gone |= gone;
        match self.stage {
            Stage::Unasked if gone => Err(Over::Silent),
            Stage::Asked if gone => Err(Over::Reset),
            _ => self.flush(),
        }
    }

    /// Takes a packet of the guest with its data.
    pub(crate) fn receive(&mut self, header: &VsockHeader, data: &[u8]) -> Result<(), Over> {
        self.guest_buffer = header.buffer;
        self.guest_forwarded = header.forwarded;
        match (header.kind, self.stage) {
            (PacketKind::Reset, _) => {
                self.stage = Stage::Forgotten;
                self.flush()
            }
            (PacketKind::Response, Stage::Asked) => {
                self.stage = Stage::Accepted;
                self.held = format!("OK {}\n", self.ports.host).into_bytes();
                // The greeting does not come from the guest, so it uses no credit.
                let greeting = u32::try_from(self.held.len()).unwrap_or_default();
                self.forwarded = self.forwarded.wrapping_sub(greeting);
                self.reported_forwarded = self.forwarded;
                self.flush()
            }
            (PacketKind::Data, Stage::Accepted) => self.take(data),
            (PacketKind::Shutdown, Stage::Accepted) => {
                self.guest_flags |= header.flags & (NO_MORE_RECEIVED | NO_MORE_SENT);
                if self.guest_flags == NO_MORE_RECEIVED | NO_MORE_SENT {
                    // A guest that closes waits for a reset, and not for the host's program (virtio 1.2, 5.10.6.5).
                    self.stage = Stage::Ending;
                }
                self.flush()
            }
            (PacketKind::CreditRequest, Stage::Accepted) => {
                self.update_due = true;
                Ok(())
            }
            (PacketKind::CreditUpdate, Stage::Accepted) => Ok(()),
            _ => Err(Over::Reset),
        }
    }

    /// Takes data within the credit that the guest was given.
    fn take(&mut self, data: &[u8]) -> Result<(), Over> {
        let capacity = usize::try_from(BUFFER).unwrap_or(usize::MAX);
        if data.len() > capacity.saturating_sub(self.held.len()) {
            log::debug!("the guest exceeds the credit of port {}", self.ports.host);
            return Err(Over::Reset);
        }
        self.held.extend_from_slice(data);
        self.flush()
    }

    /// Writes held data to the socket, as far as it takes it. A connection that the guest has
    /// forgotten ends with its last byte.
    fn flush(&mut self) -> Result<(), Over> {
        let mut written = 0;
        while let Some(rest) = self.held.get(written..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) if self.stage == Stage::Forgotten => return Err(Over::Silent),
                Err(_) => return Err(Over::Reset),
            }
        }
        self.held.drain(..written);
        let taken = u32::try_from(written).unwrap_or_default();
        self.forwarded = self.forwarded.wrapping_add(taken);
        // An update for every byte would double the packets.
        self.update_due |= self.forwarded.wrapping_sub(self.reported_forwarded) >= BUFFER / 4;
        if self.held.is_empty() && self.stage == Stage::Forgotten {
            return Err(Over::Silent);
        }
        if self.held.is_empty() && self.guest_flags & NO_MORE_SENT != 0 && !self.end_given {
            // Each shutdown(2) is an event of the socket.
            self.end_given = true;
            // It may already be closed. Then no data is lost.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    /// Returns `true` if there is a packet for the guest; data counts only if the guest has room
    /// for it.
    pub(crate) fn has_packet(&self) -> bool {
        match self.stage {
            Stage::Unasked | Stage::Ending => true,
            Stage::Asked | Stage::Forgotten => false,
            Stage::Accepted => {
                let data = self.readable && !self.has_ended() && self.reading_credit() > 0;
                self.update_due || data || (self.has_ended() && !self.end_sent)
            }
        }
    }

    /// Returns `true` if no more data comes for the guest: the host's program has ended its side,
    /// or is gone and the guest receives no more.
    fn has_ended(&self) -> bool {
        self.host_ended || (self.gone && self.guest_flags & NO_MORE_RECEIVED != 0)
    }

    /// Returns `true` if neither side has anything to tell the other: the host's program has left,
    /// and the guest knows.
    pub(crate) fn is_over(&self) -> bool {
        self.gone && self.end_sent
    }

    /// Returns `true` if the guest does not know of the connection.
    pub(crate) fn is_unasked(&self) -> bool {
        self.stage == Stage::Unasked
    }

    /// Returns the bytes that the guest can take now, or 0 if it receives no more.
    fn reading_credit(&self) -> usize {
        if self.guest_flags & NO_MORE_RECEIVED != 0 {
            return 0;
        }
        let in_flight = self.sent.wrapping_sub(self.guest_forwarded);
        usize::try_from(self.guest_buffer.saturating_sub(in_flight)).unwrap_or(usize::MAX)
    }

    /// Returns the next packet for the guest, if there is one; its data is put at the start of
    /// `space`.
    pub(crate) fn next_packet(&mut self, space: &mut [u8]) -> Result<Option<VsockHeader>, Over> {
        match self.stage {
            Stage::Unasked => {
                self.stage = Stage::Asked;
                return Ok(Some(self.header(PacketKind::Request)));
            }
            Stage::Ending if self.held.is_empty() => return Err(Over::Reset),
            Stage::Ending => {
                self.stage = Stage::Forgotten;
                return Ok(Some(VsockHeader::reset(self.ports)));
            }
            Stage::Asked | Stage::Forgotten => return Ok(None),
            Stage::Accepted => {}
        }
        if self.readable && !self.has_ended() {
            let count = self.read(space)?;
            if count > 0 {
                self.sent = self.sent.wrapping_add(count);
                let header = self.header(PacketKind::Data);
                return Ok(Some(VsockHeader {
                    length: count,
                    ..header
                }));
            }
        }
        if self.has_ended() && !self.end_sent {
            self.end_sent = true;
            let flags = match self.gone {
                true => NO_MORE_SENT | NO_MORE_RECEIVED,
                false => NO_MORE_SENT,
            };
            let header = self.header(PacketKind::Shutdown);
            return Ok(Some(VsockHeader { flags, ..header }));
        }
        Ok(self
            .update_due
            .then(|| self.header(PacketKind::CreditUpdate)))
    }

    /// Reads the data that the socket has and the guest has room for. Returns 0 if there is nothing
    /// to send.
    fn read(&mut self, space: &mut [u8]) -> Result<u32, Over> {
        let credit = self.reading_credit().min(space.len());
        let Some(space) = space.get_mut(..credit).filter(|space| !space.is_empty()) else {
            return Ok(0);
        };
        match self.stream.read(space) {
            Ok(0) => {
                self.host_ended = true;
                Ok(0)
            }
            Ok(count) => Ok(u32::try_from(count).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(0)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
            Err(_) => Err(Over::Reset),
        }
    }

    /// Returns a header with this side's credit, which the guest knows from then on.
    fn header(&mut self, kind: PacketKind) -> VsockHeader {
        self.reported_forwarded = self.forwarded;
        self.update_due = false;
        VsockHeader {
            ports: self.ports,
            kind,
            flags: 0,
            length: 0,
            buffer: BUFFER,
            forwarded: self.forwarded,
        }
    }
}
