//! Every order in which endpoints, their links and the switch can act, for small scripts. In no
//! order does a transfer use a window after its withdrawal was acknowledged to its owner, does a
//! transfer that knows all changes miss an announced window, or does an endpoint wait indefinitely.
//!
//! The switch is the real one. An endpoint is a model of [`crate::Link`] and its
//! [`crate::PeerHandler`]: a main thread and a transfer thread, which run its script, and a link
//! that takes one message after another. For a Peer, the link needs the lock that a transfer in
//! progress holds.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Instant;

use peerbar_pci::{BusAddress, Range};

use super::{Output, Switch};
use crate::config::Config;
use crate::limits::PROTOCOL;
use crate::message::{Message, PortId};
use crate::window::{BarBacking, BarWindow, Descriptor};

/// An endpoint's next action.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Connects, says Hello and waits for its Welcome.
    Attach,
    /// Announces this window, or no window, and waits until that is Announced.
    Announce(Option<u64>),
    /// Looks up this address and starts a transfer, which ends at its next turn.
    Transfer(u64),
    /// Ends without a message.
    Die,
}

/// The state of one endpoint. A transfer in progress has the owner of its window and the address.
#[derive(Clone, Debug, Default)]
struct Endpoint {
    script: VecDeque<Step>,
    transfers: VecDeque<u64>,
    port: Option<PortId>,
    waiting: bool,
    /// The addresses at which others may still reach the endpoint.
    exposed: Vec<u64>,
    announced: Option<u64>,
    /// Its window, once its announcement is answered.
    open: Option<u64>,
    peers: BTreeMap<PortId, Vec<u64>>,
    /// The count up to which the endpoint knows all changes.
    known: Option<u64>,
    transfer: Option<(PortId, u64)>,
    dead: bool,
}

#[derive(Clone, Debug)]
enum Sent {
    Message(Message),
    End,
}

#[derive(Clone, Debug)]
struct World {
    switch: Switch,
    endpoints: Vec<Endpoint>,
    to_switch: BTreeMap<PortId, VecDeque<Sent>>,
    to_endpoint: BTreeMap<PortId, VecDeque<Message>>,
    /// The count of changes, which all endpoints see.
    count: u64,
    now: Instant,
}

/// The thread that acts.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Script(usize),
    Transfer(usize),
    Link(usize),
    Switch(PortId),
}

fn window(address: u64) -> BarWindow {
    BarWindow {
        bar: 0,
        range: Range::new(BusAddress(address), 0x1000).unwrap(),
        claim: 0,
        backing: BarBacking::ByMessage,
    }
}

impl Endpoint {
    /// Ends the transfer in progress, or starts the next. Returns its address, if the endpoint
    /// knows no window there.
    fn transfer(&mut self) -> Option<u64> {
        if self.transfer.take().is_some() {
            return None;
        }
        let address = self.transfers.pop_front()?;
        let owner = self.peers.iter().find(|(_, at)| at.contains(&address));
        self.transfer = owner.map(|(port, _)| (*port, address));
        owner.is_none().then_some(address)
    }

    fn knows(&self, count: u64) -> bool {
        self.known.is_some_and(|known| known >= count)
    }
}

impl World {
    /// Makes a model. Endpoints are attached already unless their scripts begin with it.
    fn new(scripts: &[&[Step]]) -> Self {
        let endpoints = scripts.iter().map(|script| {
            let mut endpoint = Endpoint::default();
            for step in *script {
                match step {
                    Step::Transfer(address) => endpoint.transfers.push_back(*address),
                    step => endpoint.script.push_back(*step),
                }
            }
            endpoint
        });
        let now = Instant::now();
        let mut world = Self {
            switch: Switch::new(
                Config {
                    holes: vec![Range::all()],
                    ..Config::default()
                },
                false,
                Descriptor::default(),
                std::convert::identity,
                now,
            ),
            endpoints: endpoints.collect(),
            to_switch: BTreeMap::new(),
            to_endpoint: BTreeMap::new(),
            count: 0,
            now,
        };
        for (index, script) in scripts.iter().enumerate() {
            if !matches!(script[0], Attach) {
                world.endpoints[index].script.push_front(Attach);
                world.act(Turn::Script(index));
                world.act(Turn::Switch(world.endpoints[index].port.unwrap()));
                world.act(Turn::Link(index));
            }
        }
        world
    }

