//! The switch itself: what each message of an endpoint leads to. No I/O and no clock of its own.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::link_mode::LinkMode;
use crate::message::{LinkTiming, Memory, Message, PortId, Refusal, Status, Window};
use crate::requests::{RequestId, Requests};
use crate::wire::PROTOCOL;

/// How long the switch waits for an endpoint: for its name, for an acknowledgement, for the answer to a peer's request.
pub const PATIENCE: Duration = Duration::from_secs(4);

/// The most endpoints that are attached at once, and the most vanished ones that are remembered.
pub const MAX_PORTS: usize = 64;

/// How often it is told aloud that windows overlap, which a guest can cause at will.
const OVERLAPS_TOLD: u32 = 16;

/// The claim of windows that nobody is behind any more: every other claim comes before it.
const NO_CLAIM: u64 = u64::MAX;

/// What the switch wants done.
#[derive(Clone, Debug)]
pub(crate) enum Output {
    /// Send it.
    Send(PortId, Message),
    /// Close the connection, once what was to be sent has been tried. [`Switch::leave`] has been done.
    CutOff(PortId, Reason),
}

/// Why an endpoint is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Reason {
    /// It is not let in.
    #[error("it is refused: {0}")]
    Refused(#[source] Refusal),
    /// It has connected and said nothing.
    #[error("it does not say who it is")]
    Silent,
    /// It has not acknowledged a change of another one's windows.
    #[error("it does not acknowledge that the windows of a peer have changed")]
    NoAck,
    /// It does not speak as the protocol wants it.
    #[error("it breaks the protocol: {0}")]
    Violation(&'static str),
}

#[derive(Clone, Debug)]
struct Port {
    connected: Instant,
    /// `None` until its Hello.
    name: Option<String>,
    link: Option<LinkTiming>,
    windows: Vec<Window>,
    /// The last change that it has acknowledged, or that it was told of when it attached.
    acknowledged: u64,
    announcing: Option<Announcing>,
}

/// An announcement that not all others have acknowledged yet.
#[derive(Clone, Debug)]
struct Announcing {
    sequence: u64,
    epoch: u64,
    deadline: Instant,
}

/// An endpoint that vanished while it had windows.
#[derive(Clone, Debug)]
struct Vanished {
    name: String,
    windows: Vec<Window>,
}

/// One switch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Switch {
    modes: BTreeMap<String, LinkMode>,
    ports: BTreeMap<PortId, Port>,
    vanished: BTreeMap<PortId, Vanished>,
    requests: Requests,
    last_port: u32,
    last_epoch: u64,
    last_claim: u64,
    overlaps: u32,
    outputs: Vec<Output>,
}

impl Switch {
    /// A switch with these modes of the links to the endpoints of these names; [`LinkMode::Route`] for any other.
    pub(crate) fn new(modes: BTreeMap<String, LinkMode>) -> Self {
        Self {
            modes,
            ..Self::default()
        }
    }

    /// What is to be done, in order. Doing it may lead to more.
    pub(crate) fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// Somebody has connected.
    pub(crate) fn connect(&mut self, now: Instant) -> PortId {
        self.last_port += 1;
        let port = PortId(self.last_port);
        self.ports.insert(
            port,
            Port {
                connected: now,
                name: None,
                link: None,
                windows: Vec::new(),
                acknowledged: self.last_epoch,
                announcing: None,
            },
        );
        port
    }

    /// A message has come. One of somebody who has left does nothing.
    pub(crate) fn receive(&mut self, from: PortId, message: Message, now: Instant) {
        let Some(port) = self.ports.get(&from) else {
            return;
        };
        let attached = port.name.is_some();
        let outcome = match message {
            Message::Hello { protocol, name } if !attached => self.hello(from, protocol, name),
            _ if !attached => Err(Reason::Violation("its first message is no Hello")),
            Message::Announce { sequence, windows } => self.announce(from, sequence, windows, now),
            Message::Link { timing, .. } => self.link(from, timing),
            Message::Ack { epoch } => self.acknowledge(from, epoch),
            Message::Read {
                peer,
                tag,
                address,
                length,
            } => {
                let passed_on = Message::Read {
                    peer: from,
                    tag,
                    address,
                    length,
                };
                self.request((from, tag), peer, passed_on, now)
            }
            Message::Write {
                peer,
                tag,
                address,
                data,
            } => {
                let passed_on = Message::Write {
                    peer: from,
                    tag,
                    address,
                    data,
                };
                self.request((from, tag), peer, passed_on, now)
            }
            Message::Reply {
                peer,
                tag,
                status,
                data,
            } => {
                self.reply(from, (peer, tag), status, data);
                Ok(())
            }
            _ => Err(Reason::Violation("only a switch sends such a message")),
        };
        if let Err(reason) = outcome {
            self.cut_off(from, reason);
        }
    }

