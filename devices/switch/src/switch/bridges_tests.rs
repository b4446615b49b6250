//! Random announcements, answers, acknowledgements and deaths: no endpoint is ever sent a window that its owner's port did not forward
//! by the last answer, and in the end each knows all others.

use std::collections::BTreeMap;
use std::time::Instant;

use peerbar_pci::{BusAddress, Range};
use proptest::prelude::*;

use super::{Output, Switch};
use crate::bridge_windows::BridgeWindows;
use crate::config::Config;
use crate::limits::{BRIDGES_INTERVAL, CLOSING_TIME_OUT, PROTOCOL};
use crate::message::{Message, PortId};
use crate::window::{BarBacking, BarWindow, Descriptor};

const NAMES: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug)]
enum Step {
    /// The endpoint with this index announces those of four windows whose bits are set.
    Announce(usize, u8),
    /// The ports of these indices forward the four windows.
    Answer([usize; 4]),
    /// The answer is unknown.
    Unknown,
    /// An endpoint acknowledges the last change.
    Acknowledge(usize),
    /// An endpoint dies, and attaches again.
    Die(usize),
    /// Time passes.
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    let index = 0..NAMES.len();
    prop_oneof![
        4 => (index.clone(), 0_u8..16).prop_map(|(index, windows)| Step::Announce(index, windows)),
        3 => [index.clone(), index.clone(), index.clone(), index.clone()].prop_map(Step::Answer),
        1 => Just(Step::Unknown),
        4 => index.clone().prop_map(Step::Acknowledge),
        1 => index.prop_map(Step::Die),
        3 => Just(Step::Wait),
    ]
}

fn address(window: usize) -> u64 {
    0x1000 * (1 + window as u64)
}

fn forwarded(ports: [usize; 4]) -> BridgeWindows {
    let windows = NAMES.iter().enumerate().map(|(index, name)| {
        let own = (0..ports.len()).filter(|window| ports[*window] == index);
        let ranges = own.filter_map(|own| Range::new(BusAddress(address(own)), 0x1000));
        ((*name).to_owned(), ranges.collect())
    });
    windows.collect()
}

struct World {
    switch: Switch,
    ports: [PortId; 3],
    now: Instant,
    sequence: u64,
    /// The question that is not answered.
    question: Option<u64>,
    known: BridgeWindows,
    /// The windows that each endpoint has been sent of each other one.
    views: BTreeMap<(PortId, PortId), Vec<u64>>,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let config = Config {
            holes: vec![Range::all()],
            ..Config::default()
        };
        let (none, ticket) = (Descriptor::default(), std::convert::identity);
        let mut world = Self {
            switch: Switch::new(config, true, none, ticket, now),
            ports: [PortId(0); 3],
            now,
            sequence: 0,
            question: None,
            known: BridgeWindows::default(),
            views: BTreeMap::new(),
        };
        (0..NAMES.len()).for_each(|index| world.attach(index));
        world
    }

    fn attach(&mut self, index: usize) {
        let port = self.switch.connect(self.now);
        self.ports[index] = port;
        let name = NAMES[index].to_owned();
        let protocol = PROTOCOL;
        let hello = Message::Hello { protocol, name };
        self.switch.receive(port, hello, self.now);
        self.take();
    }

    fn take(&mut self) {
        for output in self.switch.take_outputs() {
            match output {
                Output::AskForBridgeWindows(number) => self.question = Some(number),
                Output::Send(to, Message::Peer { peer, windows, .. }) => {
                    let name = self
                        .switch
                        .ports
                        .get(&peer)
                        .and_then(|port| port.name.clone());
                    for window in &windows {
                        let is_gone = matches!(window.backing, BarBacking::Gone);
                        let name = name.as_deref().unwrap_or_default();
                        assert!(is_gone || self.known.holds(name, window), "{window:?}");
                    }
                    let addresses = windows.iter().map(|window| window.range.first().0);
                    self.views.insert((to, peer), addresses.collect());
                }
                _ => {}
            }
        }
    }

    fn carry_out(&mut self, step: &Step) {
        match *step {
            Step::Announce(index, bits) => self.announce(index, bits),
            Step::Answer(ports) => self.answer(Some(forwarded(ports))),
            Step::Unknown => self.answer(None),
            Step::Acknowledge(index) => self.acknowledge(index),
            Step::Die(index) => {
                self.switch.leave(self.ports[index], self.now);
                self.take();
                self.attach(index);
            }
            Step::Wait => {
                self.now += CLOSING_TIME_OUT;
                self.switch.expire(self.now);
                self.take();
            }
        }
    }

    fn announce(&mut self, index: usize, bits: u8) {
        let port = self.ports[index];
        if self.switch.ports[&port].announcing.is_some() {
            return;
        }
        let windows = (0..4).filter(|window| bits >> window & 1 == 1);
        let windows = windows.map(|bar| BarWindow {
            bar,
            range: Range::new(BusAddress(address(bar.into())), 0x1000).unwrap(),
            claim: 0,
            backing: BarBacking::ByMessage,
        });
        self.sequence += 1;
        let announce = Message::Announce {
            sequence: self.sequence,
            windows: windows.collect(),
            leases: Descriptor::default(),
        };
        self.switch.receive(port, announce, self.now);
        self.take();
    }

    fn answer(&mut self, windows: Option<BridgeWindows>) {
        let Some(number) = self.question.take() else {
            return;
        };
        if let Some(windows) = &windows {
            self.known = windows.clone();
        }
        self.switch.take_bridge_windows(number, windows, self.now);
        self.take();
    }

    fn acknowledge(&mut self, index: usize) {
        let port = self.ports[index];
        if let Some(sent) = self.switch.ports[&port].updates.sent {
            let ticket = sent.ticket;
            self.switch.receive(port, Message::Ack { ticket }, self.now);
            self.take();
        }
    }

    /// Lets all announcements complete, after a last answer.
    fn settle(&mut self) {
        self.now += BRIDGES_INTERVAL;
        self.switch.expire(self.now);
        self.take();
        self.answer(Some(forwarded([0, 1, 2, 0])));
        for _ in 0..20 {
            (0..NAMES.len()).for_each(|index| self.acknowledge(index));
        }
    }
}

proptest! {
    #[test]
    fn no_endpoint_is_sent_what_its_owner_s_port_does_not_forward(
        steps in proptest::collection::vec(step(), 1..60)
    ) {
        let mut world = World::new();
        for step in &steps {
            world.carry_out(step);
        }
        world.settle();
        for (of, name) in world.ports.into_iter().zip(NAMES) {
            let port = &world.switch.ports[&of];
            let held = port.announced.iter().filter(|window| world.known.holds(name, window));
            let held: Vec<u64> = held.map(|window| window.range.first().0).collect();
            for to in world.ports.into_iter().filter(|to| *to != of) {
                let view = world.views.get(&(to, of)).cloned().unwrap_or_default();
                prop_assert_eq!(&view, &held, "{} of {}", to, of);
            }
        }
    }
}
