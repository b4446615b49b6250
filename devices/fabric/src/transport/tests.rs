use super::*;
use crate::limits::{KEPT_SHARE, MAX_DATA, MAX_DESCRIPTORS, MAX_KEPT, MAX_REQUESTS, PEER_TIME_OUT};

const PEER: Gid = Gid([2; 16]);
const FIRST: Incarnation = Incarnation(1);

fn request(bytes: usize, descriptors: usize) -> RequestData {
    let null = || Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
    RequestData {
        data: ByteBuf::from(vec![7; bytes]),
        descriptors: (0..descriptors).map(|_| null()).collect(),
    }
}

fn peer(incarnation: Incarnation, takes_descriptors: bool) -> Message {
    Message::Peer {
        gid: PEER,
        incarnation,
        takes_descriptors,
    }
}

fn from_peer(body: Body) -> Message {
    Message::Packet {
        peer: PEER,
        incarnation: FIRST,
        body,
    }
}

fn asks(transport: &mut Transport<u32>) -> bool {
    let outputs = transport.take_outputs();
    matches!(&outputs[..], [Output::Send(Message::Resolve { gid: PEER })])
}

fn sent_tags(outputs: &[Output<u32>]) -> Vec<u64> {
    let tag = |output: &Output<u32>| match output {
        Output::Send(packet) | Output::SendByFabric(packet) => match packet {
            Message::Packet {
                incarnation: FIRST,
                body: Body::Request { tag, .. },
                ..
            } => Some(*tag),
            _ => None,
        },
        _ => None,
    };
    outputs.iter().filter_map(tag).collect()
}

#[test]
fn only_a_request_makes_a_peer_known() {
    let (mut transport, now) = (Transport::<u32>::new(), Instant::now());
    let others = [
        Body::Settled { oldest: 0 },
        Body::Working { tag: 0 },
        Body::Response { tag: 0, data: None },
    ];
    for body in others {
        assert!(transport.receive(from_peer(body), now));
        assert!(transport.peers.is_empty());
    }
    let body = Body::Request {
        tag: 0,
        oldest: 0,
        data: ByteBuf::new(),
        descriptors: Vec::new(),
    };
    assert!(transport.receive(from_peer(body), now));
    assert_eq!(transport.peers.len(), 1);
}

#[test]
fn request_waits_until_its_peer_is_known() {
    let (mut transport, now) = (Transport::new(), Instant::now());
    transport.request(PEER, request(1, 0), 1, now).unwrap();
    assert!(asks(&mut transport));
    assert!(transport.receive(peer(FIRST, true), now));
    assert_eq!(sent_tags(&transport.take_outputs()), [0]);
}

#[test]
fn lost_question_for_the_peer_is_repeated() {
    let (mut transport, now) = (Transport::new(), Instant::now());
    transport.request(PEER, request(1, 0), 1, now).unwrap();
    assert!(asks(&mut transport));
    let next = transport.deadline().unwrap();
    transport.expire(next);
    assert!(asks(&mut transport));
}

#[test]
fn descriptors_to_an_adapter_that_takes_none_are_refused() {
    let (mut transport, now) = (Transport::new(), Instant::now());
    transport
        .request(PEER, request(1, MAX_DESCRIPTORS), 1, now)
        .unwrap();
    transport.request(PEER, request(1, 0), 2, now).unwrap();
    transport.take_outputs();
    assert!(transport.receive(peer(FIRST, false), now));
    let outputs = transport.take_outputs();
    assert_eq!(sent_tags(&outputs), [1]);
    let refused = outputs.iter().any(|output| {
        matches!(
            output,
            Output::Complete(1, Err(RequestError::NoDescriptors))
        )
    });
    assert!(refused, "{outputs:?}");
}