    /// A connection has ended. The windows of an endpoint stay claimed, with nobody behind them.
    pub(crate) fn leave(&mut self, leaving: PortId) {
        let Some(port) = self.ports.remove(&leaving) else {
            return;
        };
        for id in self.requests.leave(leaving) {
            self.answer(leaving, id, Status::Gone, Vec::new());
        }
        if !self.ports.values().any(|port| port.name.is_some()) {
            self.vanished.clear();
        } else if let (Some(name), false) = (port.name, port.windows.is_empty()) {
            let windows = port.windows.into_iter().map(without_owner);
            let windows: Vec<Window> = windows.collect();
            self.publish(leaving, &windows);
            self.vanished.insert(leaving, Vanished { name, windows });
            if self.vanished.len() > MAX_PORTS
                && let Some((oldest, _)) = self.vanished.pop_first()
            {
                self.publish(oldest, &[]);
            }
        }
        self.settle();
    }

    /// Gives up what has been waited for too long.
    pub(crate) fn expire(&mut self, now: Instant) {
        for (id, completer) in self.requests.expire(now) {
            self.answer(completer, id, Status::TimedOut, Vec::new());
        }
        let silent = |port: &Port| port.name.is_none() && port.connected + PATIENCE <= now;
        for port in self.which(silent) {
            self.cut_off(port, Reason::Silent);
        }
        let waited_for = self.announcements().filter(|a| a.deadline <= now);
        if let Some(epoch) = waited_for.map(|announcing| announcing.epoch).max() {
            for port in self.which(|port| port.name.is_some() && port.acknowledged < epoch) {
                self.cut_off(port, Reason::NoAck);
            }
        }
    }