    /// Returns all possible next turns.
    fn turns(&self) -> Vec<Turn> {
        let mut turns = Vec::new();
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            if !endpoint.waiting && !endpoint.dead && !endpoint.script.is_empty() {
                turns.push(Turn::Script(index));
            }
            let transfers = endpoint.transfer.is_some() || !endpoint.transfers.is_empty();
            if transfers && !endpoint.dead {
                turns.push(Turn::Transfer(index));
            }
            let next = endpoint
                .port
                .and_then(|port| self.to_endpoint.get(&port)?.front());
            let locked = endpoint.transfer.is_some();
            if next.is_some_and(|next| {
                !(endpoint.dead || locked && matches!(next, Message::Peer { .. }))
            }) {
                turns.push(Turn::Link(index));
            }
        }
        let sending = self.to_switch.iter().filter(|(_, queue)| !queue.is_empty());
        turns.extend(sending.map(|(port, _)| Turn::Switch(*port)));
        turns
    }

    fn act(&mut self, turn: Turn) {
        match turn {
            Turn::Script(index) => self.run_script(index),
            Turn::Transfer(index) => self.transfer(index),
            Turn::Link(index) => self.listen(index),
            Turn::Switch(port) => self.serve(port),
        }
        for output in self.switch.take_outputs() {
            match output {
                Output::Count(count) => self.count = count,
                Output::Send(port, message) => {
                    self.to_endpoint.entry(port).or_default().push_back(message);
                    self.take_counts(port);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn transfer(&mut self, index: usize) {
        let unowned = self.endpoints[index].transfer();
        if unowned.is_none() || !self.endpoints[index].knows(self.count) {
            return;
        }
        let others = self.endpoints.iter().enumerate();
        let mut others = others.filter(|(other, endpoint)| *other != index && !endpoint.dead);
        assert!(others.all(|(_, other)| other.open != unowned), "{self:#x?}");
    }

    fn say(&mut self, port: Option<PortId>, sent: Sent) {
        self.to_switch
            .entry(port.unwrap())
            .or_default()
            .push_back(sent);
    }

    fn run_script(&mut self, index: usize) {
        let endpoint = &mut self.endpoints[index];
        match endpoint.script.pop_front().unwrap() {
            Step::Attach => {
                endpoint.waiting = true;
                endpoint.port = Some(self.switch.connect(self.now));
                let name = format!("e{index}");
                let protocol = PROTOCOL;
                let port = endpoint.port;
                self.say(port, Sent::Message(Message::Hello { protocol, name }));
            }
            Step::Announce(address) => {
                endpoint.waiting = true;
                endpoint.open = None;
                endpoint.exposed.extend(address);
                endpoint.announced = address;
                let windows = address.map(window).into_iter().collect();
                let port = endpoint.port;
                self.say(
                    port,
                    Sent::Message(Message::Announce {
                        sequence: 1,
                        windows,
                        leases: Descriptor::default(),
                    }),
                );
            }
            Step::Transfer(_) => {}
            Step::Die => {
                endpoint.dead = true;
                endpoint.transfer = None;
                let port = endpoint.port;
                self.say(port, Sent::End);
            }
        }
    }

    fn listen(&mut self, index: usize) {
        let endpoint = &mut self.endpoints[index];
        let port = endpoint.port;
        let queue = self.to_endpoint.get_mut(&port.unwrap()).unwrap();
        match queue.pop_front().unwrap() {
            Message::Welcome { .. } => endpoint.waiting = false,
            Message::Announced { .. } => {
                endpoint.waiting = false;
                endpoint.exposed = endpoint.announced.into_iter().collect();
                endpoint.open = endpoint.announced;
            }

            Message::Peer {
                ticket,
                peer,
                windows,
                known,
                ..
            } => {
                endpoint.known = Some(known);
                let live = windows
                    .iter()
                    .filter(|w| !matches!(w.backing, BarBacking::Gone));
                endpoint
                    .peers
                    .insert(peer, live.map(|window| window.range.first().0).collect());
                self.say(port, Sent::Message(Message::Ack { ticket }));
            }
            other => panic!("{other:?}"),
        }
        self.take_counts(port.unwrap());
    }

    /// Takes counts that come next at once. Whether an endpoint takes a count within its turn or
    /// later makes no more difference than the time at which it takes the message before.
    fn take_counts(&mut self, port: PortId) {
        let mut endpoints = self.endpoints.iter_mut();
        let endpoint = endpoints.find(|endpoint| endpoint.port == Some(port));
        let (Some(endpoint), Some(queue)) = (endpoint, self.to_endpoint.get_mut(&port)) else {
            return;
        };
        while let Some(Message::Known { count }) = queue.front() {
            endpoint.known = Some(*count);
            queue.pop_front();
        }
    }

    fn serve(&mut self, port: PortId) {
        match self.to_switch.get_mut(&port).unwrap().pop_front().unwrap() {
            Sent::Message(message) => self.switch.receive(port, message, self.now),
            Sent::End => self.switch.leave(port, self.now),
        }
    }

    /// Checks that a transfer uses a window only while its owner exposes it. Dead owners are not
    /// checked.
    fn check(&self) {
        for (owner, address) in self
            .endpoints
            .iter()
            .filter_map(|endpoint| endpoint.transfer)
        {
            let owner = self
                .endpoints
                .iter()
                .find(|endpoint| endpoint.port == Some(owner))
                .unwrap();
            assert!(owner.dead || owner.exposed.contains(&address), "{self:#x?}");
        }
    }

    fn check_end(&self) {
        for endpoint in &self.endpoints {
            let is_done = endpoint.script.is_empty() && !endpoint.waiting;
            assert!(
                endpoint.dead || is_done && endpoint.knows(self.count),
                "{self:#x?}"
            );
        }
    }
}

/// Explores every order. Returns the number of different states.
fn explore(scripts: &[&[Step]]) -> usize {
    let mut seen = HashSet::new();
    let mut open = vec![World::new(scripts)];
    while let Some(world) = open.pop() {
        world.check();
        let turns = world.turns();
        if turns.is_empty() {
            world.check_end();
        }
        for turn in turns {
            let mut next = world.clone();
            next.act(turn);
            if seen.insert(format!("{next:?}")) {
                open.push(next);
            }
        }
    }
    seen.len()
}

use Step::{Announce, Attach, Die, Transfer};

#[test]
fn window_moves_during_transfers() {
    let states = explore(&[
        &[Attach, Announce(Some(1)), Announce(Some(2))],
        &[Attach, Transfer(1), Transfer(1), Transfer(2)],
    ]);
    assert!(states > 100, "{states}");
}

#[test]
fn two_endpoints_announce_and_transfer_at_once() {
    let states = explore(&[
        &[Announce(Some(1)), Transfer(2), Announce(None)],
        &[Announce(Some(2)), Transfer(1), Announce(None)],
    ]);
    assert!(states > 100, "{states}");
}

#[test]
fn endpoint_attaches_while_a_window_changes_its_owner() {
    let states = explore(&[
        &[Announce(Some(1)), Announce(None)],
        &[Announce(Some(1))],
        &[Attach, Transfer(1)],
    ]);
    assert!(states > 1000, "{states}");
}

#[test]
fn requester_dies_during_an_announcement() {
    let states = explore(&[
        &[Announce(Some(1)), Announce(Some(2))],
        &[Transfer(1), Die],
        &[Transfer(2)],
    ]);
    assert!(states > 100, "{states}");
}

#[test]
fn completer_dies_during_transfers() {
    let states = explore(&[
        &[Announce(Some(1)), Die],
        &[Transfer(1), Announce(Some(1))],
        &[Transfer(1)],
    ]);
    assert!(states > 100, "{states}");
}
