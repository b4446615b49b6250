//! Two adapters, joined by a wire that delivers requests in any order.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;
use peerbar_fabric::{LinkStatistics, REQUEST_TIME_OUT, RequestError, SendError};
use proptest::prelude::*;

use super::super::wire::{Arrival, Mailbox, Token, Wire};
use super::fixture::{Adapter, Completion, PAYLOAD, Pair, Post, RAM};
use crate::objects::{Gid, QueuePairKind, QueuePairState, VerbsAccess};

pub(super) const A: Gid = Gid([0xa; 16]);
pub(super) const B: Gid = Gid([0xb; 16]);
pub(super) const TO: u64 = PAYLOAD + (1 << 20);

/// Requests and datagrams in transit.
#[derive(Default)]
pub(super) struct Air {
    pub(super) flying: Mutex<Vec<(Gid, Arrival)>>,
    /// Limit of the requests in transit, or `None` if unlimited.
    pub(super) limit: Mutex<Option<usize>>,
    /// `true` if memory may be shared.
    pub(super) shares: Mutex<bool>,
}

/// One adapter's end of the wire.
struct End {
    gid: Gid,
    air: Arc<Air>,
    mailbox: Arc<Mailbox>,
}

/// Ends a request without an answer when dropped, unless it was answered.
struct Unanswered(Option<(Arc<Mailbox>, Token)>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some((mailbox, token)) = self.0.take() {
            mailbox.answer(token, Err(RequestError::Refused));
        }
    }
}

impl Wire for End {
    fn datagram(&self, to: Gid, data: &[u8]) -> Result<(), SendError> {
        let arrival = Arrival {
            from: self.gid,
            data: data.to_vec(),
            descriptors: Vec::new(),
            reply: None,
        };
        self.air.flying.lock().push((to, arrival));
        Ok(())
    }

    fn shares_memory(&self, _: Gid) -> bool {
        *self.air.shares.lock()
    }

    fn statistics(&self) -> LinkStatistics {
        LinkStatistics::default()
    }

    fn request(
        &self,
        to: Gid,
        data: &[u8],
        descriptors: Vec<Arc<OwnedFd>>,
        token: Token,
    ) -> Result<(), SendError> {
        let mut flying = self.air.flying.lock();
        if self
            .air
            .limit
            .lock()
            .is_some_and(|limit| flying.len() >= limit)
        {
            return Err(SendError::Busy);
        }
        let mut unanswered = Unanswered(Some((self.mailbox.clone(), token)));
        let reply = move |answer| {
            if let Some((mailbox, token)) = unanswered.0.take() {
                mailbox.answer(token, Ok(answer));
            }
        };
        let arrival = Arrival {
            from: self.gid,
            data: data.to_vec(),
            descriptors: descriptors
                .iter()
                .map(|it| it.try_clone().unwrap())
                .collect(),
            reply: Some(Box::new(reply)),
        };
        flying.push((to, arrival));
        Ok(())
    }
}

/// Two adapters with a queue pair each, and address handles of each other.
pub(super) struct Two {
    pub(super) near: Adapter,
    pub(super) far: Adapter,
    pub(super) a: Pair,
    pub(super) b: Pair,
    /// The handle that leads from near to far.
    pub(super) handle: u16,
    pub(super) air: Arc<Air>,
    order: fastrand::Rng,
}

impl Two {
    fn new(kind: QueuePairKind, seed: u64) -> Self {
        let air = Arc::new(Air::default());
        let end = |adapter: &Adapter, gid| {
            let wire = End {
                gid,
                air: air.clone(),
                mailbox: adapter.path.mailbox.clone(),
            };
            assert!(adapter.path.wire.set(Arc::new(wire)).is_ok());
        };
        let (mut near, mut far) = (Adapter::at(A, Some(seed)), Adapter::at(B, Some(seed)));
        end(&near, A);
        end(&far, B);
        let (a, b) = (near.pair(kind), far.pair(kind));
        let handle = near.handle_to(B);
        far.handle_to(A);
        Self {
            near,
            far,
            a,
            b,
            handle,
            air,
            order: fastrand::Rng::with_seed(seed),
        }
    }