    /// When [`Switch::expire`] will have something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let unnamed = self.ports.values().filter(|port| port.name.is_none());
        let names = unnamed.map(|port| port.connected + PATIENCE);
        let acknowledgements = self.announcements().map(|announcing| announcing.deadline);
        let requests = self.requests.deadline();
        names.chain(acknowledgements).chain(requests).min()
    }

    fn hello(&mut self, port: PortId, protocol: u32, name: String) -> Result<(), Reason> {
        let taken = |other: &Port| other.name.as_ref() == Some(&name);
        let refusal = if protocol != PROTOCOL {
            Some(Refusal::Protocol)
        } else if self.ports.values().any(taken) {
            Some(Refusal::NameTaken)
        } else if self.which(|port| port.name.is_some()).len() >= MAX_PORTS {
            Some(Refusal::Full)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.send(port, Message::Refused(refusal));
            return Err(Reason::Refused(refusal));
        }
        self.forget_vanished(&name);
        let mode = self.modes.get(&name).copied().unwrap_or_default();
        self.send(port, Message::Welcome { port, mode });
        self.introduce_peers_to(port);
        if let Some(newcomer) = self.ports.get_mut(&port) {
            newcomer.name = Some(name);
            newcomer.acknowledged = self.last_epoch;
        }
        Ok(())
    }

    /// An endpoint is back, and has no windows yet.
    fn forget_vanished(&mut self, name: &str) {
        let former: Vec<PortId> = self
            .vanished
            .iter()
            .filter(|(_, vanished)| vanished.name == name)
            .map(|(port, _)| *port)
            .collect();
        for port in former {
            self.vanished.remove(&port);
            self.publish(port, &[]);
        }
    }

    /// An endpoint tells of its link, once.
    fn link(&mut self, from: PortId, timing: LinkTiming) -> Result<(), Reason> {
        let port = self.ports.get_mut(&from).ok_or(Reason::Silent)?;
        if port.link.replace(timing.clone()).is_some() {
            return Err(Reason::Violation("it tells of its link twice"));
        }
        let link = Message::Link { peer: from, timing };
        for other in self.which(|port| port.name.is_some()) {
            if other != from {
                self.send(other, link.clone());
            }
        }
        Ok(())
    }

    fn introduce_peers_to(&mut self, newcomer: PortId) {
        let epoch = self.last_epoch;
        let links = self.ports.iter().filter_map(|(peer, port)| {
            let (peer, timing) = (*peer, port.link.clone()?);
            Some(Output::Send(newcomer, Message::Link { peer, timing }))
        });
        self.outputs.extend(links);
        let live = self.ports.iter().map(|(id, port)| (id, &port.windows));
        let vanished = self.vanished.iter().map(|(id, gone)| (id, &gone.windows));
        let peers = live
            .chain(vanished)
            .filter(|(_, windows)| !windows.is_empty());
        let introductions = peers.map(|(peer, windows)| {
            let (peer, windows) = (*peer, windows.clone());
            let message = Message::Peer {
                epoch,
                peer,
                windows,
            };
            Output::Send(newcomer, message)
        });
        self.outputs.extend(introductions);
    }

    fn announce(
        &mut self,
        from: PortId,
        sequence: u64,
        mut windows: Vec<Window>,
        now: Instant,
    ) -> Result<(), Reason> {
        let port = self.ports.get_mut(&from).ok_or(Reason::Silent)?;
        if port.announcing.is_some() {
            return Err(Reason::Violation(
                "it announces before the last is Announced",
            ));
        }
        for window in &mut windows {
            if matches!(window.memory, Memory::Gone) {
                return Err(Reason::Violation("it announces a window of nobody"));
            }
            let unmoved = port.windows.iter().find(|old| is_same_range(old, window));
            window.claim = unmoved.map_or_else(
                || {
                    self.last_claim += 1;
                    self.last_claim
                },
                |old| old.claim,
            );
        }
        port.windows.clone_from(&windows);
        self.note_overlaps(from, &windows);
        let epoch = self.publish(from, &windows);
        if let Some(port) = self.ports.get_mut(&from) {
            port.acknowledged = epoch;
            port.announcing = Some(Announcing {
                sequence,
                epoch,
                deadline: now + PATIENCE,
            });
        }
        self.settle();
        Ok(())
    }

    /// Records which of an endpoint's windows lie over windows that others have claimed before.
    fn note_overlaps(&mut self, from: PortId, windows: &[Window]) {
        for window in windows {
            let others = self.ports.iter().filter(|(id, _)| **id != from);
            let mut claimed =
                others.flat_map(|(id, port)| port.windows.iter().map(move |w| (id, w)));
            let earlier =
                |(_, other): &(_, &Window)| other.claim < window.claim && meet(other, window);
            let Some((owner, other)) = claimed.find(earlier) else {
                continue;
            };
            let level = if self.overlaps < OVERLAPS_TOLD {
                log::Level::Warn
            } else {
                log::Level::Debug
            };
            log::log!(
                level,
                "port {from}, BAR{} at {:#x}+{:#x} lies over BAR{} of port {owner} at {:#x}+{:#x}, which came first and answers",
                window.bar,
                window.address,
                window.size,
                other.bar,
                other.address,
                other.size,
            );
            self.overlaps = self.overlaps.saturating_add(1);
        }
    }

    fn acknowledge(&mut self, from: PortId, epoch: u64) -> Result<(), Reason> {
        if epoch > self.last_epoch {
            return Err(Reason::Violation("it acknowledges what has not happened"));
        }
        if let Some(port) = self.ports.get_mut(&from) {
            port.acknowledged = port.acknowledged.max(epoch);
        }
        self.settle();
        Ok(())
    }

    /// Tells those whose announcement all others have acknowledged.
    fn settle(&mut self) {
        let settled = |id: &PortId, announcing: &Announcing| {
            let mut others = self.ports.iter().filter(|(other, _)| *other != id);
            others.all(|(_, port)| port.name.is_none() || port.acknowledged >= announcing.epoch)
        };
        let done: Vec<(PortId, u64)> = self
            .ports
            .iter()
            .filter_map(|(id, port)| Some((id, port.announcing.as_ref()?)))
            .filter(|(id, announcing)| settled(id, announcing))
            .map(|(id, announcing)| (*id, announcing.sequence))
            .collect();
        for (id, sequence) in done {
            if let Some(port) = self.ports.get_mut(&id) {
                port.announcing = None;
            }
            self.send(id, Message::Announced { sequence });
        }
    }

    fn request(
        &mut self,
        id: RequestId,
        completer: PortId,
        message: Message,
        now: Instant,
    ) -> Result<(), Reason> {
        if !self.requests.open(id, completer, now) {
            return Err(Reason::Violation(
                "too many requests at once, or a tag twice",
            ));
        }
        let (requester, _) = id;
        let peer = self.ports.get(&completer);
        if completer != requester && peer.is_some_and(|peer| peer.name.is_some()) {
            self.send(completer, message);
        } else {
            self.reply(completer, id, Status::Gone, Vec::new());
        }
        Ok(())
    }

    /// Passes an answer back. One that nobody waits for any more, or that somebody else should give, is dropped.
    fn reply(&mut self, from: PortId, id: RequestId, status: Status, data: Vec<u8>) {
        if self.requests.close(id, from) {
            self.answer(from, id, status, data);
        }
    }

    fn answer(&mut self, peer: PortId, (to, tag): RequestId, status: Status, data: Vec<u8>) {
        let reply = Message::Reply {
            peer,
            tag,
            status,
            data,
        };
        self.send(to, reply);
    }

    /// Tells all endpoints but `peer` itself of its windows; the number of the change.
    fn publish(&mut self, peer: PortId, windows: &[Window]) -> u64 {
        self.last_epoch += 1;
        let epoch = self.last_epoch;
        for other in self.which(|port| port.name.is_some()) {
            if other != peer {
                let windows = windows.to_vec();
                let message = Message::Peer {
                    epoch,
                    peer,
                    windows,
                };
                self.send(other, message);
            }
        }
        epoch
    }

    fn cut_off(&mut self, port: PortId, reason: Reason) {
        self.outputs.push(Output::CutOff(port, reason));
        self.leave(port);
    }

    fn send(&mut self, to: PortId, message: Message) {
        self.outputs.push(Output::Send(to, message));
    }

    fn which(&self, filter: impl Fn(&Port) -> bool) -> Vec<PortId> {
        let matching = self.ports.iter().filter(|(_, port)| filter(port));
        matching.map(|(id, _)| *id).collect()
    }

    fn announcements(&self) -> impl Iterator<Item = &Announcing> {
        self.ports
            .values()
            .filter_map(|port| port.announcing.as_ref())
    }
}

