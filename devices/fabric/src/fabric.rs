//! The logic of the fabric: the effects of each message of an adapter. It contains no I/O and no
//! clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use self::port::{Adapter, HeldPackets, Holder, Parcel, Port};
pub(crate) use self::port::{CutOff, PortId, Reason};
use self::transit::Transit;
use crate::gid::Gid;
use crate::impairments::Impairments;
use crate::limits::{
    HELLO_TIME_OUT, MAX_ADAPTERS, MAX_HELD, MAX_HELD_DESCRIPTORS, MAX_WAITING, NAME_TIME_OUT,
    PROTOCOL,
};
use crate::message::{AdapterId, Body, Incarnation, Message, Refusal};
use crate::record::{Happened, Record};

mod port;
#[cfg(test)]
mod tests;
mod transit;

/// Descriptors of the fabric that a direct connection uses: its own end, and those that the
/// adapters have not read.
const DESCRIPTORS_OF_DIRECT: usize = 3;

/// One fabric.
#[derive(Debug)]
pub(crate) struct PacketFabric {
    impairments: Arc<Mutex<Impairments>>,
    record: Record,
    /// Numbers of descriptors that the held packets have and may have. Direct connections may have
    /// as many again.
    descriptors: usize,
    most_descriptors: usize,
    /// Returns the incarnation with this number.
    incarnation: fn(u64) -> Incarnation,
    ports: BTreeMap<PortId, Port>,
    /// The holder of each GID.
    holders: BTreeMap<Gid, Holder>,
    transit: Transit,
    cut_off: Vec<CutOff>,
    last_port: u64,
    last_incarnation: u64,
}

impl PacketFabric {
    /// Makes a fabric without adapters. `incarnation` makes incarnations of numbers; an adapter
    /// must not be able to guess one. The held packets may have `most_descriptors` descriptors.
    pub(crate) fn new(
        impairments: Arc<Mutex<Impairments>>,
        record: Record,
        incarnation: fn(u64) -> Incarnation,
        most_descriptors: usize,
    ) -> Self {
        Self {
            descriptors: 0,
            most_descriptors,
            impairments,
            record,
            incarnation,
            ports: BTreeMap::new(),
            holders: BTreeMap::new(),
            transit: Transit::default(),
            cut_off: Vec::new(),
            last_port: 0,
            last_incarnation: 0,
        }
    }

    /// Adds a connection, before its Hello.
    pub(crate) fn connect(&mut self, now: Instant) -> PortId {
        self.last_port += 1;
        let port = PortId(self.last_port);
        self.ports.insert(port, Port::new(now));
        port
    }

    /// Takes the connections to close. The fabric has already forgotten them.
    pub(crate) fn take_cut_off(&mut self) -> Vec<CutOff> {
        std::mem::take(&mut self.cut_off)
    }

    /// Returns the next message to send to an adapter.
    pub(crate) fn next(&mut self, to: PortId) -> Option<Message> {
        let port = self.ports.get_mut(&to)?;
        if let Some(answer) = port.answers.pop_front() {
            return Some(answer);
        }
        if let Some((_, direct)) = port.direct.pop_first() {
            return Some(direct);
        }
        let parcel = port.arrived.pop_front()?;
        self.release(&parcel);
        Some(parcel.message())
    }

    /// Handles a message. Ignores it if the connection has ended.
    pub(crate) fn receive(&mut self, from: PortId, message: Message, now: Instant) {
        let Some(port) = self.ports.get(&from) else {
            return;
        };
        let is_attached = port.adapter.is_some();
        let outcome = match message {
            _ if port.awaited.is_some() => Err(Reason::Violation(
                "it does not wait for the answer to its Hello",
            )),
            Message::Hello {
                protocol,
                name,
                gid,
            } if !is_attached => self.hello(from, protocol, (name, gid), now),
            _ if !is_attached => Err(Reason::Violation("its first message is not a Hello")),
            Message::Resolve { gid } => {
                self.answer_who_has(from, gid);
                Ok(())
            }
            Message::Packet {
                peer,
                incarnation,
                body,
            } => {
                let gid = peer;
                self.packet(from, AdapterId { gid, incarnation }, body, now);
                Ok(())
            }
            Message::Connect { gid } => {
                self.connect_directly(from, gid, now);
                Ok(())
            }
            _ => Err(Reason::Violation("only a fabric sends such a message")),
        };
        if let Err(reason) = outcome {
            self.cut_off(from, reason, now);
        }
    }

