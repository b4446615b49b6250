//! Announcements among many endpoints, some of which never answer or die.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use peerbar_switch::{
    ACKNOWLEDGE_TIME_OUT, BarBacking, BarWindow, Descriptor, LinkMode, Message, PortId,
};

use peerbar_test_daemon::Daemon;

use crate::raw::{Endpoint, announce, hello, readable, registers, start};

#[test]
fn an_announcement_returns_when_all_others_have_acknowledged() {
    let daemon = start(&[]);
    let (a, port) = Endpoint::attach(daemon.socket(), "a");
    let (b, _) = Endpoint::attach(daemon.socket(), "b");
    let (c, _) = Endpoint::attach(daemon.socket(), "c");
    a.send(&announce(5, vec![registers(0x1000)]));
    let (peer, windows) = b.acknowledge();
    assert_eq!((peer, windows[0].address), (port, 0x1000));
    assert!(a.hears_nothing());
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
fn endpoint_that_never_acknowledges_is_cut_off() {
    let daemon = start(&[]);
    let (a, _) = Endpoint::attach(daemon.socket(), "a");
    let (deaf, port) = Endpoint::attach(daemon.socket(), "deaf");
    deaf.send(&announce(1, vec![registers(0x9000)]));
    a.acknowledge();
    let begun = Instant::now();
    a.send(&announce(1, vec![registers(0x1000)]));
    let (peer, windows) = a.acknowledge();
    assert_eq!((peer, windows[0].address), (port, 0x9000));
    assert!(matches!(windows[0].backing, BarBacking::Gone));
    assert!(matches!(a.receive(), Message::Announced { sequence: 1 }));
    assert!(begun.elapsed() >= ACKNOWLEDGE_TIME_OUT);
    assert!(deaf.is_cut_off());
}

#[test]
fn endpoint_that_dies_is_not_waited_for() {
    let daemon = start(&[]);
    let (a, _) = Endpoint::attach(daemon.socket(), "a");
    let (dying, _) = Endpoint::attach(daemon.socket(), "dying");
    let begun = Instant::now();
    a.send(&announce(1, vec![registers(0x1000)]));
    assert!(matches!(dying.receive(), Message::Peer { .. }));
    drop(dying);
    assert!(matches!(a.receive(), Message::Announced { sequence: 1 }));
    assert!(begun.elapsed() < ACKNOWLEDGE_TIME_OUT);
}

#[test]
fn two_that_announce_at_once_get_on() {
    let daemon = start(&[]);
    let (a, _) = Endpoint::attach(daemon.socket(), "a");
    let (b, _) = Endpoint::attach(daemon.socket(), "b");
    a.send(&announce(1, vec![registers(0x1000)]));
    b.send(&announce(1, vec![registers(0x2000)]));
    a.acknowledge();
    b.acknowledge();
    assert!(matches!(a.receive(), Message::Announced { .. }));
    assert!(matches!(b.receive(), Message::Announced { .. }));
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
    /// Changes of others that it has acknowledged.
    heard: u64,
}

impl Announcer {
    fn start(daemon: &Daemon, number: u32) -> Self {
        let (endpoint, port) = Endpoint::attach(daemon.socket(), &format!("d{number}"));
        Self {
            endpoint,
            port,
            round: 0,
            heard: 0,
        }
    }

    fn announce(&mut self) {
        self.round += 1;
        let address = 0x10_0000 * u64::from(self.port.0) + 0x1000 * self.round;
        let windows = vec![registers(address)];
        self.endpoint.send(&announce(self.round, windows));
    }

    /// Handles one message.
    fn react(&mut self, rounds: u64) {
        match self.endpoint.receive() {
            Message::Peer { ticket, .. } => {
                self.heard += 1;
                self.endpoint.send(&Message::Ack { ticket });
            }
            Message::Announced { sequence } => {
                assert_eq!(sequence, self.round);
                if self.round < rounds {
                    self.announce();
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_storm_of_announcements_by_all_at_once_is_worked_off() {
    const ROUNDS: u64 = 5;
    // So few that they get on within the switch's time-out where each step waits for a processor.
    const ENDPOINTS: u32 = 8;
    // Each of the others' announcements, and the answers to its own.
    const MESSAGES: u64 = ROUNDS * ENDPOINTS as u64;
    let daemon = start(&[]);
    let announcers = (0..ENDPOINTS).map(|number| Announcer::start(&daemon, number));
    let mut all: Vec<Announcer> = announcers.collect();
    all.iter_mut().for_each(Announcer::announce);
    // One thread for all, for the same reason.
    let mut left = MESSAGES * u64::from(ENDPOINTS);
    while left > 0 {
        for index in readable(all.iter().map(|announcer| &announcer.endpoint)) {
            all[index].react(ROUNDS);
            left -= 1;
        }
    }
    for announcer in &all {
        let expected = (ROUNDS, ROUNDS * u64::from(ENDPOINTS - 1));
        assert_eq!((announcer.round, announcer.heard), expected);
        assert!(announcer.endpoint.hears_nothing_for(Duration::ZERO));
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