#[test]
fn what_may_have_been_lost_goes_through_the_fabric() {
    let (mut transport, now) = (Transport::<u32>::new(), Instant::now());
    transport.request(PEER, request(1, 0), 1, now).unwrap();
    transport.take_outputs();
    transport.receive(peer(FIRST, true), now);
    let outputs = transport.take_outputs();
    assert!(matches!(outputs[1], Output::Send(Message::Packet { .. })));
    let next = transport.deadline().unwrap();
    transport.expire(next);
    let outputs = transport.take_outputs();
    assert!(
        matches!(outputs[..], [Output::SendByFabric(_)]),
        "{outputs:?}"
    );
    let asked = || {
        from_peer(Body::Request {
            tag: 0,
            oldest: 0,
            data: ByteBuf::new(),
            descriptors: Vec::new(),
        })
    };
    transport.receive(asked(), now);
    transport.take_outputs();
    transport.receive(asked(), now);
    let outputs = transport.take_outputs();
    assert!(
        matches!(outputs[..], [Output::SendByFabric(_)]),
        "{outputs:?}"
    );
}

#[test]
fn too_much_data_or_too_many_requests_are_refused() {
    let (mut transport, now) = (Transport::new(), Instant::now());
    for wrong in [request(MAX_DATA + 1, 0), request(0, MAX_DESCRIPTORS + 1)] {
        let (_, error) = transport.request(PEER, wrong, 0, now).unwrap_err();
        assert_eq!(error, SendError::TooLong);
    }
    for number in 0..u32::try_from(MAX_REQUESTS).unwrap() {
        transport.request(PEER, request(0, 0), number, now).unwrap();
    }
    let (_, error) = transport.request(PEER, request(0, 0), 99, now).unwrap_err();
    assert_eq!(error, SendError::Busy);
    transport.receive(peer(FIRST, true), now);
    // There is room once the oldest is done.
    let response = |tag| from_peer(Body::Response { tag, data: None });
    transport.receive(response(1), now);
    assert!(transport.request(PEER, request(0, 0), 99, now).is_err());
    transport.receive(response(0), now);
    transport.request(PEER, request(0, 0), 99, now).unwrap();
}

#[test]
fn answer_to_no_request_does_nothing() {
    let (mut transport, now) = (Transport::<u32>::new(), Instant::now());
    let request = |tag, oldest| {
        from_peer(Body::Request {
            tag,
            oldest,
            data: ByteBuf::new(),
            descriptors: Vec::new(),
        })
    };
    assert!(transport.receive(request(0, 0), now));
    assert_eq!(transport.take_outputs().len(), 1);
    let bodies = [
        Body::Response { tag: 0, data: None },
        Body::Working { tag: 7 },
        Body::Settled { oldest: u64::MAX },
    ];
    for body in bodies {
        assert!(transport.receive(from_peer(body), now));
    }
    // Settled tags, and then tags before and far beyond those that it may use.
    assert!(transport.receive(request(5, 5), now));
    assert!(transport.take_outputs().is_empty());
}

#[test]
fn message_of_an_adapter_ends_the_link() {
    let (mut transport, now) = (Transport::<u32>::new(), Instant::now());
    assert!(!transport.receive(Message::Resolve { gid: PEER }, now));
    let incarnation = FIRST;
    assert!(!transport.receive(Message::Welcome { incarnation }, now));
}

#[test]
fn peers_beyond_the_limit_wait_until_others_leave() {
    let (mut transport, now) = (Transport::<usize>::new(), Instant::now());
    let gid = |number: usize| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        Gid(bytes)
    };
    for number in 0..MAX_PEERS {
        transport
            .request(gid(number), request(0, 0), number, now)
            .unwrap();
    }
    let mut refused = || transport.request(gid(MAX_PEERS), request(0, 0), 0, now);
    assert!(matches!(refused(), Err((0, SendError::Busy))));
    let gone = Message::Peer {
        gid: gid(3),
        incarnation: Incarnation::NONE,
        takes_descriptors: true,
    };
    transport.receive(gone, now);
    transport
        .request(gid(MAX_PEERS), request(0, 0), 0, now)
        .unwrap();
}

