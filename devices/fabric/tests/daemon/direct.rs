//! Direct connections between adapters: the packets on them, and their end.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use peerbar_fabric::{Body, Gid, Incarnation, Message};
use peerbar_host::socket_file::packets::ReceiveError;
use peerbar_rig::Daemon;
use rustix::process::Signal;

use crate::nic::{Nic, carried_out};
use crate::process::{order, start};
use crate::raw::{Adapter, LONG, gid};

/// Returns this adapter's end of the direct connection that the fabric sends next.
fn end(adapter: &Adapter, peer: Gid) -> Adapter {
    loop {
        if let Message::Direct {
            gid,
            incarnation,
            socket,
        } = adapter.receive()
        {
            assert_eq!(gid, peer);
            return Adapter {
                socket: Arc::into_inner(socket.unwrap()).unwrap(),
                incarnation,
            };
        }
    }
}

/// Returns an adapter, and its end of a connection with another one that it has asked for.
fn connected(daemon: &Daemon, number: u8, peer: u8) -> (Adapter, Adapter) {
    let adapter = Adapter::attach(daemon.socket(), number);
    adapter.send(&Message::Connect { gid: gid(peer) });
    let end = end(&adapter, gid(peer));
    (adapter, end)
}

fn packet(peer: u8, incarnation: Incarnation, body: Body) -> Message {
    let peer = gid(peer);
    Message::Packet {
        peer,
        incarnation,
        body,
    }
}

fn request(tag: u64) -> Body {
    Body::Request {
        tag,
        oldest: tag,
        data: b"data".to_vec().into(),
        descriptors: Vec::new(),
    }
}

/// Returns the response that arrives next.
fn response(at: &Adapter) -> (u64, Option<Vec<u8>>) {
    loop {
        if let Message::Packet {
            body: Body::Response { tag, data },
            ..
        } = at.receive()
        {
            return (tag, data.map(|data| data.into_vec()));
        }
    }
}

fn is_closed(end: &Adapter) -> bool {
    matches!(
        end.try_receive(Instant::now() + LONG),
        Err(ReceiveError::Closed)
    )
}

#[test]
fn packets_pass_while_the_fabric_is_stopped() {
    let daemon = start(&[]);
    let other = Nic::attach(daemon.socket(), 2);
    let (_one, direct) = connected(&daemon, 1, 2);
    daemon.signal(Signal::STOP);
    direct.send(&packet(2, direct.incarnation, request(0)));
    let (from, data, _, reply) = other.request();
    assert_eq!((from, data.as_slice()), (gid(1), &b"data"[..]));
    reply.send(b"answer".to_vec());
    assert_eq!(response(&direct), (0, Some(b"answer".to_vec())));
    daemon.signal(Signal::CONT);
}

#[test]
fn rule_about_the_two_ends_their_connection_at_once() {
    let daemon = start(&[]);
    let two = Adapter::attach(daemon.socket(), 2);
    let (_one, near) = connected(&daemon, 1, 2);
    let far = end(&two, gid(1));
    let datagram = packet(2, near.incarnation, Body::Working { tag: 0 });
    for harmless in ["nic1->nic3 partition", "nic1<->nic2 none"] {
        assert!(order(&daemon, harmless).starts_with("ok"));
        near.send(&datagram);
        assert!(matches!(far.receive(), Message::Packet { .. }));
    }
    near.send(&datagram);
    assert!(order(&daemon, "nic2->nic1 loss=1%").starts_with("ok"));
    let packet = datagram.encode();
    assert!(near.send_raw(&packet.bytes, &[]).is_err());
    // Earlier packets have arrived.
    assert!(matches!(far.receive(), Message::Packet { .. }));
    assert!(is_closed(&near) && is_closed(&far));
}

#[test]
fn adapters_have_one_connection_and_only_with_each_other() {
    let daemon = start(&["--impair", "nic1->nic3 delay=1ms"]);
    let [one, two, three] = [1, 2, 3].map(|number| Adapter::attach(daemon.socket(), number));
    let connect = |to| one.send(&Message::Connect { gid: gid(to) });
    // Itself, one that a rule selects, an unknown GID; then twice another one.
    [1, 3, 9, 2, 2].into_iter().for_each(connect);
    let near = end(&one, gid(2));
    let far = end(&two, gid(1));
    assert_eq!(near.incarnation, two.incarnation);
    assert_eq!(far.incarnation, one.incarnation);
    for adapter in [&one, &two, &three] {
        adapter.send(&Message::Resolve { gid: gid(8) });
        let next = adapter.receive();
        assert!(matches!(next, Message::Peer { .. }), "{next:?}");
    }
}

