//! An endpoint that violates the protocol is cut off, and no other endpoint is affected.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use peerbar_pci::{BusAddress, Range};
use peerbar_switch::{
    BarBacking, BarWindow, Descriptor, MAX_DESCRIPTORS, MAX_PACKET, MAX_PORTS, Message, PROTOCOL,
    PortId, Refusal, RequestError,
};

use rustix::process::Signal;

use crate::raw::{
    Endpoint, announce, check_alive, hello, registers, start, wait_for_all_sent, wait_for_log,
};

#[test]
fn packets_that_are_no_messages_end_the_connection() {
    let mut daemon = start(&[]);
    let many_windows = announce(1, vec![registers(0x1000); 7]);
    let last = BarWindow {
        range: Range::new(BusAddress(u64::MAX), 1).unwrap(),
        ..registers(0x1000)
    };
    let mut wrapping = announce(1, vec![last]).encode().bytes;
    // The size, after message, sequence, number of windows, BAR, and an address of 10 bytes.
    wrapping[14] = 2;
    let packets = [
        vec![0],
        vec![0xff; 4],
        vec![0; MAX_PACKET],
        vec![9; MAX_PACKET + 1],
        hello("xyz").encode().bytes[..4].to_vec(),
        many_windows.encode().bytes,
        wrapping,
    ];
    for (number, packet) in packets.iter().enumerate() {
        let fresh = Endpoint::connect(daemon.socket());
        fresh.send_raw(packet, &[]);
        assert!(fresh.is_cut_off(), "packet {number} of a stranger");
        let (attached, _) = Endpoint::attach(daemon.socket(), "hostile");
        attached.send_raw(packet, &[]);
        assert!(attached.is_cut_off(), "packet {number}");
    }
    check_alive(&mut daemon);
}

#[test]
fn name_of_one_that_has_left_is_free_at_once() {
    let daemon = start(&[]);
    let (former, _) = Endpoint::attach(daemon.socket(), "a");
    // So that the daemon finds all messages at once.
    daemon.signal(Signal::STOP);
    // The daemon answers none of these, so only the end of the connection shows it.
    for tag in 0..8 {
        former.send(&Message::Reply {
            peer: PortId::NONE,
            tag,
            outcome: Err(RequestError::Gone),
        });
    }
    drop(former);
    let next = Endpoint::connect(daemon.socket());
    next.send(&hello("a"));
    daemon.signal(Signal::CONT);
    let answer = next.receive();
    assert!(matches!(answer, Message::Welcome { .. }), "{answer:?}");
}

#[test]
fn newcomer_waits_for_its_name_until_that_is_free() {
    let mut daemon = start(&[]);
    let (former, _) = Endpoint::attach(daemon.socket(), "a");
    let next = Endpoint::connect(daemon.socket());
    next.send(&hello("a"));
    wait_for_all_sent(&daemon);
    assert!(next.has_heard_nothing());
    drop(former);
    let answer = next.receive();
    assert!(matches!(answer, Message::Welcome { .. }), "{answer:?}");
    drop(next);
    check_alive(&mut daemon);
}

#[test]
fn unexpected_descriptors_are_closed_and_end_the_connection() {
    let mut daemon = start(&[]);
    let null = File::open("/dev/null").unwrap();
    let before = daemon.open_descriptors();
    for count in [1, 6, 7, 64] {
        let descriptors: Vec<BorrowedFd<'_>> = vec![null.as_fd(); count];
        let endpoint = Endpoint::connect(daemon.socket());
        endpoint.send_raw(&hello("x").encode().bytes, &descriptors);
        assert!(endpoint.is_cut_off(), "{count}");
        let (endpoint, _) = Endpoint::attach(daemon.socket(), "x");
        let announce = announce(1, vec![registers(0x1000)]);
        endpoint.send_raw(&announce.encode().bytes, &descriptors);
        assert!(endpoint.is_cut_off(), "{count}");
    }
    check_alive(&mut daemon);
    daemon.wait_for_open_descriptors(before);
}

#[test]
fn memory_without_a_descriptor_is_no_announcement() {
    let daemon = start(&[]);
    let (endpoint, _) = Endpoint::attach(daemon.socket(), "x");
    let null = Descriptor::new(File::open("/dev/null").unwrap());
    let window = BarWindow {
        backing: BarBacking::Lent(null, 0, 0),
        ..registers(0x1000)
    };
    endpoint.send_raw(&announce(1, vec![window]).encode().bytes, &[]);
    assert!(endpoint.is_cut_off());
}

#[test]
fn endpoint_that_sends_a_switch_s_message_is_cut_off() {
    let mut daemon = start(&[]);
    let odd = [
        Message::Announced { sequence: 1 },
        Message::Peer {
            ticket: 1,
            peer: PortId(1),
            windows: Vec::new(),
            leases: Descriptor::default(),
            known: 0,
        },
        Message::Refused(Refusal::Full),
        Message::Ack { ticket: 1 },
        hello("again"),
    ];
    for message in odd {
        let (endpoint, _) = Endpoint::attach(daemon.socket(), "x");
        endpoint.send(&message);
        assert!(endpoint.is_cut_off(), "{message:?}");
    }
    check_alive(&mut daemon);
}

#[test]
fn endpoint_beyond_the_limit_is_refused_with_the_reason() {
    let daemon = start(&[]);
    let all: Vec<Endpoint> = (0..MAX_PORTS)
        .map(|number| Endpoint::attach(daemon.socket(), &format!("d{number}")).0)
        .collect();
    let refused = |message: &Message| {
        let endpoint = Endpoint::connect(daemon.socket());
        endpoint.send(message);
        let Message::Refused(refusal) = endpoint.receive() else {
            panic!("let in")
        };
        assert!(endpoint.is_cut_off());
        refusal
    };
    assert_eq!(refused(&hello("d64")), Refusal::Full);
    assert_eq!(refused(&hello("d0")), Refusal::NameTaken);
    let old = Message::Hello {
        protocol: PROTOCOL + 1,
        name: "d64".to_owned(),
    };
    assert_eq!(refused(&old), Refusal::Protocol);
    drop(all);
}