#[test]
fn entries_of_peers_that_left_are_free_soon_when_all_are_taken() {
    let (mut transport, now) = (Transport::<u32>::new(), Instant::now());
    let gid = |number: usize| Gid((number as u128).to_le_bytes());
    let asks = |number: usize| Message::Packet {
        peer: gid(number),
        incarnation: FIRST,
        body: Body::Request {
            tag: 0,
            oldest: 0,
            data: ByteBuf::from([1; 8]),
            descriptors: Vec::new(),
        },
    };
    let resolves = |outputs: &[Output<u32>]| {
        let is_one =
            |output: &&Output<u32>| matches!(output, Output::Send(Message::Resolve { .. }));
        outputs.iter().filter(is_one).count()
    };
    let soon = now + Duration::from_millis(50);
    for number in 1..MAX_PEERS {
        transport.receive(asks(number), now);
    }
    transport.take_outputs();
    transport.expire(soon);
    assert_eq!(resolves(&transport.take_outputs()), 0, "there is room");
    transport.receive(asks(MAX_PEERS), now);
    transport.receive(asks(MAX_PEERS + 1), now);
    let begun = transport.take_outputs();
    assert_eq!(begun.len(), 1, "no entry is left for the last one");
    assert!(
        transport
            .deadline()
            .is_some_and(|deadline| deadline <= soon)
    );
    transport.expire(soon);
    assert_eq!(resolves(&transport.take_outputs()), MAX_PEERS);
    let gone = Message::Peer {
        gid: gid(7),
        incarnation: Incarnation::NONE,
        takes_descriptors: true,
    };
    transport.receive(gone, soon);
    transport.take_outputs();
    transport.receive(asks(MAX_PEERS + 1), soon);
    let outputs = transport.take_outputs();
    assert!(outputs.iter().any(|it| matches!(it, Output::Request(..))));
}

#[test]
fn peer_that_settles_early_gets_no_more_under_way() {
    let (mut transport, now) = (Transport::<u32>::new(), Instant::now());
    for tag in 0..10 * MAX_REQUESTS as u64 {
        let hostile = Body::Request {
            tag,
            oldest: tag,
            data: ByteBuf::from([1; 8]),
            descriptors: Vec::new(),
        };
        transport.receive(from_peer(hostile), now);
    }
    let outputs = transport.take_outputs();
    let begun = outputs
        .iter()
        .filter(|it| matches!(it, Output::Request(..)));
    assert!(
        begun.count() <= MAX_REQUESTS,
        "none of them is answered yet"
    );
}

/// Makes everything that is due until `until` be sent. Returns the outputs.
fn pass(transport: &mut Transport<u32>, now: &mut Instant, until: Instant) -> Vec<Output<u32>> {
    let mut outputs = Vec::new();
    while let Some(next) = transport.deadline().filter(|next| *next <= until) {
        *now = next;
        transport.expire(next);
        outputs.extend(transport.take_outputs());
    }
    outputs
}

#[test]
fn what_is_sent_again_is_counted_until_an_answer_comes() {
    let (mut transport, mut now) = (Transport::new(), Instant::now());
    let start = now;
    transport.request(PEER, request(100, 0), 1, now).unwrap();
    transport.request(PEER, request(20, 0), 2, now).unwrap();
    transport.receive(peer(FIRST, true), now);
    assert_eq!(sent_tags(&transport.take_outputs()), [0, 1]);
    assert_eq!(transport.statistics(), LinkStatistics::default());
    let outputs = pass(&mut transport, &mut now, start + Duration::from_millis(100));
    assert_eq!(sent_tags(&outputs), [0, 1]);
    let once = LinkStatistics {
        sent_again: 2,
        bytes_sent_again: 120,
        time_outs: 1,
        impaired_peers: 0,
    };
    assert_eq!(transport.statistics(), once);
    let answer = |tag| from_peer(Body::Response { tag, data: None });
    transport.receive(answer(0), now);
    let outputs = pass(&mut transport, &mut now, start + Duration::from_secs(2));
    let again = sent_tags(&outputs).len() as u64;
    let silent = transport.statistics();
    assert_eq!(
        (silent.sent_again, silent.time_outs),
        (2 + again, 1 + again)
    );
    assert_eq!(silent.bytes_sent_again, 120 + 20 * again);
    assert_eq!(silent.impaired_peers, 1, "once for each silence");
    transport.receive(answer(1), now);
    let later = now + Duration::from_secs(2);
    let outputs = pass(&mut transport, &mut now, later);
    assert!(sent_tags(&outputs).is_empty());
    assert_eq!(transport.statistics(), silent);
}

