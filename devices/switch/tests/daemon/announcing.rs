//! Announcements among many endpoints. Some never answer, or die.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use peerbar_switch::{
    BarBacking, BarWindow, CLOSING_TIME_OUT, Descriptor, ENDPOINT_TIME_OUT, LinkMode, Message,
    PortId,
};

use peerbar_rig::Daemon;

use crate::raw::{Endpoint, announce, hello, readable, registers, start, wait_for_all_sent};

#[test]
fn a_closing_returns_when_all_others_have_acknowledged() {
    let daemon = start(&[]);
    let (a, port) = Endpoint::attach(daemon.socket(), "a");
    let (b, _) = Endpoint::attach(daemon.socket(), "b");
    let (c, _) = Endpoint::attach(daemon.socket(), "c");
    a.send(&announce(4, vec![registers(0x1000)]));
    assert!(matches!(a.receive(), Message::Announced { sequence: 4 }));
    for other in [&b, &c] {
        let (peer, windows) = other.acknowledge();
        assert_eq!((peer, windows[0].range.first().0), (port, 0x1000));
    }
    let begun = Instant::now();
    a.send(&announce(5, Vec::new()));
    b.acknowledge();
    wait_for_all_sent(&daemon);
    assert!(a.has_heard_nothing() || begun.elapsed() >= CLOSING_TIME_OUT);
    c.acknowledge();
    assert!(matches!(a.receive(), Message::Announced { sequence: 5 }));
}

#[test]
fn a_descriptor_is_passed_on_with_its_window() {
    let daemon = start(&[]);
    let (a, _) = Endpoint::attach(daemon.socket(), "a");
    let (b, _) = Endpoint::attach(daemon.socket(), "b");
    let file = tempfile::tempfile().unwrap();
    let inode = file.metadata().unwrap().ino();
    let lent = BarWindow {
        bar: 2,
        backing: BarBacking::Lent(Descriptor::new(file), 0x3000, 9),
        ..registers(0x2000)
    };
    a.send(&announce(1, vec![registers(0x1000), lent]));
    let (_, windows) = b.acknowledge();
    let BarBacking::Lent(descriptor, 0x3000, 9) = &windows[1].backing else {
        panic!("{windows:?}")
    };
    let came = File::from(descriptor.try_clone().unwrap());
    assert_eq!(came.metadata().unwrap().ino(), inode);
    let (late, _) = Endpoint::attach(daemon.socket(), "late");
    let (_, windows) = late.acknowledge();
    assert!(
        matches!(windows[1].backing, BarBacking::Lent(..)),
        "a later endpoint gets one, too"
    );
}

#[test]
fn endpoint_that_never_acknowledges_is_waited_for_once() {
    /// So many rounds that a wait in each would take half a minute.
    const ROUNDS: u64 = 120;
    let daemon = start(&[]);
    let (a, _) = Endpoint::attach(daemon.socket(), "a");
    let (deaf, _) = Endpoint::attach(daemon.socket(), "deaf");
    deaf.send(&announce(1, vec![registers(0x9000)]));
    a.acknowledge();
    let begun = Instant::now();
    for round in 0..ROUNDS {
        a.send(&announce(2 * round, vec![registers(0x1000)]));
        assert!(matches!(a.receive(), Message::Announced { .. }));
        a.send(&announce(2 * round + 1, Vec::new()));
        assert!(matches!(a.receive(), Message::Announced { .. }));
    }
    assert!(begun.elapsed() >= CLOSING_TIME_OUT);
    assert!(begun.elapsed() < CLOSING_TIME_OUT * ROUNDS as u32);
    assert!(matches!(deaf.receive(), Message::Announced { sequence: 1 }));
    // It still belongs to the switch, and has only missed the last change.
    deaf.acknowledge();
    assert!(deaf.acknowledge().1.is_empty());
    deaf.send(&announce(2, vec![registers(0x9000)]));
    assert!(matches!(deaf.receive(), Message::Announced { sequence: 2 }));
}

#[test]
fn two_that_announce_at_once_get_on() {
    let daemon = start(&[]);
    let (a, _) = Endpoint::attach(daemon.socket(), "a");
    let (b, _) = Endpoint::attach(daemon.socket(), "b");
    a.send(&announce(1, vec![registers(0x1000)]));
    b.acknowledge();
    a.receive();
    b.send(&announce(1, vec![registers(0x2000)]));
    a.acknowledge();
    b.receive();
    a.send(&announce(2, Vec::new()));
    b.send(&announce(2, Vec::new()));
    a.acknowledge();
    b.acknowledge();
    assert!(matches!(a.receive(), Message::Announced { sequence: 2 }));
    assert!(matches!(b.receive(), Message::Announced { sequence: 2 }));
}

