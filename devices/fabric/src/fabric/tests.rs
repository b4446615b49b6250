use serde_bytes::ByteBuf;

use super::*;
use crate::limits::{MAX_ANSWERS, MAX_WAITING};

fn fabric(rules: &[&str]) -> (PacketFabric, Instant) {
    let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let impairments = Arc::new(Mutex::new(Impairments::new(1, rules)));
    let incarnation = |number| Incarnation(number + 100);
    let fabric = PacketFabric::new(impairments, Record::default(), incarnation, 100);
    (fabric, Instant::now())
}

fn gid(number: u8) -> Gid {
    Gid([number; 16])
}

fn hello(fabric: &mut PacketFabric, number: u8, now: Instant) -> PortId {
    let port = fabric.connect(now);
    let hello = Message::Hello {
        protocol: PROTOCOL,
        name: format!("nic{number}"),
        gid: gid(number),
    };
    fabric.receive(port, hello, now);
    port
}

fn attach(fabric: &mut PacketFabric, number: u8, now: Instant) -> (PortId, Incarnation) {
    let port = hello(fabric, number, now);
    match fabric.next(port) {
        Some(Message::Welcome { incarnation }) => (port, incarnation),
        other => panic!("{other:?}"),
    }
}

fn datagram(to: u8, incarnation: Incarnation) -> Message {
    Message::Packet {
        peer: gid(to),
        incarnation,
        body: Body::Datagram {
            data: ByteBuf::from([to]),
        },
    }
}

/// Takes the packets for an adapter. Returns their number.
fn packets(fabric: &mut PacketFabric, to: PortId) -> usize {
    let mut packets = 0;
    while let Some(message) = fabric.next(to) {
        packets += usize::from(matches!(message, Message::Packet { .. }));
    }
    packets
}

#[test]
fn packet_arrives_with_its_source() {
    let (mut fabric, now) = fabric(&[]);
    let (one, incarnation) = attach(&mut fabric, 1, now);
    let (other, meant) = attach(&mut fabric, 2, now);
    for meant in [meant, Incarnation::NONE] {
        fabric.receive(one, datagram(2, meant), now);
        let Some(Message::Packet {
            peer,
            incarnation: of,
            ..
        }) = fabric.next(other)
        else {
            panic!("no packet");
        };
        assert_eq!((peer, of), (gid(1), incarnation));
    }
    assert!(fabric.next(one).is_none());
}

#[test]
fn packet_for_another_incarnation_is_answered_by_the_fabric() {
    let (mut fabric, now) = fabric(&[]);
    let (one, _) = attach(&mut fabric, 1, now);
    let (other, real) = attach(&mut fabric, 2, now);
    for (to, is) in [(2, real), (3, Incarnation::NONE)] {
        fabric.receive(one, datagram(to, Incarnation(7)), now);
        let answer = fabric.next(one);
        let Some(Message::Peer {
            gid: of,
            incarnation,
            ..
        }) = answer
        else {
            panic!("{answer:?}");
        };
        assert_eq!((of, incarnation), (gid(to), is));
    }
    assert_eq!(packets(&mut fabric, other), 0);
}

#[test]
fn packets_of_one_that_left_arrive_no_more() {
    let (mut fabric, now) = fabric(&["*->nic3 delay=1ms"]);
    let (one, _) = attach(&mut fabric, 1, now);
    let (two, _) = attach(&mut fabric, 2, now);
    let (three, _) = attach(&mut fabric, 3, now);
    fabric.receive(one, datagram(2, Incarnation::NONE), now);
    fabric.receive(one, datagram(3, Incarnation::NONE), now);
    fabric.receive(two, datagram(3, Incarnation::NONE), now);
    fabric.leave(one, now);
    fabric.expire(now + Duration::from_millis(1));
    assert_eq!(packets(&mut fabric, two), 0);
    assert_eq!(packets(&mut fabric, three), 1);
}

#[test]
fn flood_of_one_adapter_leaves_room_for_others() {
    let (mut fabric, now) = fabric(&[]);
    let (flooder, _) = attach(&mut fabric, 1, now);
    let (victim, _) = attach(&mut fabric, 2, now);
    let (other, _) = attach(&mut fabric, 3, now);
    for _ in 0..2 * MAX_HELD {
        fabric.receive(flooder, datagram(2, Incarnation::NONE), now);
    }
    fabric.receive(other, datagram(2, Incarnation::NONE), now);
    assert_eq!(packets(&mut fabric, victim), MAX_WAITING + 1);
    fabric.receive(flooder, datagram(2, Incarnation::NONE), now);
    assert_eq!(packets(&mut fabric, victim), 1, "what is read makes room");
}

#[test]
fn delayed_packets_of_one_adapter_are_limited() {
    let (mut fabric, now) = fabric(&["*->* delay=1ms"]);
    let (flooder, _) = attach(&mut fabric, 1, now);
    let ports: Vec<PortId> = (2..10)
        .map(|number| attach(&mut fabric, number, now).0)
        .collect();
    for number in 0..2000_u32 {
        let to = u8::try_from(2 + number % 8).unwrap();
        fabric.receive(flooder, datagram(to, Incarnation::NONE), now);
    }
    let later = now + Duration::from_millis(1);
    assert_eq!(fabric.deadline(), Some(later));
    fabric.expire(later);
    let arrived: usize = ports.iter().map(|port| packets(&mut fabric, *port)).sum();
    assert_eq!(arrived, MAX_HELD);
    assert_eq!(fabric.deadline(), None);
}

