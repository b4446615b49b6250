//! Requests from endpoint to endpoint.

use peerbar_pci::BusAddress;
use peerbar_switch::{MAX_DATA, Message, PortId, RequestError, RequestResult};
use serde_bytes::ByteBuf;

use crate::raw::{Endpoint, announce, check_alive, start};

fn write(peer: PortId, tag: u64, data: Vec<u8>) -> Message {
    Message::Write {
        peer,
        tag,
        address: BusAddress(0x1000),
        data: data.into(),
    }
}

fn reply(peer: PortId, tag: u64) -> Message {
    Message::Reply {
        peer,
        tag,
        outcome: done(),
    }
}

fn done() -> RequestResult {
    Ok(ByteBuf::from([7; 8]))
}

fn outcome(endpoint: &Endpoint) -> (u64, RequestResult) {
    let Message::Reply { tag, outcome, .. } = endpoint.receive() else {
        panic!("no reply")
    };
    (tag, outcome)
}

#[test]
fn both_can_ask_at_once_and_each_gets_its_answer() {
    let daemon = start(&[]);
    let (a, port_a) = Endpoint::attach(daemon.socket(), "a");
    let (b, port_b) = Endpoint::attach(daemon.socket(), "b");
    let data = vec![3; MAX_DATA];
    a.send(&write(port_b, 1, data.clone()));
    b.send(&write(port_a, 1, data.clone()));
    for (endpoint, from) in [(&a, port_b), (&b, port_a)] {
        let Message::Write {
            peer,
            tag,
            data: came,
            ..
        } = endpoint.receive()
        else {
            panic!("no write")
        };
        assert_eq!((peer, &*came), (from, &data));
        endpoint.send(&reply(peer, tag));
    }
    for endpoint in [&a, &b] {
        assert_eq!(outcome(endpoint), (1, done()));
    }
}

#[test]
fn answer_of_an_endpoint_that_was_not_asked_is_dropped() {
    let daemon = start(&[]);
    let (a, port_a) = Endpoint::attach(daemon.socket(), "a");
    let (b, port_b) = Endpoint::attach(daemon.socket(), "b");
    let (c, _) = Endpoint::attach(daemon.socket(), "c");
    a.send(&write(port_b, 1, vec![1]));
    assert!(matches!(b.receive(), Message::Write { .. }));
    c.send(&reply(port_a, 1));
    assert!(c.hears_nothing_before_an_answer());
    assert!(a.has_heard_nothing());
    b.send(&reply(port_a, 1));
    b.send(&reply(port_a, 1));
    assert_eq!(outcome(&a).1, done());
    assert!(b.hears_nothing_before_an_answer());
    assert!(a.has_heard_nothing());
}

#[test]
fn request_to_dead_or_missing_peer_fails() {
    let daemon = start(&[]);
    let (a, port_a) = Endpoint::attach(daemon.socket(), "a");
    let (dying, dies) = Endpoint::attach(daemon.socket(), "dying");
    a.send(&write(dies, 2, vec![1]));
    a.send(&write(PortId(99), 3, vec![1]));
    a.send(&write(port_a, 4, vec![1]));
    assert_eq!(outcome(&a).0, 3);
    assert_eq!(outcome(&a).0, 4);
    drop(dying);
    assert_eq!(outcome(&a), (2, Err(RequestError::Gone)));
}

#[test]
fn endpoint_that_floods_a_peer_is_cut_off_alone() {
    let mut daemon = start(&[]);
    let (flood, port) = Endpoint::attach(daemon.socket(), "flood");
    let (victim, target) = Endpoint::attach(daemon.socket(), "victim");
    for tag in 0..=64 {
        flood.send(&write(target, tag, vec![0; MAX_DATA]));
    }
    assert!(flood.is_cut_off());
    let mut requests = 0;
    // Requests that the victim has not been sent by then are dropped.
    victim.send(&announce(1, Vec::new()));
    loop {
        match victim.receive() {
            Message::Write { peer, .. } if peer == port => requests += 1,
            Message::Announced { sequence: 1 } => break,
            other => panic!("{other:?}"),
        }
    }
    assert!((1..=64).contains(&requests), "{requests}");
    victim.send(&reply(port, 1));
    assert!(victim.hears_nothing_before_an_answer());
    drop(victim);
    check_alive(&mut daemon);
}
