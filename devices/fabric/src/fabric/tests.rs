use serde_bytes::ByteBuf;

use super::*;
use crate::limits::{MAX_ANSWERS, MAX_FAR_PEERS, MAX_WAITING};

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

fn id(gid: Gid, incarnation: Incarnation) -> AdapterId {
    AdapterId { gid, incarnation }
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

/// How many packets there are for an adapter, which are taken.
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

/// Two fabrics with a tunnel between them.
struct Pair {
    fabrics: [PacketFabric; 2],
    tunnels: [PortId; 2],
    now: Instant,
}

impl Pair {
    fn new() -> Self {
        let now = Instant::now();
        let mut fabrics = [1, 1000].map(|first| {
            let mut fabric = fabric(&[]).0;
            fabric.last_incarnation = first;
            fabric
        });
        let tunnels = fabrics.each_mut().map(|fabric| fabric.connect_tunnel(now));
        Self {
            fabrics,
            tunnels,
            now,
        }
    }

    /// Passes on all that the fabrics have for each other.
    fn exchange(&mut self) {
        for (from, to) in [(0, 1), (1, 0)] {
            let (source, tunnel) = (&mut self.fabrics[from], self.tunnels[from]);
            let next = || {
                let notice = source.next_notice(tunnel);
                notice.or_else(|| source.next_far_packet(tunnel))
            };
            let frames: Vec<Frame> = std::iter::from_fn(next).collect();
            for frame in frames {
                self.fabrics[to].receive_frame(self.tunnels[to], frame, self.now);
            }
        }
    }

    fn attach(&mut self, at: usize, number: u8) -> (PortId, Incarnation) {
        let attached = attach(&mut self.fabrics[at], number, self.now);
        self.exchange();
        attached
    }

    /// The holder of a GID, as an adapter learns it.
    fn resolve(&mut self, at: usize, from: PortId, number: u8) -> (Incarnation, bool) {
        let gid = gid(number);
        self.fabrics[at].receive(from, Message::Resolve { gid }, self.now);
        match self.fabrics[at].next(from) {
            Some(Message::Peer {
                incarnation,
                takes_descriptors,
                ..
            }) => (incarnation, takes_descriptors),
            other => panic!("{other:?}"),
        }
    }
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
fn adapters_of_two_fabrics_know_each_other_by_other_numbers() {
    let mut pair = Pair::new();
    let (one, first) = pair.attach(0, 1);
    let (other, second) = pair.attach(1, 2);
    let (far, takes_descriptors) = pair.resolve(0, one, 2);
    assert!(far != second && far != Incarnation::NONE && !takes_descriptors);
    let now = pair.now;
    for meant in [far, Incarnation::NONE] {
        pair.fabrics[0].receive(one, datagram(2, meant), now);
        pair.exchange();
        let Some(Message::Packet {
            peer, incarnation, ..
        }) = pair.fabrics[1].next(other)
        else {
            panic!("no packet");
        };
        assert_eq!((peer, incarnation), (gid(1), pair.resolve(1, other, 1).0));
        assert_ne!(incarnation, first);
    }
}

#[test]
fn adapter_that_comes_back_has_another_number_there_too() {
    let mut pair = Pair::new();
    let (one, _) = pair.attach(0, 1);
    let (other, _) = pair.attach(1, 2);
    let (before, _) = pair.resolve(0, one, 2);
    pair.fabrics[1].leave(other, pair.now);
    pair.exchange();
    assert_eq!(pair.resolve(0, one, 2).0, Incarnation::NONE);
    pair.attach(1, 2);
    let (after, _) = pair.resolve(0, one, 2);
    assert!(after != before && after != Incarnation::NONE);
    // A tunnel that comes back makes it another one, too.
    pair.fabrics[0].leave(pair.tunnels[0], pair.now);
    assert_eq!(pair.resolve(0, one, 2).0, Incarnation::NONE);
    pair.fabrics[1].leave(pair.tunnels[1], pair.now);
    let now = pair.now;
    pair.tunnels = pair
        .fabrics
        .each_mut()
        .map(|fabric| fabric.connect_tunnel(now));
    pair.exchange();
    let (again, _) = pair.resolve(0, one, 2);
    assert!(![before, after, Incarnation::NONE].contains(&again));
}

#[test]
fn packets_of_a_far_adapter_that_left_arrive_no_more() {
    let mut pair = Pair::new();
    let (one, _) = pair.attach(0, 1);
    let (other, _) = pair.attach(1, 2);
    let (third, _) = pair.attach(1, 3);
    for port in [other, third] {
        pair.fabrics[1].receive(port, datagram(1, Incarnation::NONE), pair.now);
    }
    pair.exchange();
    pair.fabrics[1].leave(other, pair.now);
    pair.exchange();
    assert_eq!(packets(&mut pair.fabrics[0], one), 1);
}

#[test]
fn fabric_speaks_for_its_own_adapters_only() {
    let mut pair = Pair::new();
    let (one, first) = pair.attach(0, 1);
    let (_, second) = pair.attach(0, 2);
    let tunnel = pair.tunnels[0];
    let now = pair.now;
    let packet = |from: Incarnation, to: Incarnation| Frame::Packet {
        from: id(gid(2), from),
        to: id(gid(1), to),
        body: Body::Settled { oldest: 1 },
    };
    let present = Frame::Present {
        name: "thief".to_owned(),
        gid: gid(2),
        incarnation: Incarnation(7),
    };
    let frames = [
        packet(second, first),
        present,
        packet(Incarnation(7), first),
        Frame::Absent { gid: gid(2) },
        Frame::Absent { gid: gid(9) },
    ];
    for frame in frames {
        pair.fabrics[0].receive_frame(tunnel, frame, now);
    }
    assert_eq!(packets(&mut pair.fabrics[0], one), 0);
    assert_eq!(pair.resolve(0, one, 2), (second, true));
}

#[test]
fn fabric_with_too_many_adapters_is_cut_off() {
    let (mut fabric, now) = fabric(&[]);
    let tunnel = fabric.connect_tunnel(now);
    for number in 0..=u8::try_from(MAX_ADAPTERS).unwrap() {
        assert!(fabric.take_cut_off().is_empty());
        let present = Frame::Present {
            name: "far".to_owned(),
            gid: gid(number),
            incarnation: Incarnation(u64::from(number) + 1),
        };
        fabric.receive_frame(tunnel, present, now);
    }
    let cut_off = fabric.take_cut_off();
    assert!(matches!(cut_off[..], [CutOff { port, .. }] if port == tunnel));
    assert!(fabric.holders.is_empty());
}

#[test]
fn adapters_of_other_fabrics_leave_room_for_those_of_this_one() {
    let (mut fabric, now) = fabric(&[]);
    let (victim, meant) = attach(&mut fabric, 0, now);
    let gid_of = |number: usize| {
        let mut gid = Gid([7; 16]);
        gid.0[..8].copy_from_slice(&number.to_le_bytes());
        gid
    };
    let send = |fabric: &mut PacketFabric, tunnel, number| {
        let body = Body::Settled { oldest: 0 };
        let (from, to) = (id(gid_of(number), Incarnation(1)), id(gid(0), meant));
        fabric.receive_frame(tunnel, Frame::Packet { from, to, body }, now);
        packets(fabric, victim)
    };
    let mut arrived = 0;
    let tunnels: Vec<PortId> = (0..4).map(|_| fabric.connect_tunnel(now)).collect();
    for number in 0..4 * MAX_ADAPTERS {
        let tunnel = tunnels[number / MAX_ADAPTERS];
        let (gid, incarnation) = (gid_of(number), Incarnation(1));
        let name = "far".to_owned();
        let present = Frame::Present {
            name,
            gid,
            incarnation,
        };
        fabric.receive_frame(tunnel, present, now);
        arrived += send(&mut fabric, tunnel, number);
    }
    assert_eq!(arrived, MAX_FAR_PEERS);
    assert_eq!(send(&mut fabric, tunnels[0], 0), 1, "it is known");
    fabric.receive_frame(tunnels[0], Frame::Absent { gid: gid_of(0) }, now);
    let last = 4 * MAX_ADAPTERS - 1;
    assert_eq!(send(&mut fabric, tunnels[3], last), 1, "one has left");
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
fn gid_of_an_ended_tunnel_passes_to_the_one_that_has_it() {
    let (mut fabric, now) = fabric(&[]);
    let (asking, _) = attach(&mut fabric, 1, now);
    let old = fabric.connect_tunnel(now);
    let present = |number| Frame::Present {
        name: "far".to_owned(),
        gid: gid(2),
        incarnation: Incarnation(number),
    };
    fabric.receive_frame(old, present(7), now);
    // Its fabric is killed, and started again: the old tunnel ends after 4 s of silence only.
    let new = fabric.connect_tunnel(now);
    fabric.receive_frame(new, present(8), now);
    fabric.leave(old, now);
    fabric.receive(asking, Message::Resolve { gid: gid(2) }, now);
    match fabric.next(asking) {
        Some(Message::Peer { incarnation, .. }) => assert_ne!(incarnation, Incarnation::NONE),
        other => panic!("{other:?}"),
    }
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

#[test]
fn adapter_that_attaches_takes_its_gid_from_another_fabric() {
    let (mut fabric, now) = fabric(&[]);
    let (one, _) = attach(&mut fabric, 1, now);
    let tunnel = fabric.connect_tunnel(now);
    let thief = Frame::Present {
        name: "thief".to_owned(),
        gid: gid(1),
        incarnation: Incarnation(7),
    };
    fabric.receive_frame(tunnel, thief, now);
    fabric.leave(one, now);
    let again = hello(&mut fabric, 1, now);
    assert!(matches!(fabric.next(again), Some(Message::Welcome { .. })));
    let holders = &fabric.holders;
    assert!(holders.get(&gid(1)).is_some_and(|it| it.port == again));
    fabric.leave(again, now);
    let holders = &fabric.holders;
    assert!(holders.get(&gid(1)).is_some_and(|it| it.port == tunnel));
}
