//! Adapters of other fabrics.

use std::time::Instant;

use super::Fabric;
use super::port::{CutOff, Holder, Port, PortId, Reason};
use super::transit::Parcel;
use crate::gid::Gid;
use crate::limits::MAX_ADAPTERS;
use crate::message::{Body, Incarnation};
use crate::tunnel::Frame;

impl Fabric {
    /// A tunnel to another fabric, which learns of the adapters here.
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

    /// The next frame for another fabric, which is to be sent.
    pub(crate) fn next_frame(&mut self, to: PortId) -> Option<Frame> {
        let port = self.ports.get_mut(&to)?;
        if let Some(notice) = port.notices.pop_front() {
            return Some(notice);
        }
        let parcel = port.arrived.pop_front()?;
        self.release(parcel.source);
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
            } => self.present(from, name, (gid, incarnation), now),
            Frame::Absent { gid } => self.absent(from, gid),
            Frame::Packet {
                from: sender,
                to,
                body,
            } => self.packet_of_tunnel(from, sender, to, body),
        }
    }

    /// Says something to all other fabrics.
    pub(super) fn notify_tunnels(&mut self, notice: &Frame) {
        let tunnels = self.ports.values_mut().filter(|port| port.is_tunnel);
        tunnels.for_each(|port| port.notices.push_back(notice.clone()));
    }

    fn present(
        &mut self,
        tunnel: PortId,
        name: String,
        (gid, there): (Gid, Incarnation),
        now: Instant,
    ) {
        if let Some(holder) = self.holders.get(&gid) {
            log::warn!("{name} of another fabric has {gid}, as {} has", holder.name);
            return;
        }
        let known = self.holders.values().filter(|holder| holder.port == tunnel);
        if known.count() >= MAX_ADAPTERS {
            let reason = Reason::Violation("it has more adapters than a fabric takes");
            self.leave(tunnel, now);
            self.cut_off.push(CutOff {
                port: tunnel,
                reason,
            });
            return;
        }
        let mut incarnation = self.next_incarnation();
        if incarnation == there {
            incarnation = self.next_incarnation();
        }
        let holder = Holder {
            port: tunnel,
            name,
            incarnation,
            there,
        };
        self.hold(gid, holder);
    }

    fn absent(&mut self, tunnel: PortId, gid: Gid) {
        let holder = self.holders.get(&gid);
        if holder.is_none_or(|holder| holder.port != tunnel) {
            return;
        }
        // Whoever learns that it has left gets nothing of it any more.
        for port in self.ports.values_mut() {
            port.arrived
                .retain(|parcel| parcel.source != tunnel || parcel.sender.0 != gid);
        }
        self.forget_holder(gid);
    }

    /// A packet has come, if both ends of it are still there.
    fn packet_of_tunnel(
        &mut self,
        tunnel: PortId,
        (from, of): (Gid, Incarnation),
        (to, meant): (Gid, Incarnation),
        body: Body,
    ) {
        let sender = self.holders.get(&from);
        let sender = sender.filter(|holder| holder.port == tunnel && holder.there == of);
        let receiver = self.holders.get(&to);
        let receiver = receiver.filter(|holder| holder.is_here() && holder.incarnation == meant);
        let (Some(sender), Some(receiver)) = (sender, receiver) else {
            return;
        };
        let parcel = Parcel {
            source: tunnel,
            sender: (from, sender.incarnation),
            destination: receiver.port,
            receiver: (to, meant),
            body,
        };
        if let Some(port) = self.ports.get_mut(&tunnel) {
            port.held += 1;
            self.arrive(parcel);
        }
    }
}
