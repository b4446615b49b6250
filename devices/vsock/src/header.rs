//! The header of a packet (virtio 1.2, 5.10.6).

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct virtio_vsock_hdr` (virtio 1.2, 5.10.6).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct WireHeader {
    source_cid: U64,
    destination_cid: U64,
    source_port: U32,
    destination_port: U32,
    length: U32,
    socket_type: U16,
    operation: U16,
    flags: U32,
    buffer: U32,
    forwarded: U32,
}

impl WireHeader {
    /// Returns the bytes of data that follow.
    pub(crate) fn length(&self) -> u32 {
        self.length.get()
    }
}

/// CID of the host (virtio 1.2, 5.10.4).
pub(crate) const HOST_CID: u64 = 2;
/// A stream socket, the only supported type (virtio 1.2, 5.10.6.1).
const STREAM: u16 = 1;

/// The kind of a packet (virtio 1.2, 5.10.6, `VIRTIO_VSOCK_OP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum PacketKind {
    /// Requests a connection.
    Request = 1,
    /// Accepts one.
    Response = 2,
    /// Ends one at once, or refuses it.
    Reset = 3,
    /// Announces that the sender sends, or receives, no more.
    Shutdown = 4,
    /// Carries data.
    Data = 5,
    /// Announces the sender's credit.
    CreditUpdate = 6,
    /// Asks for a [`PacketKind::CreditUpdate`].
    CreditRequest = 7,
}

impl PacketKind {
    fn of(operation: u16) -> Option<Self> {
        Some(match operation {
            1 => Self::Request,
            2 => Self::Response,
            3 => Self::Reset,
            4 => Self::Shutdown,
            5 => Self::Data,
            6 => Self::CreditUpdate,
            7 => Self::CreditRequest,
            _ => return None,
        })
    }
}

/// Flag of [`PacketKind::Shutdown`]: the sender receives no more.
pub(crate) const NO_MORE_RECEIVED: u32 = 1;
/// Flag of [`PacketKind::Shutdown`]: the sender sends no more.
pub(crate) const NO_MORE_SENT: u32 = 2;

/// The two ports that identify a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ports {
    /// The guest's.
    pub(crate) guest: u32,
    /// The host's.
    pub(crate) host: u32,
}

/// The header of a packet to or from the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VsockHeader {
    /// The connection.
    pub(crate) ports: Ports,
    /// Its kind.
    pub(crate) kind: PacketKind,
    /// Flags, for [`PacketKind::Shutdown`].
    pub(crate) flags: u32,
    /// Bytes of data that follow.
    pub(crate) length: u32,
    /// Size of the sender's receive buffer in bytes.
    pub(crate) buffer: u32,
    /// Bytes that the sender has taken out of that, modulo 2^32.
    pub(crate) forwarded: u32,
}

impl VsockHeader {
    /// Returns a header that refuses or ends the connection `ports`.
    pub(crate) fn reset(ports: Ports) -> Self {
        Self {
            ports,
            kind: PacketKind::Reset,
            flags: 0,
            length: 0,
            buffer: 0,
            forwarded: 0,
        }
    }

    /// Returns the header of a packet from the guest `cid`. `Err` has the ports of a packet that is
    /// not understood, which must be refused.
    pub(crate) fn of_guest(wire: &WireHeader, cid: u64) -> Result<Self, Ports> {
        let ports = Ports {
            guest: wire.source_port.get(),
            host: wire.destination_port.get(),
        };
        let ours = wire.source_cid.get() == cid && wire.destination_cid.get() == HOST_CID;
        let ours = ours && wire.socket_type.get() == STREAM;
        let kind = PacketKind::of(wire.operation.get()).filter(|_| ours);
        Ok(Self {
            ports,
            kind: kind.ok_or(ports)?,
            flags: wire.flags.get(),
            length: wire.length.get(),
            buffer: wire.buffer.get(),
            forwarded: wire.forwarded.get(),
        })
    }

    /// Returns the header of a packet for the guest `cid`.
    pub(crate) fn for_guest(&self, cid: u64) -> WireHeader {
        WireHeader {
            source_cid: HOST_CID.into(),
            destination_cid: cid.into(),
            source_port: self.ports.host.into(),
            destination_port: self.ports.guest.into(),
            length: self.length.into(),
            socket_type: STREAM.into(),
            operation: (self.kind as u16).into(),
            flags: self.flags.into(),
            buffer: self.buffer.into(),
            forwarded: self.forwarded.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_numbers_are_those_of_virtio() {
        for number in 0..16 {
            match PacketKind::of(number) {
                Some(kind) => assert_eq!(kind as u16, number),
                None => assert!(!(1..=7).contains(&number), "{number}"),
            }
        }
    }

    #[test]
    fn packet_of_another_guest_or_to_another_host_is_refused() {
        let ports = Ports { guest: 5, host: 6 };
        let of = |source: u64, destination: u64| {
            let mut wire = VsockHeader::reset(ports).for_guest(3);
            (wire.source_cid, wire.destination_cid) = (source.into(), destination.into());
            (wire.source_port, wire.destination_port) = (5.into(), 6.into());
            VsockHeader::of_guest(&wire, 3)
        };
        assert!(of(3, HOST_CID).is_ok_and(|header| header.ports == ports));
        for (source, destination) in [(4, HOST_CID), (HOST_CID, HOST_CID), (3, 3), (3, 1)] {
            assert!(of(source, destination).is_err_and(|refused| refused == ports));
        }
    }
}