#[test]
fn adapter_that_reads_no_answers_gets_a_limited_number() {
    let (mut fabric, now) = fabric(&[]);
    let (one, _) = attach(&mut fabric, 1, now);
    for _ in 0..2 * MAX_ANSWERS {
        fabric.receive(one, Message::Resolve { gid: gid(9) }, now);
    }
    let mut answers = 0;
    while fabric.next(one).is_some() {
        answers += 1;
    }
    assert_eq!(answers, MAX_ANSWERS);
}

#[test]
fn gid_or_name_that_is_taken_is_waited_for() {
    let (mut fabric, now) = fabric(&[]);
    let (former, first) = attach(&mut fabric, 1, now);
    let next = hello(&mut fabric, 1, now);
    let last = hello(&mut fabric, 1, now + Duration::from_millis(1));
    assert!(fabric.next(next).is_none());
    fabric.leave(former, now);
    let Some(Message::Welcome { incarnation }) = fabric.next(next) else {
        panic!("no welcome");
    };
    assert_ne!(incarnation, first);
    fabric.expire(fabric.deadline().unwrap());
    let reason = Reason::Refused(Refusal::Taken);
    assert_eq!(fabric.take_cut_off(), [CutOff { port: last, reason }]);
}

#[test]
fn adapters_beyond_the_limit_are_refused() {
    let (mut fabric, now) = fabric(&[]);
    let most = u8::try_from(MAX_ADAPTERS).unwrap();
    for number in 0..most {
        attach(&mut fabric, number, now);
    }
    let port = hello(&mut fabric, most, now);
    let reason = Reason::Refused(Refusal::Full);
    assert_eq!(fabric.take_cut_off(), [CutOff { port, reason }]);
}

#[test]
fn violation_ends_the_connection_and_frees_its_gid() {
    let (mut fabric, now) = fabric(&[]);
    let (one, _) = attach(&mut fabric, 1, now);
    let incarnation = Incarnation(1);
    fabric.receive(one, Message::Welcome { incarnation }, now);
    let cut_off = fabric.take_cut_off();
    assert!(matches!(cut_off[..], [CutOff { port, .. }] if port == one));
    attach(&mut fabric, 1, now);
}

#[test]
fn connection_without_a_hello_is_cut_off_in_time() {
    let (mut fabric, now) = fabric(&[]);
    let port = fabric.connect(now);
    assert_eq!(fabric.deadline(), Some(now + HELLO_TIME_OUT));
    fabric.expire(now + HELLO_TIME_OUT);
    let reason = Reason::Silent;
    assert_eq!(fabric.take_cut_off(), [CutOff { port, reason }]);
    assert_eq!(fabric.deadline(), None);
}

#[test]
fn no_descriptor_goes_where_a_rule_changes_what_passes() {
    let takes_descriptors = |rules: &[&str]| {
        let (mut fabric, now) = fabric(rules);
        let (one, _) = attach(&mut fabric, 1, now);
        attach(&mut fabric, 2, now);
        fabric.receive(one, Message::Resolve { gid: gid(2) }, now);
        match fabric.next(one) {
            Some(Message::Peer {
                takes_descriptors, ..
            }) => takes_descriptors,
            other => panic!("{other:?}"),
        }
    };
    for rules in [&[][..], &["*->* none"], &["nic1->nic3 loss=1%"]] {
        assert!(takes_descriptors(rules), "{rules:?}");
    }
    for rule in ["*->* loss=1%", "nic2->nic1 delay=1ms", "nic1->* partition"] {
        assert!(!takes_descriptors(&[rule]), "{rule}");
    }
}

#[test]
fn adapters_that_read_nothing_do_not_starve_a_third() {
    let (mut fabric, now) = fabric(&[]);
    let (victim, _) = attach(&mut fabric, 1, now);
    let (reader, _) = attach(&mut fabric, 2, now);
    for number in 3..7 {
        attach(&mut fabric, number, now);
        for _ in 0..MAX_WAITING {
            fabric.receive(victim, datagram(number, Incarnation::NONE), now);
        }
    }
    fabric.expire(now + std::time::Duration::from_secs(3600));
    fabric.receive(victim, datagram(2, Incarnation::NONE), now);
    assert_eq!(packets(&mut fabric, reader), 1);
}

#[test]
fn descriptors_of_packets_that_made_room_count_no_more() {
    let (mut fabric, now) = fabric(&[]);
    let (one, _) = attach(&mut fabric, 1, now);
    let null = || {
        Arc::new(std::os::fd::OwnedFd::from(
            std::fs::File::open("/dev/null").unwrap(),
        ))
    };
    let mut deaf = Vec::new();
    for number in 2..8 {
        let (port, incarnation) = attach(&mut fabric, number, now);
        deaf.push(port);
        for count in 0..100 {
            let request = Message::Packet {
                peer: gid(number),
                incarnation,
                body: Body::Request {
                    tag: 0,
                    oldest: 0,
                    data: ByteBuf::new(),
                    // The oldest packets have one.
                    descriptors: (count < 10).then(null).into_iter().collect(),
                },
            };
            fabric.receive(one, request, now);
        }
    }
    let held: usize = fabric.holders.values().map(|it| it.held.descriptors).sum();
    assert_eq!(fabric.descriptors, held);
    for port in deaf {
        while fabric.next(port).is_some() {}
    }
    assert_eq!(fabric.descriptors, 0);
}