    pub(super) fn reliable() -> Self {
        Self::new(QueuePairKind::ReliableDatagram, 1)
    }

    /// Makes two adapters whose packets arrive in an order of this seed.
    pub(super) fn of_seed(seed: u64) -> Self {
        Self::new(QueuePairKind::ReliableDatagram, seed)
    }

    /// Makes two adapters that may share memory.
    pub(super) fn sharing() -> Self {
        let two = Self::reliable();
        *two.air.shares.lock() = true;
        two
    }

    /// Works until nothing is left to do and nothing is in transit. Time passes where work waits
    /// for it.
    pub(super) fn work(&mut self) {
        for _ in 0..20_000 {
            let waits = [self.near.work(), self.far.work()];
            if self.deliver() {
                continue;
            }
            if !self.is_idle() {
                continue;
            }
            let Some(wait) = waits.into_iter().flatten().min() else {
                return;
            };
            self.near.now += wait;
            self.far.now += wait;
        }
        panic!("the two do not come to an end");
    }

    /// Returns `true` if nothing waits for either of them.
    pub(super) fn is_idle(&self) -> bool {
        let mut both = [&self.near, &self.far].into_iter();
        both.all(|it| it.path.mailbox.is_empty())
    }

    /// Delivers one packet in transit, or refuses it if its destination does not exist. Returns
    /// `true` if there was one.
    pub(super) fn deliver(&mut self) -> bool {
        let mut flying = self.air.flying.lock();
        if flying.is_empty() {
            return false;
        }
        let index = self.order.usize(..flying.len());
        let (to, arrival) = flying.swap_remove(index);
        drop(flying);
        match to {
            A => self.near.path.mailbox.arrive(arrival),
            B => self.far.path.mailbox.arrive(arrival),
            _ => drop(arrival),
        }
        true
    }

    pub(super) fn send(&mut self, post: &Post) {
        self.near.send(&mut self.a, post);
    }

    /// Sends, works, and takes the one completion of the sender.
    pub(super) fn done(&mut self, post: &Post) -> Completion {
        self.send(post);
        self.work();
        self.near.one(&mut self.a)
    }

    pub(super) fn rdma(
        &self,
        operation: Operation,
        local: (u32, u64, u32),
        remote: (u32, u64, u32),
    ) -> Post {
        Post::rdma(operation, &self.b, self.handle, local, remote)
    }
}

#[test]
fn message_reaches_a_queue_pair_of_another_adapter() {
    for length in [0, 1, 8928] {
        let mut it = Two::reliable();
        let (from, to) = (it.near.region(PAYLOAD, 1 << 14), it.far.region(TO, 1 << 14));
        let data = it.near.fill(PAYLOAD, length as usize, 3);
        it.far.receive(&mut it.b, 5, &[(to.local, TO + 1, 9000)]);
        let post = Post {
            immediate: Some(7),
            ..Post::send(&it.b, it.handle, &[(from.local, PAYLOAD, length)])
        };
        assert_eq!(it.done(&post.with_id(4)).status, CompletionStatus::Ok);
        let received = it.far.one(&mut it.b);
        assert_eq!(
            (received.id, received.bytes, received.immediate),
            (5, length, Some(7))
        );
        assert_eq!(received.source, it.a.number);
        assert_eq!(it.far.bytes(TO + 1, length as usize), data);
    }
}

/// The worker takes the doorbells before the mail. Both the receive and the message arrive in
/// between.
#[test]
fn receive_posted_before_its_message_came_is_found() {
    let mut it = Two::reliable();
    it.near.set_rnr_retry(it.a.number, 0);
    let to = it.far.region(TO, 4096);
    it.send(&Post {
        inline: Some(vec![1]),
        ..Post::send(&it.b, it.handle, &[])
    });
    it.near.work();
    it.far.work();
    it.far.receive(&mut it.b, 5, &[(to.local, TO, 4096)]);
    assert!(it.deliver());
    it.far.take_mail();
    assert_eq!(it.far.one(&mut it.b).id, 5);
    it.work();
    assert_eq!(it.near.one(&mut it.a).status, CompletionStatus::Ok);
}