    /// Delivers packets whose delay is over, and ends every wait that has taken too long.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(parcel) = self.transit.due(now) {
            self.arrive(parcel);
        }
        let is_late = |port: &Port| port.is_silent() && port.connected + HELLO_TIME_OUT <= now;
        for port in self.ports_that(is_late) {
            self.cut_off(port, Reason::Silent, now);
        }
        let has_waited =
            |port: &Port| matches!(&port.awaited, Some((_, deadline)) if *deadline <= now);
        for port in self.ports_that(has_waited) {
            self.cut_off(port, Reason::Refused(Refusal::Taken), now);
        }
    }

    /// Returns the time at which [`PacketFabric::expire`] must be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let ports = self.ports.values();
        let waits = ports.filter_map(|port| match &port.awaited {
            Some((_, deadline)) => Some(*deadline),
            None => port.is_silent().then(|| port.connected + HELLO_TIME_OUT),
        });
        waits.chain(self.transit.deadline()).min()
    }

    /// Handles the end of a connection.
    pub(crate) fn leave(&mut self, leaving: PortId, now: Instant) {
        let Some(port) = self.ports.remove(&leaving) else {
            return;
        };
        port.arrived.iter().for_each(|parcel| self.release(parcel));
        if let Some(adapter) = port.adapter {
            self.forget_holder(adapter.gid);
        }
        self.welcome_next(now);
    }

    /// Forgets an adapter that has left. Adapters that learn of this receive none of its packets
    /// any more.
    fn forget_holder(&mut self, gid: Gid) {
        self.drop_packets_of(gid);
        if let Some(holder) = self.holders.remove(&gid) {
            self.impairments.lock().forget(gid);
            self.record.note(|| Happened::Left(holder.name, gid));
        }
    }

    /// Drops all packets that an adapter has sent.
    fn drop_packets_of(&mut self, gid: Gid) {
        let mut dropped = self.transit.take_out(gid);
        for port in self.ports.values_mut() {
            let arrived = std::mem::take(&mut port.arrived).into_iter();
            let (of_it, others): (Vec<_>, Vec<_>) =
                arrived.partition(|parcel| parcel.sender.gid == gid);
            port.arrived = others.into();
            port.direct.remove(&gid);
            dropped.extend(of_it);
        }
        dropped.iter().for_each(|parcel| self.release(parcel));
    }

    fn hello(
        &mut self,
        from: PortId,
        protocol: u32,
        (name, gid): (String, Gid),
        now: Instant,
    ) -> Result<(), Reason> {
        if protocol != PROTOCOL {
            return Err(Reason::Refused(Refusal::Protocol));
        }
        let adapter = Adapter { name, gid };
        if self.is_taken(&adapter) {
            if let Some(port) = self.ports.get_mut(&from) {
                port.awaited = Some((adapter, now + NAME_TIME_OUT));
            }
            return Ok(());
        }
        self.welcome(from, adapter)
    }

    /// Returns `true` if an adapter has the name or the GID.
    fn is_taken(&self, wanted: &Adapter) -> bool {
        let mut adapters = self.ports.values().filter_map(|port| port.adapter.as_ref());
        adapters.any(|adapter| adapter.gid == wanted.gid || adapter.name == wanted.name)
    }

    fn welcome(&mut self, from: PortId, adapter: Adapter) -> Result<(), Reason> {
        let attached = self.ports.values().filter(|port| port.adapter.is_some());
        if attached.count() >= MAX_ADAPTERS {
            return Err(Reason::Refused(Refusal::Full));
        }
        self.last_incarnation += 1;
        let incarnation = (self.incarnation)(self.last_incarnation);
        let Adapter { name, gid } = adapter.clone();
        self.impairments.lock().meet(gid, name.clone());
        self.record.note(|| Happened::Attached(name.clone(), gid));
        let holder = Holder {
            port: from,
            name,
            incarnation,
            held: HeldPackets::default(),
        };
        self.holders.insert(gid, holder);
        if let Some(port) = self.ports.get_mut(&from) {
            port.adapter = Some(adapter);
            port.answer(Message::Welcome { incarnation });
        }
        Ok(())
    }

    /// Gives a name and a GID that are free to the first adapter that waits for them.
    fn welcome_next(&mut self, now: Instant) {
        for port in self.ports_that(|port| port.awaited.is_some()) {
            let awaited = self.ports.get(&port).and_then(|port| port.awaited.clone());
            let Some((adapter, _)) = awaited.filter(|(wanted, _)| !self.is_taken(wanted)) else {
                continue;
            };
            if let Some(port) = self.ports.get_mut(&port) {
                port.awaited = None;
            }
            if let Err(reason) = self.welcome(port, adapter) {
                self.cut_off(port, reason, now);
            }
        }
    }

    fn cut_off(&mut self, port: PortId, reason: Reason, now: Instant) {
        self.leave(port, now);
        self.cut_off.push(CutOff { port, reason });
    }

    fn ports_that(&self, filter: impl Fn(&Port) -> bool) -> Vec<PortId> {
        let matching = self.ports.iter().filter(|(_, port)| filter(port));
        matching.map(|(id, _)| *id).collect()
    }

    fn answer_who_has(&mut self, from: PortId, gid: Gid) {
        let holder = self.holders.get(&gid);
        let incarnation = holder.map_or(Incarnation::NONE, |holder| holder.incarnation);
        let takes_descriptors = holder.is_none_or(|holder| {
            let asker = self.ports.get(&from).and_then(|port| port.adapter.as_ref());
            asker.is_none_or(|asker| {
                let impairments = self.impairments.lock();
                !impairments.affects(&asker.name, &holder.name)
            })
        });
        if let Some(port) = self.ports.get_mut(&from) {
            port.answer(Message::Peer {
                gid,
                incarnation,
                takes_descriptors,
            });
        }
    }

    /// Gives an adapter and the holder of a GID a direct connection, if they may have one.
    fn connect_directly(&mut self, from: PortId, to: Gid, now: Instant) {
        let asker = self.ports.get(&from).and_then(|port| port.adapter.as_ref());
        let asker = asker.and_then(|adapter| self.holders.get_key_value(&adapter.gid));
        let (Some((&gid, asker)), Some(other)) = (asker, self.holders.get(&to)) else {
            return;
        };
        let names = (asker.name.as_str(), other.name.as_str());
        let mut impairments = self.impairments.lock();
        let most = self.most_descriptors / DESCRIPTORS_OF_DIRECT;
        if gid == to || impairments.direct_connections() >= most {
            return;
        }
        let Some([near, far]) = impairments.connect((gid, to), names, now) else {
            return;
        };
        drop(impairments);
        let end = |gid, incarnation, socket| Message::Direct {
            gid,
            incarnation,
            socket: Some(Arc::new(socket)),
        };
        let ends = [
            (from, end(to, other.incarnation, near)),
            (other.port, end(gid, asker.incarnation, far)),
        ];
        for ((port, end), peer) in ends.into_iter().zip([to, gid]) {
            if let Some(port) = self.ports.get_mut(&port) {
                port.direct.insert(peer, end);
            }
        }
    }

    fn packet(&mut self, from: PortId, to: AdapterId, body: Body, now: Instant) {
        let gid = self.ports.get(&from).and_then(|port| port.adapter.as_ref());
        let sender = gid.and_then(|adapter| self.holders.get_key_value(&adapter.gid));
        let receiver = self.holders.get(&to.gid);
        let receiver = receiver.filter(|holder| holder.is_meant_by(to.incarnation));
        let (Some((gid, sender)), Some(receiver)) = (sender, receiver) else {
            return self.answer_who_has(from, to.gid);
        };
        let names = (sender.name.clone(), receiver.name.clone());
        let parcel = Parcel {
            sender: AdapterId {
                gid: *gid,
                incarnation: sender.incarnation,
            },
            destination: receiver.port,
            receiver: to.gid,
            body,
        };
        let size = parcel.body.size();
        let outcome =
            self.impairments
                .lock()
                .next_outcome((*gid, to.gid), (&names.0, &names.1), size, now);
        if !outcome.is_plain() {
            self.record.note(|| Happened::Impaired {
                names,
                outcome: outcome.clone(),
                what: parcel.body.summary(),
            });
        }
        for delay in outcome.copies.unwrap_or_default() {
            self.forward(parcel.clone(), delay, now);
        }
    }

    fn forward(&mut self, parcel: Parcel, delay: Duration, now: Instant) {
        if !self.admit(&parcel) {
            self.note_overflow(&parcel);
        } else if delay.is_zero() {
            self.arrive(parcel);
        } else {
            self.transit.push(now + delay, parcel);
        }
    }

    /// Accepts a packet, if the fabric may hold one more of its sender. To make room, it drops a
    /// packet that waits for an adapter that does not read.
    fn admit(&mut self, parcel: &Parcel) -> bool {
        let (gid, descriptors) = (parcel.sender.gid, parcel.body.descriptors());
        let Some(held) = self.holders.get(&gid).map(|holder| holder.held) else {
            return false;
        };
        let in_all = self.descriptors + descriptors;
        let of_it = held.descriptors + descriptors;
        if descriptors > 0 && (of_it > MAX_HELD_DESCRIPTORS || in_all > self.most_descriptors) {
            return false;
        }
        if held.packets >= MAX_HELD && !self.drop_oldest_of(gid) {
            return false;
        }
        if let Some(holder) = self.holders.get_mut(&gid) {
            holder.held.packets += 1;
            holder.held.descriptors += descriptors;
        }
        // Dropped packets have been subtracted by now.
        self.descriptors += descriptors;
        true
    }

    /// Drops the oldest packet of an adapter at the destination where most of its packets wait.
    /// Returns `false` if none waits.
    fn drop_oldest_of(&mut self, gid: Gid) -> bool {
        let ports = self.ports.values_mut();
        let most = ports.max_by_key(|port| port.waiting_of(gid));
        let Some(oldest) = most.and_then(|port| port.take_oldest_of(gid)) else {
            return false;
        };
        self.release(&oldest);
        self.note_overflow(&oldest);
        true
    }

    /// Handles the arrival of a packet at its destination, if that still exists. If too many
    /// packets of its sender wait there, drops the oldest.
    fn arrive(&mut self, parcel: Parcel) {
        let gid = parcel.sender.gid;
        let dropped = match self.ports.get_mut(&parcel.destination) {
            Some(port) => {
                let is_full = port.waiting_of(gid) >= MAX_WAITING;
                let oldest = is_full.then(|| port.take_oldest_of(gid)).flatten();
                port.arrived.push_back(parcel);
                oldest
            }
            None => Some(parcel),
        };
        if let Some(dropped) = dropped {
            self.release(&dropped);
            self.note_overflow(&dropped);
        }
    }

    fn note_overflow(&self, parcel: &Parcel) {
        let name = |gid: &Gid| self.holders.get(gid).map(|holder| holder.name.clone());
        self.record.note(|| Happened::Overflowed {
            names: (
                name(&parcel.sender.gid).unwrap_or_default(),
                name(&parcel.receiver).unwrap_or_default(),
            ),
            what: parcel.body.summary(),
        });
    }

    /// Stops holding this packet.
    fn release(&mut self, parcel: &Parcel) {
        let descriptors = parcel.body.descriptors();
        self.descriptors = self.descriptors.saturating_sub(descriptors);
        let AdapterId { gid, incarnation } = parcel.sender;
        let holder = self.holders.get_mut(&gid);
        if let Some(holder) = holder.filter(|holder| holder.incarnation == incarnation) {
            holder.held.packets = holder.held.packets.saturating_sub(1);
            holder.held.descriptors = holder.held.descriptors.saturating_sub(descriptors);
        }
    }
}