fn is_same_range(one: &Window, other: &Window) -> bool {
    (one.bar, one.address, one.size) == (other.bar, other.address, other.size)
}

/// Whether two windows have an address in common.
fn meet(one: &Window, other: &Window) -> bool {
    let last = |window: &Window| window.address.saturating_add(window.size - 1);
    one.address <= last(other) && other.address <= last(one)
}

fn without_owner(window: Window) -> Window {
    Window {
        claim: NO_CLAIM,
        memory: Memory::Gone,
        ..window
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn window(address: u64) -> Window {
        Window {
            bar: 0,
            address,
            size: 0x1000,
            claim: 0,
            memory: Memory::ByMessage,
        }
    }

    fn hello(name: &str) -> Message {
        Message::Hello {
            protocol: PROTOCOL,
            name: name.to_owned(),
        }
    }

    fn announce(sequence: u64, addresses: &[u64]) -> Message {
        Message::Announce {
            sequence,
            windows: addresses.iter().copied().map(window).collect(),
        }
    }

    fn read(peer: PortId, tag: u64) -> Message {
        Message::Read {
            peer,
            tag,
            address: 0x1000,
            length: 8,
        }
    }

    /// What the switch wants done, in short words.
    fn outputs(switch: &mut Switch) -> Vec<String> {
        let short = |output: Output| match output {
            Output::Send(to, Message::Welcome { .. }) => format!("{to}: welcome"),
            Output::Send(to, Message::Refused(refusal)) => format!("{to}: {refusal:?}"),
            Output::Send(to, Message::Announced { sequence }) => {
                format!("{to}: announced {sequence}")
            }
            Output::Send(
                to,
                Message::Peer {
                    epoch,
                    peer,
                    windows,
                },
            ) => {
                let windows: Vec<String> = windows
                    .iter()
                    .map(|window| match window.memory {
                        Memory::Gone => format!(" !{:x}", window.address),
                        _ => format!(" {:x}#{}", window.address, window.claim),
                    })
                    .collect();
                format!("{to}: epoch {epoch}, {peer} has{}", windows.concat())
            }
            Output::Send(to, Message::Read { peer, tag, .. }) => {
                format!("{to}: read {tag} of {peer}")
            }
            Output::Send(
                to,
                Message::Reply {
                    peer, tag, status, ..
                },
            ) => {
                format!("{to}: {status:?} {tag} of {peer}")
            }
            Output::Send(to, Message::Link { peer, timing }) => {
                format!("{to}: {peer} takes {} ns", timing.latency)
            }
            Output::Send(_, other) => panic!("{other:?}"),
            Output::CutOff(port, reason) => format!("{port} cut off: {reason:?}"),
        };
        switch.take_outputs().into_iter().map(short).collect()
    }

    /// A switch with endpoints a, b, c at ports 1, 2, 3.
    fn three(now: Instant) -> (Switch, [PortId; 3]) {
        let mut switch = Switch::default();
        let ports = ["a", "b", "c"].map(|name| {
            let port = switch.connect(now);
            switch.receive(port, hello(name), now);
            port
        });
        switch.take_outputs();
        (switch, ports)
    }

    #[test]
    fn a_link_is_told_to_all_others_and_to_who_comes_later_before_any_window() {
        let now = Instant::now();
        let (mut switch, [a, b, _]) = three(now);
        let timing = |latency| Message::Link {
            peer: PortId(0),
            timing: LinkTiming {
                latency,
                bandwidth: 0,
                meter: Arc::new(std::fs::File::open("/dev/null").unwrap().into()),
            },
        };
        switch.receive(b, timing(7), now);
        assert_eq!(outputs(&mut switch), ["1: 2 takes 7 ns", "3: 2 takes 7 ns"]);
        switch.receive(b, announce(1, &[0x1000]), now);
        switch.take_outputs();
        let late = switch.connect(now);
        switch.receive(late, hello("late"), now);
        assert_eq!(
            outputs(&mut switch),
            ["4: welcome", "4: 2 takes 7 ns", "4: epoch 1, 2 has 1000#1"]
        );
        switch.receive(a, timing(1), now);
        switch.take_outputs();
        switch.receive(a, timing(2), now);
        let said = outputs(&mut switch);
        assert!(said[0].starts_with("1 cut off: Violation"), "{said:?}");
    }

    #[test]
    fn an_announcement_is_over_when_all_others_have_acknowledged() {
        let now = Instant::now();
        let (mut switch, [a, b, c]) = three(now);
        switch.receive(a, announce(7, &[0x1000]), now);
        assert_eq!(
            outputs(&mut switch),
            ["2: epoch 1, 1 has 1000#1", "3: epoch 1, 1 has 1000#1"]
        );
        switch.receive(b, Message::Ack { epoch: 1 }, now);
        assert!(outputs(&mut switch).is_empty());
        switch.receive(c, Message::Ack { epoch: 1 }, now);
        assert_eq!(outputs(&mut switch), ["1: announced 7"]);
        switch.receive(a, announce(8, &[]), now);
        assert_eq!(
            outputs(&mut switch),
            ["2: epoch 2, 1 has", "3: epoch 2, 1 has"]
        );
        switch.leave(c);
        switch.receive(b, Message::Ack { epoch: 2 }, now);
        assert_eq!(
            outputs(&mut switch),
            ["1: announced 8"],
            "who has left is not waited for"
        );
    }

    #[test]
    fn who_does_not_acknowledge_is_cut_off_and_its_windows_stay_claimed() {
        let now = Instant::now();
        let (mut switch, [a, b, c]) = three(now);
        switch.receive(c, announce(1, &[0x3000]), now);
        for port in [a, b] {
            switch.receive(port, Message::Ack { epoch: 1 }, now);
        }
        switch.receive(a, announce(1, &[0x1000]), now);
        switch.receive(b, Message::Ack { epoch: 2 }, now);
        outputs(&mut switch);
        assert_eq!(switch.deadline(), Some(now + PATIENCE));
        switch.expire(now + PATIENCE - Duration::from_millis(1));
        assert!(outputs(&mut switch).is_empty());
        switch.expire(now + PATIENCE);
        assert_eq!(
            outputs(&mut switch),
            [
                "3 cut off: NoAck",
                "1: epoch 3, 3 has !3000",
                "2: epoch 3, 3 has !3000",
                "1: announced 1"
            ]
        );
        assert_eq!(switch.deadline(), None);
    }

    #[test]
    fn a_newcomer_learns_the_peers_and_is_not_waited_for_about_the_past() {
        let now = Instant::now();
        let (mut switch, [a, b, c]) = three(now);
        switch.receive(a, announce(1, &[0x1000]), now);
        outputs(&mut switch);
        let d = switch.connect(now);
        switch.receive(d, hello("d"), now);
        assert_eq!(
            outputs(&mut switch),
            ["4: welcome", "4: epoch 1, 1 has 1000#1"]
        );
        for port in [b, c] {
            switch.receive(port, Message::Ack { epoch: 1 }, now);
        }
        assert_eq!(outputs(&mut switch), ["1: announced 1"]);
    }

    #[test]
    fn a_window_that_stays_keeps_its_claim_and_one_that_moves_gets_a_later_one() {
        let now = Instant::now();
        let (mut switch, [a, b, _]) = three(now);
        switch.leave(PortId(3));
        switch.receive(a, announce(1, &[0x1000]), now);
        switch.receive(b, announce(1, &[0x1000]), now);
        switch.receive(b, Message::Ack { epoch: 1 }, now);
        switch.receive(a, Message::Ack { epoch: 2 }, now);
        outputs(&mut switch);
        switch.receive(a, announce(2, &[0x1000, 0x5000]), now);
        switch.receive(b, Message::Ack { epoch: 3 }, now);
        switch.receive(a, announce(3, &[0x2000, 0x5000]), now);
        let words = outputs(&mut switch);
        assert_eq!(words[0], "2: epoch 3, 1 has 1000#1 5000#3");
        assert_eq!(words[2], "2: epoch 4, 1 has 2000#4 5000#3");
    }

    #[test]
    fn who_comes_back_under_its_name_frees_its_former_windows() {
        let now = Instant::now();
        let (mut switch, [a, _, _]) = three(now);
        switch.receive(a, announce(1, &[0x1000]), now);
        switch.leave(a);
        outputs(&mut switch);
        let other = switch.connect(now);
        switch.receive(other, hello("d"), now);
        assert_eq!(
            outputs(&mut switch),
            ["4: welcome", "4: epoch 2, 1 has !1000"]
        );
        let back = switch.connect(now);
        switch.receive(back, hello("a"), now);
        let words = outputs(&mut switch);
        assert_eq!(
            words[..3],
            [
                "2: epoch 3, 1 has",
                "3: epoch 3, 1 has",
                "4: epoch 3, 1 has"
            ]
        );
        assert_eq!(words[3..], ["5: welcome"]);
    }

    #[test]
    fn the_last_to_leave_takes_the_memory_of_the_vanished_along() {
        let now = Instant::now();
        let (mut switch, ports) = three(now);
        switch.receive(ports[0], announce(1, &[0x1000]), now);
        for port in ports {
            switch.leave(port);
        }
        outputs(&mut switch);
        let next = switch.connect(now);
        switch.receive(next, hello("b"), now);
        assert_eq!(outputs(&mut switch), ["4: welcome"]);
    }

    #[test]
    fn a_request_is_passed_on_and_only_its_own_answer_passed_back() {
        let now = Instant::now();
        let (mut switch, [a, b, c]) = three(now);
        let reply = |status| Message::Reply {
            peer: a,
            tag: 5,
            status,
            data: Vec::new(),
        };
        switch.receive(a, read(b, 5), now);
        assert_eq!(outputs(&mut switch), ["2: read 5 of 1"]);
        switch.receive(c, reply(Status::Done), now);
        assert!(outputs(&mut switch).is_empty(), "c was not asked");
        switch.receive(b, reply(Status::Unsupported), now);
        switch.receive(b, reply(Status::Done), now);
        assert_eq!(outputs(&mut switch), ["1: Unsupported 5 of 2"]);
    }

    #[test]
    fn a_request_that_nobody_will_answer_fails() {
        let now = Instant::now();
        let (mut switch, [a, b, c]) = three(now);
        for (tag, peer) in [(1, a), (2, PortId(9)), (3, b), (4, c)] {
            switch.receive(a, read(peer, tag), now);
        }
        assert_eq!(
            outputs(&mut switch),
            [
                "1: Gone 1 of 1",
                "1: Gone 2 of 9",
                "2: read 3 of 1",
                "3: read 4 of 1"
            ]
        );
        switch.leave(b);
        assert_eq!(outputs(&mut switch), ["1: Gone 3 of 2"]);
        switch.expire(now + PATIENCE);
        assert_eq!(outputs(&mut switch), ["1: TimedOut 4 of 3"]);
    }

    #[test]
    fn what_an_endpoint_may_not_say_costs_it_its_place_and_nobody_else() {
        let gone = Message::Announce {
            sequence: 1,
            windows: vec![Window {
                memory: Memory::Gone,
                ..window(0x1000)
            }],
        };
        let odd: [Vec<Message>; 6] = [
            vec![hello("z")],
            vec![announce(1, &[]), announce(2, &[])],
            vec![gone],
            vec![Message::Ack { epoch: 99 }],
            vec![Message::Announced { sequence: 1 }],
            vec![read(PortId(2), 1), read(PortId(2), 1)],
        ];
        for messages in odd {
            let now = Instant::now();
            let (mut switch, [a, b, _]) = three(now);
            for message in &messages {
                switch.receive(a, message.clone(), now);
            }
            let words = outputs(&mut switch);
            assert!(
                words
                    .iter()
                    .any(|word| word.starts_with("1 cut off: Violation")),
                "{messages:?}"
            );
            switch.receive(b, announce(1, &[0x2000]), now);
            let words = outputs(&mut switch).concat();
            assert!(words.ends_with("2 has 2000#1"), "{words}");
        }
    }

    #[test]
    fn a_stranger_is_refused_or_cut_off() {
        let now = Instant::now();
        let (mut switch, _) = three(now);
        let old = Message::Hello {
            protocol: PROTOCOL + 1,
            name: "d".to_owned(),
        };
        for (message, refusal) in [(hello("a"), "NameTaken"), (old, "Protocol")] {
            let port = switch.connect(now);
            switch.receive(port, message, now);
            let expected = [
                format!("{port}: {refusal}"),
                format!("{port} cut off: Refused({refusal})"),
            ];
            assert_eq!(outputs(&mut switch), expected);
        }
        let silent = switch.connect(now);
        let rude = switch.connect(now);
        switch.receive(rude, announce(1, &[]), now);
        assert!(outputs(&mut switch)[0].starts_with("7 cut off: Violation"));
        switch.expire(now + PATIENCE);
        assert_eq!(outputs(&mut switch), [format!("{silent} cut off: Silent")]);
    }

    #[test]
    fn there_are_so_many_ports_and_no_more() {
        let now = Instant::now();
        let mut switch = Switch::default();
        for number in 0..=MAX_PORTS {
            let port = switch.connect(now);
            switch.receive(port, hello(&format!("d{number}")), now);
        }
        let words = outputs(&mut switch);
        assert_eq!(words[MAX_PORTS - 1], "64: welcome");
        assert_eq!(
            words[MAX_PORTS..],
            ["65: Full", "65 cut off: Refused(Full)"]
        );
    }

    #[test]
    fn so_many_vanished_endpoints_are_remembered_and_no_more() {
        let now = Instant::now();
        let (mut switch, _) = three(now);
        for number in 0..=MAX_PORTS {
            let port = switch.connect(now);
            switch.receive(port, hello(&format!("d{number}")), now);
            switch.receive(port, announce(1, &[0x1000]), now);
            switch.leave(port);
        }
        assert_eq!(switch.vanished.len(), MAX_PORTS);
        let words = outputs(&mut switch);
        assert!(
            words.iter().any(|word| word.ends_with(", 4 has")),
            "the oldest is forgotten"
        );
    }

    #[test]
    fn a_link_has_the_mode_that_was_set_for_its_name() {
        let now = Instant::now();
        let mut switch = Switch::new([("b".to_owned(), LinkMode::Drop)].into());
        for (name, expected) in [("a", LinkMode::Route), ("b", LinkMode::Drop)] {
            let port = switch.connect(now);
            switch.receive(port, hello(name), now);
            let [Output::Send(_, Message::Welcome { mode, .. })] = switch.take_outputs()[..] else {
                panic!("no welcome")
            };
            assert_eq!(mode, expected);
        }
    }

    #[test]
    fn windows_meet_where_they_share_an_address() {
        let at = |address| window(address);
        assert!(meet(&at(0x1000), &at(0x1fff)));
        assert!(meet(&at(0x1fff), &at(0x1000)));
        assert!(!meet(&at(0x1000), &at(0x2000)));
        let last = Window {
            address: u64::MAX,
            size: 1,
            ..window(0)
        };
        assert!(meet(&last, &last));
    }
}