#[test]
fn request_to_a_silent_adapter_ends_in_time() {
    let (mut transport, mut now) = (Transport::new(), Instant::now());
    let end = now + PEER_TIME_OUT;
    transport.request(PEER, request(1, 0), 1, now).unwrap();
    transport.receive(peer(FIRST, true), now);
    let is_over = |output: &Output<u32>| matches!(output, Output::Complete(..));
    let outputs = pass(&mut transport, &mut now, end - Duration::from_nanos(1));
    assert!(!outputs.iter().any(is_over), "{outputs:?}");
    let outputs = pass(&mut transport, &mut now, end);
    let timed_out =
        |output: &Output<u32>| matches!(output, Output::Complete(1, Err(RequestError::TimedOut)));
    assert!(outputs.iter().any(timed_out), "{outputs:?}");
    assert_eq!(now, end);
}

#[test]
fn response_that_is_sent_again_is_counted() {
    let (mut transport, now) = (Transport::<u32>::new(), Instant::now());
    let from_far = || {
        from_peer(Body::Request {
            tag: 0,
            oldest: 0,
            data: ByteBuf::new(),
            descriptors: Vec::new(),
        })
    };
    transport.receive(from_far(), now);
    transport.receive(from_far(), now);
    assert_eq!(
        transport.statistics().sent_again,
        0,
        "it is being worked on"
    );
    let id = RequestId {
        from: PEER,
        incarnation: FIRST,
        tag: 0,
    };
    transport.respond(id, Some(ByteBuf::from(vec![1; 30])));
    assert_eq!(transport.statistics().sent_again, 0);
    transport.receive(from_far(), now);
    let counted = transport.statistics();
    assert_eq!((counted.sent_again, counted.bytes_sent_again), (1, 30));
    assert_eq!((counted.time_outs, counted.impaired_peers), (0, 0));
}

/// A request of a peer, which settles nothing.
fn request_of(peer: Gid, tag: u64) -> Message {
    Message::Packet {
        peer,
        incarnation: FIRST,
        body: Body::Request {
            tag,
            oldest: 0,
            data: ByteBuf::new(),
            descriptors: Vec::new(),
        },
    }
}

/// Makes a peer ask as often as it may, and answers everything with as much data as possible.
/// Returns the number of answers.
fn served(transport: &mut Transport<u32>, peer: Gid, now: Instant) -> usize {
    let mut count = 0;
    for tag in 0..MAX_REQUESTS as u64 {
        transport.receive(request_of(peer, tag), now);
        for output in transport.take_outputs() {
            if let Output::Request(id, _) = output {
                transport.respond(id, Some(ByteBuf::from(vec![0; MAX_DATA])));
                count += 1;
            }
        }
    }
    count
}

#[test]
fn peers_that_settle_nothing_fill_a_limited_memory() {
    let (mut transport, now) = (Transport::<u32>::new(), Instant::now());
    let gid = |number: u8| Gid([number; 16]);
    let whole = u8::try_from(MAX_KEPT / (MAX_REQUESTS * MAX_DATA)).unwrap();
    for peer in 0..whole {
        assert_eq!(served(&mut transport, gid(peer), now), MAX_REQUESTS);
    }
    let share = KEPT_SHARE / MAX_DATA;
    for peer in whole..100 {
        assert_eq!(served(&mut transport, gid(peer), now), share, "its share");
    }
    // Peers that settle their requests make room.
    for peer in 0..whole {
        let settled = Message::Packet {
            peer: gid(peer),
            incarnation: FIRST,
            body: Body::Settled { oldest: 64 },
        };
        transport.receive(settled, now);
    }
    assert_eq!(served(&mut transport, gid(100), now), MAX_REQUESTS);
}
