//! An adapter that violates the protocol is cut off, and no other adapter is affected.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use peerbar_fabric::{
    Body, Incarnation, MAX_ADAPTERS, MAX_DATA, MAX_PACKET, Message, PROTOCOL, Refusal,
};
use peerbar_rig::Daemon;
use rustix::process::Signal;

use crate::process::{order, start};
use crate::raw::{Adapter, gid, hello};

/// Checks that the daemon still works: two new adapters find each other.
fn check_alive(daemon: &mut Daemon) {
    assert!(daemon.is_running(), "the daemon has ended");
    let one = Adapter::attach(daemon.socket(), 201);
    let other = Adapter::attach(daemon.socket(), 202);
    assert_eq!(one.resolve(gid(202)), other.incarnation);
    one.send_datagram(gid(202), MAX_DATA);
    assert!(matches!(
        other.receive(),
        Message::Packet { peer, incarnation, .. } if (peer, incarnation) == (gid(201), one.incarnation)
    ));
}

#[test]
fn packets_that_are_no_messages_end_the_connection() {
    let mut daemon = start(&[]);
    let packets = [
        vec![0],
        vec![0xff; 4],
        vec![0; MAX_PACKET],
        vec![9; MAX_PACKET + 1],
        hello(1).encode().bytes[..4].to_vec(),
    ];
    for (number, packet) in packets.iter().enumerate() {
        let fresh = Adapter::connect(daemon.socket());
        fresh.send_raw(packet, &[]).unwrap();
        assert!(fresh.is_cut_off(), "packet {number} of a stranger");
        let attached = Adapter::attach(daemon.socket(), 1);
        attached.send_raw(packet, &[]).unwrap();
        assert!(attached.is_cut_off(), "packet {number}");
    }
    check_alive(&mut daemon);
}

#[test]
fn adapter_that_sends_a_fabric_s_message_is_cut_off() {
    let mut daemon = start(&[]);
    let incarnation = Incarnation(1);
    let odd = [
        Message::Welcome { incarnation },
        Message::Refused(Refusal::Full),
        Message::Peer {
            gid: gid(1),
            incarnation,
            takes_descriptors: true,
        },
        hello(2),
    ];
    for message in odd {
        let adapter = Adapter::attach(daemon.socket(), 1);
        adapter.send(&message);
        assert!(adapter.is_cut_off(), "{message:?}");
    }
    let stranger = Adapter::connect(daemon.socket());
    stranger.send(&Message::Resolve { gid: gid(1) });
    assert!(stranger.is_cut_off());
    check_alive(&mut daemon);
}

#[test]
fn unexpected_descriptors_are_closed_and_end_the_connection() {
    let mut daemon = start(&[]);
    let null = File::open("/dev/null").unwrap();
    let before = daemon.open_descriptors();
    for count in [1, 3, 16] {
        let descriptors: Vec<BorrowedFd<'_>> = vec![null.as_fd(); count];
        let adapter = Adapter::attach(daemon.socket(), 1);
        let resolve = Message::Resolve { gid: gid(1) }.encode();
        adapter.send_raw(&resolve.bytes, &descriptors).unwrap();
        assert!(adapter.is_cut_off(), "{count}");
    }
    check_alive(&mut daemon);
    daemon.wait_for_open_descriptors(before);
}

#[test]
fn adapter_is_refused_with_the_reason() {
    let daemon = start(&[]);
    let most = u8::try_from(MAX_ADAPTERS).unwrap();
    let all: Vec<Adapter> = (0..most)
        .map(|number| Adapter::attach(daemon.socket(), number))
        .collect();
    let refused = |message: &Message| {
        let adapter = Adapter::connect(daemon.socket());
        adapter.send(message);
        let Message::Refused(refusal) = adapter.receive() else {
            panic!("let in")
        };
        assert!(adapter.is_cut_off());
        refusal
    };
    assert_eq!(refused(&hello(most)), Refusal::Full);
    assert_eq!(refused(&hello(0)), Refusal::Taken);
    let old = Message::Hello {
        protocol: PROTOCOL + 1,
        name: "old".to_owned(),
        gid: gid(99),
    };
    assert_eq!(refused(&old), Refusal::Protocol);
    drop(all);
}

#[test]
fn gid_of_one_that_has_left_is_free_at_once() {
    let daemon = start(&[]);
    let former = Adapter::attach(daemon.socket(), 1);
    // So that the daemon finds all messages at once.
    daemon.signal(Signal::STOP);
    (0..32).for_each(|_| former.send_datagram(gid(9), 8));
    drop(former);
    let next = Adapter::connect(daemon.socket());
    next.send(&hello(1));
    daemon.signal(Signal::CONT);
    let answer = next.receive();
    assert!(matches!(answer, Message::Welcome { .. }), "{answer:?}");
}

