//! The logic of the switch: the effects of each message of an endpoint. It contains no I/O and no
//! clock.

use std::collections::BTreeMap;
use std::time::Instant;

use self::forwarding::Forwarding;
pub(crate) use self::output::Output;
use self::output::Reason;
use self::port::{Port, Vanished};
use self::updates::Updates;
use crate::config::Config;
use crate::limits::ENDPOINT_TIME_OUT;
use crate::message::{Message, PortId, RequestError};
use crate::requests::Requests;
use crate::window::Descriptor;

mod announce;
mod attach;
mod bridges;
mod forwarding;
mod output;
mod port;
mod relay;
mod updates;

/// One switch.
#[derive(Clone, Debug)]
pub(crate) struct Switch {
    config: Config,
    /// The windows that the ports forward, if there is a bridge socket.
    forwarding: Option<Forwarding>,
    /// The memory of the count of changes.
    changes: Descriptor,
    /// Returns the ticket of an update with this number.
    ticket: fn(u64) -> u64,
    ports: BTreeMap<PortId, Port>,
    vanished: BTreeMap<PortId, Vanished>,
    requests: Requests,
    /// The time of the event that is being handled.
    now: Instant,
    last_port: u32,
    /// The count of changes of all windows.
    last_change: u64,
    last_update: u64,
    last_claim: u64,
    outputs: Vec<Output>,
}

impl Switch {
    /// Makes a switch without endpoints. Its count of changes is 0 and is kept in the memory of
    /// `changes`. With `has_bridge_windows` it asks for the windows that its ports forward.
    /// `ticket` makes tickets of numbers; an endpoint must not be able to guess one.
    pub(crate) fn new(
        config: Config,
        has_bridge_windows: bool,
        changes: Descriptor,
        ticket: fn(u64) -> u64,
        now: Instant,
    ) -> Self {
        Self {
            forwarding: has_bridge_windows.then(Forwarding::default),
            config,
            changes,
            ticket,
            ports: BTreeMap::new(),
            vanished: BTreeMap::new(),
            requests: Requests::default(),
            now,
            last_port: 0,
            last_change: 0,
            last_update: 0,
            last_claim: 0,
            outputs: Vec::new(),
        }
    }

    /// Takes the outputs to execute, in order. Executing them may lead to more.
    pub(crate) fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// Returns a number that belongs to no port, attached or vanished.
    fn free_port(&mut self) -> PortId {
        loop {
            self.last_port = self.last_port.wrapping_add(1);
            let port = PortId(self.last_port);
            let is_known = self.ports.contains_key(&port) || self.vanished.contains_key(&port);
            if port != PortId::NONE && !is_known {
                return port;
            }
        }
    }

    /// Adds a connection, before its Hello.
    pub(crate) fn connect(&mut self, now: Instant) -> PortId {
        self.now = now;
        let port = self.free_port();
        self.ports.insert(
            port,
            Port {
                connected: now,
                name: None,
                awaited: None,
                link: None,
                announced: Vec::new(),
                windows: Vec::new(),
                leases: Descriptor::default(),
                withheld: Vec::new(),
                updates: Updates::default(),
                known: None,
                announcing: None,
            },
        );
        port
    }

    /// Handles a message. Ignores it if the connection has ended.
    pub(crate) fn receive(&mut self, from: PortId, message: Message, now: Instant) {
        self.now = now;
        let Some(port) = self.ports.get(&from) else {
            return;
        };
        let attached = port.name.is_some();
        let outcome = match message {
            _ if port.awaited.is_some() => Err(Reason::Violation(
                "it does not wait for the answer to its Hello",
            )),
            Message::Hello { protocol, name } if !attached => self.hello(from, protocol, name),
            _ if !attached => Err(Reason::Violation("its first message is not a Hello")),
            Message::Announce {
                sequence,
                windows,
                leases,
            } => self.announce(from, sequence, (windows, leases)),
            Message::Link { timing, .. } => self.link(from, timing),
            Message::Mark => {
                self.change(from, Updates::mark);
                Ok(())
            }
            Message::Ack { ticket } => self.acknowledge(from, ticket),
            Message::Read { .. } | Message::Write { .. } => self.request(from, message, now),
            Message::Reply { peer, tag, outcome } => {
                self.reply(from, (peer, tag), outcome);
                Ok(())
            }
            _ => Err(Reason::Violation("only a switch sends such a message")),
        };
        if let Err(reason) = outcome {
            self.cut_off(from, reason);
        }
    }

    /// Ends every wait that has taken too long.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.now = now;
        for (id, completer) in self.requests.expire(now) {
            self.outputs.push(Output::Withdraw(completer, id));
            self.answer(completer, id, Err(RequestError::TimedOut));
        }
        let silent = |port: &Port| port.is_silent() && port.connected + ENDPOINT_TIME_OUT <= now;
        for port in self.ports_that(silent) {
            self.cut_off(port, Reason::Silent);
        }
        self.refuse_namesakes();
        self.settle();
        self.log_withheld();
        self.ask();
    }

    /// Returns the time at which [`Switch::expire`] must be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let silent = self.ports.values().filter(|port| port.is_silent());
        let names = silent.map(|port| port.connected + ENDPOINT_TIME_OUT);
        let awaited = self.ports.values();
        let awaited = awaited.filter_map(|port| Some(port.awaited.as_ref()?.deadline));
        let announcing = self.ports.values();
        let announcing = announcing.filter_map(|port| Some(port.announcing?.deadline));
        let requests = self.requests.deadline();
        let bridges = self.forwarding.as_ref().and_then(Forwarding::deadline);
        let hellos = names.chain(awaited);
        let others = requests.into_iter().chain(bridges);
        hellos.chain(announcing).chain(others).min()
    }

    fn cut_off(&mut self, port: PortId, reason: Reason) {
        self.outputs.push(Output::CutOff(port, reason));
        self.leave(port, self.now);
    }

    fn send(&mut self, to: PortId, message: Message) {
        self.outputs.push(Output::Send(to, message));
    }

    fn ports_that(&self, filter: impl Fn(&Port) -> bool) -> Vec<PortId> {
        let matching = self.ports.iter().filter(|(_, port)| filter(port));
        matching.map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod bridges_tests;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
