//! Adapters of other fabrics.

use std::time::Instant;

use super::PacketFabric;
use super::port::{HeldPackets, Holder, Port, PortId, Reason};
use super::transit::Parcel;
use crate::gid::Gid;
use crate::limits::MAX_ADAPTERS;
use crate::message::{AdapterId, Body};
use crate::tunnel::Frame;

impl PacketFabric {
    /// A tunnel to another fabric, which is sent the adapters here.
    pub(crate) fn connect_tunnel(&mut self, now: Instant) -> PortId {
        let port = self.connect(now);
        let here = self.holders.iter().filter(|(_, holder)| holder.is_here());
        let notices = here.map(|(gid, holder)| holder.present(*gid)).collect();
        let tunnel = Port {
            is_tunnel: true,
            notices,
            ..Port::new(now)
        };
        self.ports.insert(port, tunnel);
        port
    }

    /// The next thing that this fabric has to say to another one.
    pub(crate) fn next_notice(&mut self, to: PortId) -> Option<Frame> {
        self.ports.get_mut(&to)?.notices.pop_front()
    }

    /// The next packet for an adapter of another fabric, which is to be sent.
    pub(crate) fn next_far_packet(&mut self, to: PortId) -> Option<Frame> {
        let parcel = self.ports.get_mut(&to)?.arrived.pop_front()?;
        self.release(&parcel);
        Some(parcel.frame())
    }

    /// Handles a frame of another fabric. One of a tunnel that has ended does nothing.
    pub(crate) fn receive_frame(&mut self, from: PortId, frame: Frame, now: Instant) {
        if !self.ports.contains_key(&from) {
            return;
        }
        match frame {
            Frame::Present {
                name,
                gid,
                incarnation,
            } => self.present(from, name, AdapterId { gid, incarnation }, now),
            Frame::Absent { gid } => self.absent(from, gid),
            Frame::Packet {
                from: sender,
                to,
                body,
            } => self.packet_of_tunnel(from, sender, to, body),
        }
    }

    /// Sends a notice to all other fabrics.
    pub(super) fn notify_tunnels(&mut self, notice: &Frame) {
        let tunnels = self.ports.values_mut().filter(|port| port.is_tunnel);
        tunnels.for_each(|port| port.notices.push_back(notice.clone()));
    }

    fn present(&mut self, tunnel: PortId, name: String, adapter: AdapterId, now: Instant) {
        let AdapterId { gid, incarnation } = adapter;
        self.absent(tunnel, gid);
        let Some(port) = self.ports.get_mut(&tunnel) else {
            return;
        };
        if port.announced.len() >= MAX_ADAPTERS {
            let reason = Reason::Violation("it has more adapters than a fabric takes");
            return self.cut_off(tunnel, reason, now);
        }
        port.announced.insert(gid, (name.clone(), incarnation));
        match self.holders.get(&gid) {
            Some(holder) => {
                log::warn!(
                    "{gid} of {name}, of another machine, waits until {} leaves, which has it: each machine needs a number of its own \
                     (`machine`)",
                    holder.name
                );
            }
            None => self.hold_announced(gid),
        }
    }

    /// Gives a GID that no adapter has to the first other fabric that has announced it.
    pub(super) fn hold_announced(&mut self, gid: Gid) {
        let mut ports = self.ports.iter();
        let announced = ports.find_map(|(port, of)| Some((*port, of.announced.get(&gid)?.clone())));
        let Some((port, (name, there))) = announced else {
            return;
        };
        let mut incarnation = self.next_incarnation();
        if incarnation == there {
            incarnation = self.next_incarnation();
        }
        let holder = Holder {
            port,
            name,
            incarnation,
            there,
            held: HeldPackets::default(),
        };
        self.hold(gid, holder);
    }

    fn absent(&mut self, tunnel: PortId, gid: Gid) {
        let port = self.ports.get_mut(&tunnel);
        if port.is_none_or(|port| port.announced.remove(&gid).is_none()) {
            return;
        }
        let holder = self.holders.get(&gid);
        if holder.is_some_and(|holder| holder.port == tunnel) {
            self.forget_holder(gid);
        }
    }

    /// A packet has come, if both ends of it are still there.
    fn packet_of_tunnel(&mut self, tunnel: PortId, from: AdapterId, to: AdapterId, body: Body) {
        let is_sender =
            |holder: &&Holder| holder.port == tunnel && holder.there == from.incarnation;
        let sender = self.holders.get(&from.gid).filter(is_sender);
        let is_receiver =
            |holder: &&Holder| holder.is_here() && holder.incarnation == to.incarnation;
        let receiver = self.holders.get(&to.gid).filter(is_receiver);
        let (Some(sender), Some(receiver)) = (sender, receiver) else {
            return;
        };
        let parcel = Parcel {
            sender: AdapterId {
                gid: from.gid,
                incarnation: sender.incarnation,
            },
            destination: receiver.port,
            receiver: to,
            body,
        };
        let port = self.ports.get_mut(&parcel.destination);
        if port.is_some_and(|port| port.takes_far_peer(from.gid)) && self.admit(&parcel) {
            self.arrive(parcel);
        } else {
            self.note_overflow(&parcel);
        }
    }
}