#[test]
fn adapter_that_reads_nothing_stalls_no_other() {
    let mut daemon = start(&[]);
    let deaf = Adapter::attach(daemon.socket(), 1);
    let flooder = Adapter::attach(daemon.socket(), 2);
    for _ in 0..600 {
        flooder.send_datagram(gid(1), MAX_DATA);
    }
    // The daemon has handled all of them.
    assert_eq!(flooder.resolve(gid(1)), deaf.incarnation);
    check_alive(&mut daemon);
    let other = Adapter::attach(daemon.socket(), 3);
    other.send_datagram(gid(1), 1);
    let is_of_flooder = |message: &Message| match message {
        Message::Packet { peer, .. } => *peer == gid(2),
        other => panic!("{other:?}"),
    };
    let arrived = std::iter::repeat_with(|| deaf.receive()).take_while(is_of_flooder);
    assert!((128..600).contains(&arrived.count()));
    flooder.send_datagram(gid(1), 1);
    assert!(matches!(deaf.receive(), Message::Packet { .. }));
}

#[test]
fn request_for_an_unknown_incarnation_is_answered() {
    let daemon = start(&[]);
    let one = Adapter::attach(daemon.socket(), 1);
    let other = Adapter::attach(daemon.socket(), 2);
    one.send(&Message::Packet {
        peer: gid(2),
        incarnation: Incarnation(other.incarnation.0 ^ 1),
        body: Body::Settled { oldest: 1 },
    });
    let Message::Peer { incarnation, .. } = one.receive() else {
        panic!("no answer")
    };
    assert_eq!(incarnation, other.incarnation);
    assert_eq!(other.resolve(gid(1)), one.incarnation);
}

#[test]
fn descriptors_that_wait_for_one_cut_off_no_other() {
    let daemon = start(&[]);
    daemon.limit_descriptors(Some(64));
    let deaf = Adapter::attach(daemon.socket(), 1);
    let hostile = Adapter::attach(daemon.socket(), 2);
    let victim = Adapter::attach(daemon.socket(), 3);
    let other = Adapter::attach(daemon.socket(), 4);
    let null = File::open("/dev/null").unwrap();
    let request = |to: u8, incarnation, data: usize| Message::Packet {
        peer: gid(to),
        incarnation,
        body: Body::Request {
            tag: 0,
            oldest: 0,
            data: vec![1; data].into(),
            descriptors: Vec::new(),
        },
    };
    let bytes = request(1, deaf.incarnation, MAX_DATA).encode().bytes;
    // Descriptors below the limit; a test runner may have left higher ones.
    let open = || {
        let folder = std::fs::read_dir(daemon.proc_path("fd")).unwrap();
        let numbers = folder.map(|entry| {
            entry
                .unwrap()
                .file_name()
                .to_str()
                .unwrap()
                .parse()
                .unwrap()
        });
        numbers.filter(|number: &u32| *number < 64).count()
    };
    // As many as there is room for, and no more: the hostile adapter itself must not be cut off.
    for _ in 0..256 {
        if open() == 64 {
            break;
        }
        hostile.send_raw(&bytes, &[null.as_fd()]).unwrap();
        assert_eq!(hostile.resolve(gid(1)), deaf.incarnation);
    }
    assert_eq!(open(), 64);
    let bytes = request(4, other.incarnation, 8).encode().bytes;
    victim.send_raw(&bytes, &[null.as_fd()]).unwrap();
    assert_eq!(victim.resolve(gid(4)), other.incarnation);
    // The control socket has its descriptor once there is one.
    drop(hostile);
    assert!(order(&daemon, "rules").starts_with("ok"));
}

#[test]
fn adapter_has_a_limited_number_of_descriptors_waiting() {
    let daemon = start(&[]);
    let deaf: Vec<Adapter> = (1..5)
        .map(|number| Adapter::attach(daemon.socket(), number))
        .collect();
    let hostile = Adapter::attach(daemon.socket(), 9);
    let null = File::open("/dev/null").unwrap();
    let before = daemon.open_descriptors();
    for (number, peer) in (1..).zip(&deaf) {
        let request = Message::Packet {
            peer: gid(number),
            incarnation: peer.incarnation,
            body: Body::Request {
                tag: 0,
                oldest: 0,
                data: vec![1; MAX_DATA].into(),
                descriptors: Vec::new(),
            },
        };
        let bytes = request.encode().bytes;
        for _ in 0..40 {
            hostile.send_raw(&bytes, &[null.as_fd()]).unwrap();
        }
    }
    assert_eq!(hostile.resolve(gid(1)), deaf[0].incarnation);
    // 64 that it holds, and those of the packets that wait for free space.
    let held = daemon.open_descriptors() - before;
    assert!((64..=64 + deaf.len()).contains(&held), "{held}");
}