#[test]
fn of_windows_that_overlap_the_first_has_the_smaller_claim() {
    let daemon = start(&[]);
    let (a, _) = Endpoint::attach(daemon.socket(), "a");
    let (b, _) = Endpoint::attach(daemon.socket(), "b");
    let (c, _) = Endpoint::attach(daemon.socket(), "c");
    a.send(&announce(1, vec![registers(0x1000)]));
    let first = c.acknowledge().1[0].claim;
    b.acknowledge();
    b.send(&announce(1, vec![registers(0x1800)]));
    let second = c.acknowledge().1[0].claim;
    assert!(first < second);
}

/// An endpoint that announces one window after another as fast as the switch takes them, and acknowledges those of all others.
struct Announcer {
    endpoint: Endpoint,
    port: PortId,
    /// The announcement that is not settled yet.
    round: u64,
    is_settled: bool,
    /// The windows of others.
    heard: BTreeMap<PortId, u64>,
    /// The count up to which it knows all changes.
    known: Option<u64>,
}

impl Announcer {
    fn start(daemon: &Daemon, number: u32) -> Self {
        let (endpoint, port) = Endpoint::attach(daemon.socket(), &format!("d{number}"));
        Self {
            endpoint,
            port,
            round: 0,
            is_settled: false,
            heard: BTreeMap::new(),
            known: None,
        }
    }

    fn announce(&mut self) {
        self.round += 1;
        let windows = vec![registers(address(self.port, self.round))];
        self.endpoint.send(&announce(self.round, windows));
    }

    fn know(&mut self, count: u64) {
        assert!(self.known.is_none_or(|known| known <= count));
        self.known = Some(count);
    }

    /// Handles one message.
    fn react(&mut self, rounds: u64) {
        match self.endpoint.receive_any(ENDPOINT_TIME_OUT).unwrap() {
            Message::Known { count } => {
                assert_ne!(self.known, Some(count));
                self.know(count);
            }
            Message::Peer {
                ticket,
                peer,
                windows,
                known,
                ..
            } => {
                self.know(known);
                self.heard.insert(peer, windows[0].range.first().0);
                self.endpoint.send(&Message::Ack { ticket });
            }
            Message::Announced { sequence } => {
                assert_eq!(sequence, self.round);
                self.is_settled = self.round == rounds;
                if !self.is_settled {
                    self.announce();
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

fn address(port: PortId, round: u64) -> u64 {
    0x10_0000 * u64::from(port.0) + 0x1000 * round
}

#[test]
fn a_storm_of_announcements_by_all_at_once_is_worked_off() {
    const ROUNDS: u64 = 5;
    const ENDPOINTS: u32 = 8;
    const CHANGES: u64 = ROUNDS * ENDPOINTS as u64;
    let daemon = start(&[]);
    let announcers = (0..ENDPOINTS).map(|number| Announcer::start(&daemon, number));
    let mut all: Vec<Announcer> = announcers.collect();
    all.iter_mut().for_each(Announcer::announce);
    let is_done = |announcer: &Announcer| announcer.is_settled && announcer.known == Some(CHANGES);
    // One thread for all, so that no step waits for a processor.
    while !all.iter().all(is_done) {
        for index in readable(all.iter().map(|announcer| &announcer.endpoint)) {
            all[index].react(ROUNDS);
        }
    }
    let ports: Vec<PortId> = all.iter().map(|announcer| announcer.port).collect();
    for announcer in &all {
        let others = ports.iter().filter(|port| **port != announcer.port);
        let last = others.map(|port| (*port, address(*port, ROUNDS)));
        assert_eq!(announcer.heard, last.collect());
        assert!(announcer.endpoint.has_heard_nothing());
    }
}

#[test]
fn each_link_has_the_mode_of_the_command_line() {
    let daemon = start(&["a=drop", "b=redirect"]);
    for (name, expected) in [
        ("a", LinkMode::Drop),
        ("b", LinkMode::Redirect),
        ("c", LinkMode::Route),
    ] {
        let endpoint = Endpoint::connect(daemon.socket());
        endpoint.send(&hello(name));
        let Message::Welcome { mode, .. } = endpoint.receive() else {
            panic!("no welcome")
        };
        assert_eq!(mode, expected);
    }
}