#[test]
fn connection_that_hung_up_is_replaced_after_a_while() {
    let daemon = start(&[]);
    let _two = Adapter::attach(daemon.socket(), 2);
    let (one, near) = connected(&daemon, 1, 2);
    drop(near);
    let start = Instant::now();
    let again = loop {
        one.send(&Message::Connect { gid: gid(2) });
        one.send(&Message::Resolve { gid: gid(2) });
        match one.receive() {
            Message::Peer { .. } => assert!(start.elapsed() < LONG),
            Message::Direct { socket, .. } => break socket,
            other => panic!("{other:?}"),
        }
    };
    assert!(again.is_some());
}

#[test]
fn peer_that_does_not_read_its_end_is_answered() {
    let daemon = start(&[]);
    let other = Nic::attach(daemon.socket(), 2);
    let (one, _unread) = connected(&daemon, 1, 2);
    let incarnation = one.resolve(gid(2));
    one.send(&packet(2, incarnation, request(0)));
    let (.., reply) = other.request();
    reply.send(b"answer".to_vec());
    // The answer is lost. The next one, to the request that is sent again, goes through the fabric.
    one.resolve(gid(2));
    one.send(&packet(2, incarnation, request(0)));
    assert_eq!(response(&one), (0, Some(b"answer".to_vec())));
}

#[test]
fn anything_but_packets_ends_the_connection_alone() {
    let daemon = start(&[]);
    let other = Nic::attach(daemon.socket(), 2);
    let odd = [
        vec![0xff; 4],
        Message::Resolve { gid: gid(1) }.encode().bytes,
        Message::Connect { gid: gid(1) }.encode().bytes,
    ];
    for bytes in odd {
        let (one, direct) = connected(&daemon, 1, 2);
        direct.send_raw(&bytes, &[]).unwrap();
        assert!(is_closed(&direct), "{bytes:?}");
        one.send(&packet(2, direct.incarnation, request(0)));
        let (from, _, _, reply) = other.request();
        assert_eq!(from, gid(1));
        reply.send(Vec::new());
        assert_eq!(response(&one), (0, Some(Vec::new())));
    }
}

#[test]
fn descriptors_of_no_request_end_the_connection() {
    let daemon = start(&[]);
    let _other = Nic::attach(daemon.socket(), 2);
    let (_one, direct) = connected(&daemon, 1, 2);
    let bytes = packet(2, direct.incarnation, Body::Working { tag: 0 })
        .encode()
        .bytes;
    let null = std::fs::File::open("/dev/null").unwrap();
    let descriptors: [BorrowedFd<'_>; 1] = [null.as_fd()];
    direct.send_raw(&bytes, &descriptors).unwrap();
    assert!(is_closed(&direct));
}

#[test]
fn peer_cannot_name_another_source() {
    let daemon = start(&[]);
    let other = Nic::attach(daemon.socket(), 2);
    let (_one, direct) = connected(&daemon, 1, 2);
    direct.send(&packet(9, Incarnation(9), request(0)));
    let (from, _, _, reply) = other.request();
    assert_eq!(from, gid(1));
    drop(reply);
    assert_eq!(response(&direct), (0, None));
}

#[test]
fn connection_ends_with_either_adapter() {
    let daemon = start(&[]);
    let two = Adapter::attach(daemon.socket(), 2);
    for leaves in [false, true] {
        let (one, near) = connected(&daemon, 1, 2);
        let far = end(&two, gid(1));
        if leaves {
            // The fabric hangs up for it.
            drop(one);
            assert!(is_closed(&near));
        } else {
            drop(near);
        }
        assert!(is_closed(&far));
    }
}

#[test]
fn links_go_on_after_a_rule_came_and_went() {
    let daemon = start(&[]);
    let [one, other] = [1, 2].map(|number| Nic::attach(daemon.socket(), number));
    let peer = (2, &other);
    for rule in [
        "nic1<->nic2 delay=1ms",
        "clear",
        "nic1<->nic2 loss=20%",
        "clear",
    ] {
        assert_eq!(carried_out(&one, peer), Ok(b"again".to_vec()));
        assert!(order(&daemon, rule).starts_with("ok"));
        assert_eq!(carried_out(&one, peer), Ok(b"again".to_vec()), "{rule}");
    }
}