#[test]
fn more_connections_than_there_is_room_for_are_closed() {
    let mut daemon = start(&[]);
    let strangers: Vec<Endpoint> = (0..3 * MAX_PORTS)
        .map(|_| Endpoint::connect(daemon.socket()))
        .collect();
    assert!(strangers[3 * MAX_PORTS - 1].is_cut_off());
    drop(strangers);
    check_alive(&mut daemon);
}

#[test]
fn an_acknowledgement_that_is_guessed_ends_the_connection() {
    let mut daemon = start(&[]);
    let guessers = ["a", "b", "c"].map(|name| Endpoint::attach(daemon.socket(), name).0);
    let (other, _) = Endpoint::attach(daemon.socket(), "other");
    other.send(&announce(1, vec![registers(0x1000)]));
    for (ticket, guesser) in (0..).zip(&guessers) {
        guesser.send(&Message::Ack { ticket });
    }
    assert!(guessers.iter().all(Endpoint::is_cut_off));
    assert!(matches!(other.receive(), Message::Announced { .. }));
    drop(other);
    check_alive(&mut daemon);
}

/// Each change of the busy one carries as many descriptors as a message may have.
#[test]
fn one_that_never_reads_keeps_few_descriptors_waiting() {
    const ROUNDS: u64 = 500;
    let mut daemon = start(&[]);
    let (busy, _) = Endpoint::attach(daemon.socket(), "busy");
    let (mut idle, _) = Endpoint::attach(daemon.socket(), "idle");
    let most = daemon.open_descriptors() + 4 * MAX_DESCRIPTORS;
    let null = || Descriptor::new(File::open("/dev/null").unwrap());
    // The test keeps copies of all descriptors that were sent, because the endpoint has taken none
    // of them from its queue. Only a few are kept: a user may have as many descriptors in flight as
    // a process may have open (unix(7), ETOOMANYREFS).
    let mut former = VecDeque::new();
    let mut disconnected = 0;
    for sequence in 1..=ROUNDS {
        let windows = (1..=6).map(|part| BarWindow {
            backing: BarBacking::Lent(null(), 0, 0),
            ..registers((sequence % 2 + 1) * 0x10_0000 + part * 0x1000)
        });
        busy.send(&announce(sequence, windows.collect()));
        // The right ticket, and once more, because the next message is behind the first in the
        // queue.
        let ticket = idle.peek_ticket();
        let acknowledge = |ticket| idle.try_send(&Message::Ack { ticket }).is_ok();
        let is_there = ticket.is_some_and(|ticket| acknowledge(ticket) && acknowledge(ticket));
        let announced = busy.receive();
        let right = matches!(announced, Message::Announced { sequence: of } if of == sequence);
        assert!(right, "{announced:?}");
        let open = daemon.open_descriptors();
        assert!(open <= most, "{open} descriptors after {sequence} rounds");
        if !is_there {
            let (next, _) = Endpoint::attach(daemon.socket(), "idle");
            former.push_back(std::mem::replace(&mut idle, next));
            disconnected += 1;
            if former.len() > 8 {
                former.pop_front();
            }
        }
    }
    assert!(disconnected > 1, "it was never disconnected");
    drop((busy, idle));
    check_alive(&mut daemon);
}

#[test]
fn nine_flooders_do_not_cut_off_the_one_they_flood() {
    const FLOODERS: u64 = 9;
    const REQUESTS: u64 = 64;
    let mut daemon = start(&[]);
    let (innocent, target) = Endpoint::attach(daemon.socket(), "innocent");
    let flooders: Vec<Endpoint> = (0..FLOODERS)
        .map(|number| Endpoint::attach(daemon.socket(), &format!("f{number}")).0)
        .collect();
    for flooder in &flooders {
        for tag in 0..REQUESTS {
            flooder.send(&Message::Write {
                peer: target,
                tag,
                address: BusAddress(0x1000),
                data: vec![7; 4096].into(),
            });
        }
        // The switch has taken all of them when it answers this.
        flooder.send(&announce(1, Vec::new()));
    }
    let mut requests = 0;
    while requests < FLOODERS * REQUESTS {
        match innocent.receive() {
            Message::Write { .. } => requests += 1,
            Message::Peer { ticket, .. } => innocent.send(&Message::Ack { ticket }),
            other => panic!("{other:?}"),
        }
    }
    drop((innocent, flooders));
    check_alive(&mut daemon);
}

#[test]
fn without_descriptors_no_connection_is_accepted_for_now() {
    let mut daemon = start(&[]);
    let (attached, port) = Endpoint::attach(daemon.socket(), "attached");
    daemon.limit_descriptors(Some(3));
    let strangers: Vec<Endpoint> = (0..3).map(|_| Endpoint::connect(daemon.socket())).collect();
    let ours = &strangers[0];
    ours.send(&hello("stranger"));
    wait_for_log(&daemon, "further connections are refused for now");
    assert!(ours.has_heard_nothing());
    attached.send(&Message::Read {
        peer: port,
        tag: 1,
        address: BusAddress(0),
        length: 1,
    });
    assert!(matches!(attached.receive(), Message::Reply { .. }));
    daemon.limit_descriptors(None);
    assert!(matches!(ours.receive(), Message::Welcome { .. }));
    drop((attached, strangers));
    check_alive(&mut daemon);
}