#[test]
fn message_waits_for_a_receive_of_another_adapter() {
    let mut it = Two::reliable();
    it.near.set_rnr_retry(it.a.number, 2);
    let post = Post {
        inline: Some(vec![1]),
        ..Post::send(&it.b, it.handle, &[])
    };
    assert_eq!(it.done(&post).status, CompletionStatus::RemoteNotReady);
    assert_eq!(it.far.path.statistics().dropped, 0, "its sender knows");
    let to = it.far.region(TO, 4096);
    it.near.set_rnr_retry(it.a.number, 7);
    it.send(&post);
    for _ in 0..5 {
        it.near.work();
        while it.deliver() {}
        it.far.work();
        let wait = it.near.work().unwrap();
        it.near.now += wait;
    }
    it.far.receive(&mut it.b, 1, &[(to.local, TO, 1)]);
    it.work();
    assert_eq!(it.near.one(&mut it.a).status, CompletionStatus::Ok);
    assert_eq!(it.far.one(&mut it.b).status, CompletionStatus::Ok);
}

#[test]
fn each_failure_of_the_other_side_has_its_status() {
    failures_have_their_statuses(Two::reliable(), 64);
}

#[test]
fn failures_have_the_same_status_where_payload_goes_through_slots() {
    failures_have_their_statuses(Two::sharing(), 3 * 4096);
}

fn failures_have_their_statuses(mut it: Two, length: u32) {
    use CompletionStatus as S;
    const REGION: u64 = 4 * 4096;

    let from = it.near.region(PAYLOAD, REGION);
    let to = it.far.region(TO, REGION);
    let none = it
        .far
        .region_with(TO + REGION, REGION, VerbsAccess::default());
    let gone = it.far.region(RAM, REGION);
    let local = (from.local, PAYLOAD, length);
    let good = it.rdma(Operation::RdmaWrite, local, (to.remote, TO, length));
    let nowhere = it.near.handle_to(Gid([9; 16]));
    let with = |remote| Post {
        remote,
        ..good.clone()
    };
    let read = |remote| Post {
        operation: Operation::RdmaRead,
        ..with(remote)
    };
    let cases = [
        (good.clone(), S::Ok),
        (read((to.remote, TO, length)), S::Ok),
        (with((to.remote ^ 1, TO, length)), S::RemoteBadAddress),
        (
            with((to.remote, TO + REGION - 6, length)),
            S::RemoteBadAddress,
        ),
        (
            with((none.remote, TO + REGION, length)),
            S::RemoteBadAddress,
        ),
        (
            read((none.remote, TO + REGION, length)),
            S::RemoteBadAddress,
        ),
        (with((gone.remote, RAM, length)), S::RemoteBadAddress),
        (read((gone.remote, RAM, length)), S::RemoteBadAddress),
        (
            Post {
                to: it.b.number ^ 0x100,
                ..good.clone()
            },
            S::RemoteBadQueuePair,
        ),
        (
            Post {
                qkey: 0,
                ..good.clone()
            },
            S::RemoteBadQueuePair,
        ),
        (
            Post {
                handle: nowhere,
                ..good.clone()
            },
            S::RemoteAbort,
        ),
        (
            Post {
                local: vec![(from.local, PAYLOAD - 1, length)],
                ..good.clone()
            },
            S::LocalInvalidKey,
        ),
        (good.clone(), S::Ok),
    ];
    for (post, status) in cases {
        assert_eq!(it.done(&post).status, status, "{post:?}");
    }
    assert_eq!(it.far.poll(&mut it.b.queue), []);
    it.far.set_state(it.b.number, QueuePairState::Error);
    assert_eq!(it.done(&good).status, S::RemoteBadQueuePair);
}

