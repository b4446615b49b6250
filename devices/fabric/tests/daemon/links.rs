//! Links between adapters.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use peerbar_fabric::{MAX_DATA, MAX_REQUESTS, RequestError, SendError};
use rustix::process::Signal;

use crate::nic::{Event, Nic, ask, carried_out, outcome};
use crate::process::{order, start};
use crate::raw::{LONG, gid};

#[test]
fn request_and_its_descriptor_reach_the_peer() {
    let daemon = start(&[]);
    let [one, other] = [1, 2].map(|number| Nic::attach(daemon.socket(), number));
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"lent").unwrap();
    let lent = Arc::new(OwnedFd::from(file));
    let longest = vec![3; MAX_DATA];
    let answer = one.ask(2, &longest, vec![lent]);
    let (from, data, mut descriptors, reply) = other.request();
    assert_eq!((from, data), (gid(1), longest));
    let mut file = File::from(descriptors.pop().unwrap());
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), descriptors.len()), ("lent", 0));
    reply.send(vec![4; MAX_DATA]);
    assert_eq!(outcome(&answer), Ok(vec![4; MAX_DATA]));
}

#[test]
fn datagram_reaches_its_peer_and_oneself() {
    let daemon = start(&[]);
    let [one, other] = [1, 2].map(|number| Nic::attach(daemon.socket(), number));
    for (nic, to) in [(&other, 2), (&one, 1)] {
        one.link.sender().datagram(gid(to), b"data").unwrap();
        let Event::Datagram(from, data) = nic.event() else {
            panic!("no datagram");
        };
        assert_eq!((from, data.as_slice()), (gid(1), &b"data"[..]));
    }
    let too_long = one.link.sender().datagram(gid(2), &[0; MAX_DATA + 1]);
    assert_eq!(too_long, Err(SendError::TooLong));
}

#[test]
fn dropped_reply_or_long_response_refuses_the_request() {
    let daemon = start(&[]);
    let [one, other] = [1, 2].map(|number| Nic::attach(daemon.socket(), number));
    let first = one.ask(2, b"", Vec::new());
    drop(other.request());
    assert_eq!(outcome(&first), Err(RequestError::Refused));
    let second = one.ask(2, b"", Vec::new());
    let (.., reply) = other.request();
    reply.send(vec![0; MAX_DATA + 1]);
    assert_eq!(outcome(&second), Err(RequestError::Refused));
}

#[test]
fn requests_get_through_a_fabric_that_loses_a_tenth() {
    let rule = "*->* loss=10% duplicate=10% reorder=10%";
    let daemon = start(&["--seed", "7", "--impair", rule]);
    let [one, other] = [1, 2].map(|number| Nic::attach(daemon.socket(), number));
    let sender = one.link.sender();
    let mut waiting = Vec::new();
    for number in 0..MAX_REQUESTS as u32 {
        let data = number.to_le_bytes();
        waiting.push((number, ask(&sender, 2, &data, Vec::new()).unwrap()));
    }
    assert_eq!(
        ask(&sender, 2, b"", Vec::new()).unwrap_err(),
        SendError::Busy
    );
    let mut seen = Vec::new();
    while seen.len() < MAX_REQUESTS {
        let (_, data, _, reply) = other.request();
        assert!(!seen.contains(&data), "it came twice");
        reply.send(data.clone());
        seen.push(data);
    }
    for (number, answer) in waiting {
        assert_eq!(outcome(&answer), Ok(number.to_le_bytes().to_vec()));
    }
}

#[test]
fn rules_change_while_the_fabric_serves() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let daemon = start(&["--record", record.to_str().unwrap()]);
    let [one, other] = [1, 2].map(|number| Nic::attach(daemon.socket(), number));
    let answer = order(&daemon, "nic1->nic2 partition");
    assert_eq!(answer, "ok in force: nic1->nic2 partition");
    let sender = one.link.sender();
    sender.datagram(gid(2), b"lost").unwrap();
    // The packet that comes back has overtaken the lost one.
    sender.datagram(gid(1), b"back").unwrap();
    assert!(matches!(one.event(), Event::Datagram(..)));
    assert_eq!(order(&daemon, "clear"), "ok rules cleared: 1");
    sender.datagram(gid(2), b"arrives").unwrap();
    let Event::Datagram(_, data) = other.event() else {
        panic!("no datagram");
    };
    assert_eq!(data, b"arrives");
    let text = std::fs::read_to_string(record).unwrap();
    let lines: Vec<&str> = text.lines().filter(|l| !l.contains("attached")).collect();
    let words: Vec<&str> = lines.iter().map(|l| l.split_once(' ').unwrap().1).collect();
    assert_eq!(
        words,
        [
            "rule nic1->nic2 partition",
            "nic1->nic2 #1 (datagram, 68 bytes) lost: partition",
            "rules cleared",
        ]
    );
}

#[test]
fn peer_that_leaves_ends_requests_and_is_gone() {
    let daemon = start(&[]);
    let [one, other] = [1, 2].map(|number| Nic::attach(daemon.socket(), number));
    let answer = one.ask(2, b"", Vec::new());
    let (.., reply) = other.request();
    drop(other);
    assert_eq!(outcome(&answer), Err(RequestError::Gone));
    assert!(matches!(one.event(), Event::Gone(peer) if peer == gid(2)));
    drop(reply);
    let unknown = one.ask(3, b"", Vec::new());
    assert_eq!(outcome(&unknown), Err(RequestError::Gone));
}

#[test]
fn link_attaches_again_to_a_fabric_that_was_killed() {
    let mut daemon = start(&[]);
    let [one, other] = [1, 2].map(|number| Nic::attach(daemon.socket(), number));
    let answer = one.ask(2, b"", Vec::new());
    let (.., reply) = other.request();
    daemon.restart();
    assert_eq!(outcome(&answer), Err(RequestError::Gone));
    reply.send(Vec::new());
    for nic in [&one, &other] {
        while !matches!(nic.event(), Event::Lost) {}
    }
    // Both come back after a while.
    let deadline = Instant::now() + LONG;
    while carried_out(&one, (2, &other)) != Ok(b"again".to_vec()) {
        assert!(Instant::now() < deadline, "a link does not come back");
    }
}

#[test]
fn link_ends_while_the_fabric_is_stopped() {
    let daemon = start(&[]);
    let one = Nic::attach(daemon.socket(), 1);
    daemon.signal(Signal::STOP);
    let answer = one.ask(1, b"", Vec::new());
    let sender = one.link.sender();
    drop(one);
    assert_eq!(outcome(&answer), Err(RequestError::Gone));
    assert_eq!(sender.datagram(gid(1), b""), Err(SendError::Lost));
}