#[test]
fn requester_without_address_handle_there_is_refused() {
    let mut it = Two::reliable();
    it.far.domain = it.far.path.objects().create_protection_domain().unwrap();
    let b = it.far.reliable();
    let (from, to) = (it.near.region(PAYLOAD, 4096), it.far.region(TO, 4096));
    let (local, remote) = ((from.local, PAYLOAD, 64), (to.remote, TO, 64));
    let post = Post::rdma(Operation::RdmaWrite, &b, it.handle, local, remote);
    assert_eq!(it.done(&post).status, CompletionStatus::RemoteUnknownPeer);
    assert_eq!(it.far.bytes(TO, 64), [0; 64]);
}

#[test]
fn failed_transfer_completes_once_all_its_parts_are_answered() {
    let mut it = Two::reliable();
    let (from, to) = (it.near.region(PAYLOAD, 1 << 20), it.far.region(TO, 1 << 20));
    let (local, remote) = ((from.local, PAYLOAD, 1 << 20), (to.remote, TO, 1 << 20));
    let post = it.rdma(Operation::RdmaWrite, local, remote);
    it.near.fill(PAYLOAD, 1 << 20, 1);
    it.send(&post);
    it.near.work();
    assert_eq!(it.air.flying.lock().len(), 1, "the first part goes before");
    assert!(it.deliver());
    it.far.work();
    it.near.work();
    assert_eq!(it.air.flying.lock().len(), 8);
    it.far.path.objects().deregister_region(to.local).unwrap();
    for left in (0..8).rev() {
        assert!(it.deliver());
        it.far.work();
        it.near.work();
        assert_eq!(
            it.air.flying.lock().len(),
            left,
            "no part is sent after a failure"
        );
        let completions = it.near.poll(&mut it.a.queue);
        assert_eq!(completions.len(), usize::from(left == 0));
    }
    let (first, rest) = (31 << 10, (1 << 20) - (31 << 10));
    assert!(it.far.bytes(TO + first, rest) == vec![0; rest]);
}

#[test]
fn transfer_that_does_not_fit_there_moves_nothing() {
    for operation in [Operation::RdmaWrite, Operation::RdmaRead] {
        let mut it = Two::reliable();
        let (near, far) = (
            it.near.region(PAYLOAD, 1 << 20),
            it.far.region(TO, (1 << 20) - 1),
        );
        it.near.fill(PAYLOAD, 1 << 20, 1);
        it.far.fill(TO, 1 << 20, 2);
        let before = (it.near.bytes(PAYLOAD, 1 << 20), it.far.bytes(TO, 1 << 20));
        let (local, remote) = ((near.local, PAYLOAD, 1 << 20), (far.remote, TO, 1 << 20));
        let post = it.rdma(operation, local, remote);
        assert_eq!(it.done(&post).status, CompletionStatus::RemoteBadAddress);
        let after = (it.near.bytes(PAYLOAD, 1 << 20), it.far.bytes(TO, 1 << 20));
        assert!(after == before, "{operation:?}");
    }
}

#[test]
fn read_into_a_region_that_was_freed_meanwhile_writes_nothing() {
    let mut it = Two::reliable();
    let (to, from) = (it.near.region(PAYLOAD, 4096), it.far.region(TO, 4096));
    it.far.fill(TO, 64, 5);
    let (local, remote) = ((to.local, PAYLOAD, 64), (from.remote, TO, 64));
    let post = it.rdma(Operation::RdmaRead, local, remote);
    it.send(&post);
    it.near.work();
    assert!(it.deliver());
    it.far.work();
    it.near.path.objects().deregister_region(to.local).unwrap();
    it.work();
    assert_eq!(
        it.near.one(&mut it.a).status,
        CompletionStatus::LocalInvalidKey
    );
    assert_eq!(it.near.bytes(PAYLOAD, 64), [0; 64]);
}

#[test]
fn answer_for_a_pair_that_is_gone_is_ignored() {
    let mut it = Two::reliable();
    let (to, from) = (it.near.region(PAYLOAD, 4096), it.far.region(TO, 4096));
    it.far.fill(TO, 64, 5);
    let (local, remote) = ((to.local, PAYLOAD, 64), (from.remote, TO, 64));
    let post = it.rdma(Operation::RdmaRead, local, remote);
    it.send(&post);
    it.near.work();
    it.near.set_state(it.a.number, QueuePairState::Reset);
    it.work();
    assert_eq!(it.near.poll(&mut it.a.queue), []);
    assert_eq!(it.near.bytes(PAYLOAD, 64), [0; 64]);
    assert!(it.near.worker.peers.in_flight.is_empty());
}

#[test]
fn packets_that_make_no_sense_are_refused_and_change_nothing() {
    let mut it = Two::reliable();
    let answered = Arc::new(Mutex::new(0));
    for data in [vec![], vec![0; 39], vec![9; 40], vec![1; 200]] {
        for wants_answer in [false, true] {
            let count = answered.clone();
            let reply: Box<dyn FnOnce(Vec<u8>) + Send> = Box::new(move |_| *count.lock() += 1);
            it.far.path.mailbox.arrive(Arrival {
                from: A,
                data: data.clone(),
                descriptors: Vec::new(),
                reply: wants_answer.then_some(reply),
            });
        }
    }
    it.work();
    assert_eq!(*answered.lock(), 0);
    assert_eq!(it.far.poll(&mut it.b.queue), []);
}

#[test]
fn datagram_is_no_way_to_memory() {
    let mut it = Two::new(QueuePairKind::Datagram, 1);
    let to = it.far.region(TO, 4096);
    let mut flying = Two::reliable();
    let post = flying.rdma(Operation::RdmaWrite, (0, 0, 0), (to.remote, TO, 0));
    flying.send(&post);
    flying.near.work();
    let (_, arrival) = flying.air.flying.lock().pop().unwrap();
    it.far.path.mailbox.arrive(Arrival {
        reply: None,
        from: A,
        data: arrival.data.clone(),
        descriptors: Vec::new(),
    });
    it.work();
    assert_eq!(it.far.path.statistics().received_packets, 0);
}

#[test]
fn datagrams_reach_another_adapter_or_are_lost() {
    let mut it = Two::new(QueuePairKind::Datagram, 1);
    let (from, to) = (it.near.region(PAYLOAD, 4096), it.far.region(TO, 4096));
    let data = it.near.fill(PAYLOAD, 100, 1);
    let post = Post::send(&it.b, it.handle, &[(from.local, PAYLOAD, 100)]);
    assert_eq!(
        it.done(&post).status,
        CompletionStatus::Ok,
        "there is no receive"
    );
    it.far.receive(&mut it.b, 1, &[(to.local, TO, 200)]);
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
    assert_eq!(it.far.one(&mut it.b).bytes, 140);
    let header = it.far.bytes(TO, 40);
    assert_eq!((&header[8..24], &header[24..]), (&A.0[..], &B.0[..]));
    assert_eq!(it.far.bytes(TO + 40, 100), data);
}

#[test]
fn without_a_wire_another_adapter_is_unreachable() {
    let mut adapter = Adapter::new();
    let mut a = adapter.reliable();
    let handle = adapter.handle_to(B);
    let post = Post {
        inline: Some(vec![1]),
        ..Post::send(&a, handle, &[])
    };
    adapter.send(&mut a, &post);
    assert_eq!(adapter.work(), None);
    assert_eq!(
        adapter.one(&mut a).status,
        CompletionStatus::LocalUnreachableRemote
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Several transfers at once, with their packets in any order: each byte is where it belongs,
    /// and nothing else has changed.
    #[test]
    fn transfers_between_adapters_move_their_bytes_once(
        lengths in proptest::collection::vec(0u32..200_000, 1..5),
        is_read in any::<[bool; 5]>(),
        immediate in any::<[bool; 5]>(),
        limit in proptest::option::of(1usize..12),
        seed in any::<u64>(),
    ) {
        const ROOM: u64 = 1 << 18;

        let mut it = Two::new(QueuePairKind::ReliableDatagram, seed);
        *it.air.limit.lock() = limit;
        let near = it.near.region(PAYLOAD, 8 << 20);
        let far = it.far.region(PAYLOAD, 8 << 20);
        let mut wanted = Vec::new();
        for (index, length) in lengths.iter().enumerate() {
            let at = PAYLOAD + index as u64 * 2 * ROOM;
            let (from, to) = (at + 3, at + ROOM + 5);
            let bytes = *length as usize;
            let salt = index.to_le_bytes()[0];
            let is_read = is_read[index];
            let source = if is_read { &it.far } else { &it.near };
            wanted.push((is_read, to, source.fill(from, bytes, salt)));
            let (local, remote) = if is_read {
                ((near.local, to, *length), (far.remote, from, *length))
            } else {
                ((near.local, from, *length), (far.remote, to, *length))
            };
            let operation = if is_read { Operation::RdmaRead } else { Operation::RdmaWrite };
            let post = Post {
                immediate: (immediate[index] && !is_read).then_some(9),
                ..it.rdma(operation, local, remote)
            };
            it.far.receive(&mut it.b, 1, &[(far.local, PAYLOAD, 0)]);
            it.send(&post.with_id(salt.into()));
        }
        it.work();
        let done = it.near.statuses(&mut it.a);
        prop_assert_eq!(done.len(), lengths.len());
        prop_assert!(done.iter().all(|(_, status)| *status == CompletionStatus::Ok), "{:?}", done);
        for (is_read, to, data) in wanted {
            let at = if is_read { &it.near } else { &it.far };
            prop_assert!(at.bytes(to, data.len()) == data);
            prop_assert_eq!(at.bytes(to - 1, 1), [0]);
            prop_assert_eq!(at.bytes(to + data.len() as u64, 1), [0]);
        }
        let announced = it.far.poll(&mut it.b.queue).len();
        let immediates = (0..lengths.len()).filter(|at| immediate[*at] && !is_read[*at]);
        prop_assert_eq!(announced, immediates.count());
    }
}

#[test]
fn datagrams_that_wait_refuse_no_reliable_message() {
    let mut it = Two::reliable();
    let (from, to) = (it.near.region(PAYLOAD, 4096), it.far.region(TO, 4096));
    it.far.receive(&mut it.b, 1, &[(to.local, TO, 100)]);
    for _ in 0..1024 {
        // From any third adapter, to a queue pair that may not even exist.
        it.far.path.mailbox.arrive(Arrival {
            from: Gid([0xc; 16]),
            data: vec![0; 40],
            descriptors: Vec::new(),
            reply: None,
        });
    }
    let post = Post::send(&it.b, it.handle, &[(from.local, PAYLOAD, 100)]);
    it.send(&post);
    it.near.work();
    assert!(it.deliver());
    it.work();
    assert_eq!(it.near.one(&mut it.a).status, CompletionStatus::Ok);
}

#[test]
fn announcement_of_an_unknown_adapter_is_refused() {
    use crate::work::packet::{Packet, Verb, decode_answer};
    use crate::work::request::Buffer;
    let mut it = Two::reliable();
    let to = it.far.region(TO, 4096);
    it.far.receive(&mut it.b, 1, &[(to.local, TO, 100)]);
    let packet = Packet {
        verb: Verb::Announce,
        source: 77,
        destination: it.b.number,
        qkey: super::fixture::QKEY,
        immediate: Some(5),
        is_staged: false,
        part: Buffer {
            key: 0,
            address: 0,
            bytes: 0,
        },
        total: 1 << 20,
    };
    let status = Arc::new(Mutex::new(None));
    let to_status = status.clone();
    it.far.path.mailbox.arrive(Arrival {
        from: Gid([0xc; 16]),
        data: packet.encode(&[]),
        descriptors: Vec::new(),
        reply: Some(Box::new(move |answer| {
            *to_status.lock() = decode_answer(&answer).err();
        })),
    });
    it.far.work();
    let seen = it.far.poll(&mut it.b.queue);
    assert_eq!(
        (*status.lock(), seen.len()),
        (Some(CompletionStatus::RemoteUnknownPeer.into()), 0),
        "{seen:?}"
    );
}

#[test]
fn payload_of_a_busy_wire_is_read_once() {
    use peerbar_dma::Direction;
    use peerbar_dma::Purpose;
    let mut it = Two::reliable();
    let from = it.near.region(PAYLOAD, 4096);
    let to = it.far.region(TO, 4096);
    it.far.receive(&mut it.b, 1, &[(to.local, TO, 100)]);
    *it.air.limit.lock() = Some(0);
    let post = Post::send(&it.b, it.handle, &[(from.local, PAYLOAD, 100)]);
    it.send(&post);
    for _ in 0..50 {
        let wait = it.near.work().unwrap();
        it.near.now += wait;
    }
    *it.air.limit.lock() = None;
    it.work();
    assert_eq!(it.near.one(&mut it.a).status, CompletionStatus::Ok);
    let counts = it.near.requester.ledger().counters().snapshot();
    let bytes: u64 = counts
        .iter()
        .filter(|(kind, _)| kind.purpose == Purpose::Payload && kind.direction == Direction::Read)
        .map(|(_, count)| count.bytes)
        .sum();
    assert_eq!(bytes, 100, "of a message of 100 bytes");
}

#[test]
fn peer_that_takes_no_request_is_given_up_in_time() {
    let mut it = Two::reliable();
    let from = it.near.region(PAYLOAD, 4096);
    *it.air.limit.lock() = Some(0);
    let post = Post::send(&it.b, it.handle, &[(from.local, PAYLOAD, 100)]);
    it.send(&post);
    let start = it.near.now;
    while let Some(wait) = it.near.work() {
        it.near.now += wait;
        assert!(it.near.now <= start + 3 * REQUEST_TIME_OUT, "it waits on");
    }
    let completion = it.near.one(&mut it.a);
    assert_eq!(completion.status, CompletionStatus::LocalUnresponsiveRemote);
}

#[test]
fn transfer_goes_on_to_the_adapter_where_it_began() {
    let mut it = Two::reliable();
    let from = it.near.region(PAYLOAD, 1 << 20);
    let to = it.far.region(TO, 1 << 20);
    *it.air.limit.lock() = Some(2);
    let post = it.rdma(
        Operation::RdmaWrite,
        (from.local, PAYLOAD, 1 << 19),
        (to.remote, TO, 1 << 19),
    );
    it.send(&post);
    it.near.work();
    // The handle is destroyed, and its number is reused for another adapter.
    let (domain, handle) = (it.near.domain, it.handle);
    it.near
        .path
        .objects()
        .destroy_address_handle(handle, domain)
        .unwrap();
    loop {
        let next = it.near.handle_to(Gid([0xc; 16]));
        if next == handle {
            break;
        }
        it.near
            .path
            .objects()
            .destroy_address_handle(next, domain)
            .unwrap();
    }
    let mut elsewhere = 0;
    for _ in 0..200 {
        let next: Vec<Gid> = it.air.flying.lock().iter().map(|(to, _)| *to).collect();
        elsewhere += next.iter().filter(|to| **to == Gid([0xc; 16])).count();
        if !it.deliver() {
            break;
        }
        it.far.work();
        let wait = it.near.work();
        it.near.now += wait.unwrap_or_default();
    }
    assert_eq!(
        elsewhere, 0,
        "packets with the payload went to another adapter"
    );
}
