//! Adapters with the real transport, at the real fabric, with the test's clock. For any
//! impairments, and any adapters that leave, stop or come back, no request is executed twice, and
//! each ends with its own response or with an error, in time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use proptest::prelude::*;
use serde_bytes::ByteBuf;

use crate::fabric::{PacketFabric, PortId};
use crate::gid::Gid;
use crate::impairments::Impairments;
use crate::limits::{PROTOCOL, REQUEST_TIME_OUT};
use crate::link::direct::{PeerConnections, Received};
use crate::message::{Incarnation, Message};
use crate::record::Record;
use crate::request::{RequestData, RequestError, RequestId};
use crate::transport::{Output, Transport};

const ADAPTERS: u8 = 3;

/// A request of the test: its number, and the number of times that it was executed.
#[derive(Debug)]
struct Asked {
    at: Instant,
    carried_out: usize,
    outcome: Option<Result<Vec<u8>, RequestError>>,
}

#[derive(Debug)]
struct Adapter {
    port: PortId,
    transport: Transport<usize>,
    direct: PeerConnections,
    /// The adapter neither reads nor lets time pass.
    is_stopped: bool,
    /// Requests of peers that it has not answered.
    working: Vec<(RequestId, Vec<u8>)>,
}

struct World {
    fabric: PacketFabric,
    impairments: Arc<Mutex<Impairments>>,
    /// Packets that bypassed the fabric.
    direct_packets: usize,
    adapters: BTreeMap<u8, Adapter>,
    asked: Vec<Asked>,
    now: Instant,
}

#[derive(Clone, Debug)]
enum Step {
    Request {
        from: u8,
        to: u8,
    },
    Respond {
        at: u8,
    },
    Refuse {
        at: u8,
    },
    Stop {
        at: u8,
    },
    Continue {
        at: u8,
    },
    Leave {
        at: u8,
    },
    Attach {
        at: u8,
    },
    Pass {
        milliseconds: u64,
    },
    /// A rule for the packets between two, or the removal of all rules.
    Rule {
        from: u8,
        to: u8,
    },
    Clear,
}

fn gid(adapter: u8) -> Gid {
    Gid([adapter; 16])
}

fn response(number: &[u8]) -> Vec<u8> {
    number.iter().map(|byte| byte ^ 0x5a).collect()
}

impl World {
    fn new(seed: u64, rules: &[&str]) -> Self {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let impairments = Arc::new(Mutex::new(Impairments::new(seed, rules)));
        let mut world = Self {
            fabric: PacketFabric::new(impairments.clone(), Record::default(), Incarnation, 100),
            impairments,
            direct_packets: 0,
            adapters: BTreeMap::new(),
            asked: Vec::new(),
            now: Instant::now(),
        };
        (0..ADAPTERS).for_each(|adapter| world.attach(adapter));
        world
    }

    /// Returns a world after all these steps, in which every request has ended. Checks it after
    /// each step.
    fn after(seed: u64, rules: &[&str], steps: &[Step]) -> Self {
        let mut world = Self::new(seed, rules);
        for step in steps {
            world.act(step);
            world.check();
        }
        world.finish();
        world.check();
        world
    }

    fn attach(&mut self, number: u8) {
        let port = self.fabric.connect(self.now);
        let hello = Message::Hello {
            protocol: PROTOCOL,
            name: format!("nic{number}"),
            gid: gid(number),
        };
        self.fabric.receive(port, hello, self.now);
        let welcome = self.fabric.next(port);
        assert!(matches!(welcome, Some(Message::Welcome { .. })));
        let adapter = Adapter {
            port,
            transport: Transport::new(),
            direct: PeerConnections::new().unwrap(),
            is_stopped: false,
            working: Vec::new(),
        };
        self.adapters.insert(number, adapter);
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::Request { from, to } => self.request(*from, *to),
            Step::Respond { at } => self.respond(*at, |number| Some(response(number))),
            Step::Refuse { at } => self.respond(*at, |_| None),
            Step::Stop { at } => self.stop(*at, true),
            Step::Continue { at } => self.stop(*at, false),
            Step::Leave { at } => self.leave(*at),
            Step::Attach { at } if !self.adapters.contains_key(at) => self.attach(*at),
            Step::Attach { .. } => {}
            Step::Pass { milliseconds } => self.pass(Duration::from_millis(*milliseconds)),
            Step::Rule { from, to } => {
                let rule = format!("nic{from}->nic{to} loss=30%");
                self.impairments.lock().add(rule.parse().unwrap()).unwrap();
            }
            Step::Clear => drop(self.impairments.lock().clear()),
        }
        self.settle();
    }

    fn request(&mut self, from: u8, to: u8) {
        let number = self.asked.len();
        let Some(adapter) = self.adapters.get_mut(&from) else {
            return;
        };
        let request = RequestData {
            data: ByteBuf::from(number.to_le_bytes()),
            descriptors: Vec::new(),
        };
        let sent = adapter
            .transport
            .request(gid(to), request, number, self.now);
        if sent.is_ok() {
            self.asked.push(Asked {
                at: self.now,
                carried_out: 0,
                outcome: None,
            });
        }
    }

    fn respond(&mut self, at: u8, data: impl Fn(&[u8]) -> Option<Vec<u8>>) {
        let Some(adapter) = self.adapters.get_mut(&at) else {
            return;
        };
        if let Some((id, number)) = adapter.working.pop() {
            let data = data(&number).map(ByteBuf::from);
            adapter.transport.respond(id, data);
        }
    }

    fn stop(&mut self, at: u8, is_stopped: bool) {
        if let Some(adapter) = self.adapters.get_mut(&at) {
            adapter.is_stopped = is_stopped;
        }
    }

    fn leave(&mut self, at: u8) {
        if let Some(mut adapter) = self.adapters.remove(&at) {
            self.fabric.leave(adapter.port, self.now);
            adapter.direct.clear();
            adapter.transport.lose();
            for output in adapter.transport.take_outputs() {
                self.note(output);
            }
        }
    }

    /// Lets time pass, and makes everything happen that is due in that time.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let live = self.adapters.values().filter(|a| !a.is_stopped);
            let deadlines = live.filter_map(|adapter| adapter.transport.deadline());
            let next = deadlines.chain(self.fabric.deadline()).min();
            let next = next.filter(|next| *next < end);
            self.now = next.map_or(end, |next| next.max(self.now));
            self.fabric.expire(self.now);
            for adapter in self.adapters.values_mut().filter(|a| !a.is_stopped) {
                adapter.transport.expire(self.now);
            }
            self.settle();
            if next.is_none() {
                return;
            }
        }
    }

    /// Executes everything that takes no time.
    fn settle(&mut self) {
        loop {
            let mut is_quiet = true;
            for number in 0..ADAPTERS {
                let Some(adapter) = self.adapters.get_mut(&number).filter(|a| !a.is_stopped) else {
                    continue;
                };
                while let Some(message) = self.fabric.next(adapter.port) {
                    is_quiet = false;
                    assert!(adapter.transport.receive(message, self.now));
                }
                for received in adapter.direct.receive() {
                    is_quiet = false;
                    match received {
                        Received::Packet(packet) => {
                            self.direct_packets += 1;
                            adapter.transport.receive_directly(packet, self.now);
                        }
                        Received::Ended(peer) => adapter.transport.disconnected(peer),
                    }
                }
                let outputs = adapter.transport.take_outputs();
                is_quiet &= outputs.is_empty();
                for output in outputs {
                    self.carry_out(number, output);
                }
            }
            assert_eq!(self.fabric.take_cut_off(), []);
            if is_quiet {
                return;
            }
        }
    }

    fn carry_out(&mut self, adapter: u8, output: Output<usize>) {
        let adapter = self.adapters.get_mut(&adapter).unwrap();
        match output {
            Output::Send(message) if adapter.direct.send(&message, &message.encode()) => {}
            Output::Send(message) | Output::SendByFabric(message) => {
                self.fabric.receive(adapter.port, message, self.now);
            }
            Output::Direct(peer, incarnation, socket) => {
                adapter.direct.add(peer, incarnation, socket);
            }
            Output::Gone(peer) => adapter.direct.remove(peer),
            Output::Request(id, request) => {
                let number = usize::from_le_bytes(request.data.as_slice().try_into().unwrap());
                self.asked[number].carried_out += 1;
                adapter.working.push((id, request.data.into_vec()));
            }
            other => self.note(other),
        }
    }

    fn note(&mut self, output: Output<usize>) {
        if let Output::Complete(number, outcome) = output {
            let asked = &mut self.asked[number];
            assert_eq!(asked.outcome, None, "it ends twice");
            assert!(self.now <= asked.at + REQUEST_TIME_OUT);
            if let Ok(data) = &outcome {
                assert_eq!(data, &response(&number.to_le_bytes()));
                assert_eq!(asked.carried_out, 1);
            }
            asked.outcome = Some(outcome);
        }
    }

    fn check(&self) {
        for asked in &self.asked {
            assert!(asked.carried_out <= 1, "{asked:?}");
        }
    }

    /// Answers everything until nothing is open.
    fn finish(&mut self) {
        (0..ADAPTERS).for_each(|at| self.stop(at, false));
        for _ in 0..400 {
            if self.asked.iter().all(|asked| asked.outcome.is_some()) {
                return;
            }
            for at in 0..ADAPTERS {
                while self
                    .adapters
                    .get(&at)
                    .is_some_and(|a| !a.working.is_empty())
                {
                    self.respond(at, |number| Some(response(number)));
                }
            }
            self.settle();
            self.pass(Duration::from_millis(100));
        }
        panic!("a request does not end");
    }

    fn outcomes(&self) -> BTreeSet<Option<RequestError>> {
        let outcomes = self.asked.iter().filter_map(|asked| asked.outcome.as_ref());
        outcomes.map(|outcome| outcome.clone().err()).collect()
    }
}

fn adapter() -> impl Strategy<Value = u8> {
    0..ADAPTERS
}

fn calm_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (adapter(), adapter()).prop_map(|(from, to)| Step::Request { from, to }),
        4 => adapter().prop_map(|at| Step::Respond { at }),
        2 => (1..300_u64).prop_map(|milliseconds| Step::Pass { milliseconds }),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => calm_step(),
        1 => adapter().prop_map(|at| Step::Refuse { at }),
        1 => adapter().prop_map(|at| Step::Stop { at }),
        1 => adapter().prop_map(|at| Step::Continue { at }),
        1 => adapter().prop_map(|at| Step::Leave { at }),
        2 => adapter().prop_map(|at| Step::Attach { at }),
    ]
}

fn step_with_rules() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => any_step(),
        1 => (adapter(), adapter()).prop_map(|(from, to)| Step::Rule { from, to }),
        1 => Just(Step::Clear),
    ]
}

/// Bad enough that packets are lost, and good enough that no request fails because of it.
const BAD: &[&str] =
    &["*->* loss=5% duplicate=20% reorder=20% delay=5ms jitter=100ms bandwidth=1MiB/s"];
const WORSE: &[&str] = &["*->* loss=30% duplicate=20% reorder=20% delay=1ms jitter=100ms"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn requests_survive_a_bad_fabric(
        seed in any::<u64>(),
        steps in prop::collection::vec(calm_step(), 1..60),
    ) {
        let world = World::after(seed, BAD, &steps);
        prop_assert!(world.asked.iter().all(|asked| asked.carried_out == 1));
        prop_assert!(world.outcomes().iter().all(Option::is_none), "{:?}", world.outcomes());
    }

    #[test]
    fn nothing_is_carried_out_twice_as_adapters_come_and_go(
        seed in any::<u64>(),
        steps in prop::collection::vec(any_step(), 1..120),
    ) {
        World::after(seed, WORSE, &steps);
    }

    #[test]
    fn direct_connections_that_come_and_go_change_no_outcome(
        seed in any::<u64>(),
        steps in prop::collection::vec(step_with_rules(), 1..120),
    ) {
        World::after(seed, &[], &steps);
    }
}

#[test]
fn packets_go_past_the_fabric_until_a_rule_is_about_them() {
    let mut world = World::new(1, &[]);
    let ask = |world: &mut World| {
        world.act(&Step::Request { from: 0, to: 1 });
        world.act(&Step::Respond { at: 1 });
        let last = world.asked.last().unwrap();
        assert!(matches!(last.outcome, Some(Ok(_))), "{last:?}");
        std::mem::take(&mut world.direct_packets)
    };
    ask(&mut world);
    assert_eq!(ask(&mut world), 3, "request, response, settled");
    world
        .impairments
        .lock()
        .add("nic1->nic0 delay=1ms".parse().unwrap())
        .unwrap();
    world.act(&Step::Request { from: 0, to: 1 });
    assert_eq!(world.direct_packets, 0);
    world.act(&Step::Respond { at: 1 });
    assert_eq!(world.asked.last().unwrap().outcome, None, "it is delayed");
    world.act(&Step::Clear);
    world.act(&Step::Pass { milliseconds: 2000 });
    assert!(world.asked.iter().all(|asked| asked.carried_out == 1));
    assert_eq!(ask(&mut world), 3);
}

#[test]
fn request_to_an_adapter_that_left_ends_soon() {
    let mut world = World::new(1, &[]);
    world.act(&Step::Request { from: 0, to: 1 });
    assert_eq!(world.asked[0].carried_out, 1);
    world.act(&Step::Leave { at: 1 });
    world.act(&Step::Pass { milliseconds: 600 });
    assert_eq!(world.asked[0].outcome, Some(Err(RequestError::Gone)));
    world.act(&Step::Request { from: 0, to: 1 });
    assert_eq!(world.asked[1].outcome, Some(Err(RequestError::Gone)));
}

#[test]
fn successor_is_not_asked_what_its_predecessor_was() {
    let mut world = World::new(1, &[]);
    world.act(&Step::Stop { at: 1 });
    world.act(&Step::Request { from: 0, to: 1 });
    world.act(&Step::Leave { at: 1 });
    world.act(&Step::Attach { at: 1 });
    world.act(&Step::Pass { milliseconds: 600 });
    assert_eq!(world.asked[0].carried_out, 0);
    assert_eq!(world.asked[0].outcome, Some(Err(RequestError::Gone)));
    world.act(&Step::Request { from: 0, to: 1 });
    assert_eq!(world.asked[1].carried_out, 1);
}

#[test]
fn direct_packet_of_a_predecessor_displaces_no_successor() {
    let request = || Step::Request { from: 2, to: 0 };
    let leave_and_attach = [Step::Leave { at: 2 }, Step::Attach { at: 2 }];
    let mut steps = vec![request(), Step::Stop { at: 0 }, request()];
    steps.extend(leave_and_attach);
    steps.push(request());
    let world = World::after(0, &[], &steps);
    let carried_out: Vec<usize> = world.asked.iter().map(|asked| asked.carried_out).collect();
    assert_eq!(carried_out, [1, 0, 1]);
}

#[test]
fn stopped_adapter_is_given_up_after_the_time_out() {
    let mut world = World::new(1, &[]);
    world.act(&Step::Stop { at: 1 });
    world.act(&Step::Request { from: 0, to: 1 });
    world.act(&Step::Pass { milliseconds: 3900 });
    assert_eq!(world.asked[0].outcome, None);
    world.act(&Step::Pass { milliseconds: 200 });
    assert_eq!(world.asked[0].outcome, Some(Err(RequestError::TimedOut)));
}

#[test]
fn peer_that_works_is_waited_for_within_a_limit() {
    let mut world = World::new(1, &[]);
    world.act(&Step::Request { from: 0, to: 1 });
    world.act(&Step::Pass {
        milliseconds: 20_000,
    });
    assert_eq!(world.asked[0].outcome, None);
    world.act(&Step::Request { from: 0, to: 1 });
    world.act(&Step::Respond { at: 1 });
    assert!(matches!(world.asked[1].outcome, Some(Ok(_))));
    world.act(&Step::Pass {
        milliseconds: 10_000,
    });
    assert_eq!(world.asked[0].outcome, Some(Err(RequestError::TimedOut)));
}

#[test]
fn partition_ends_requests_and_heals() {
    let mut world = World::new(1, &["nic0<->nic1 partition"]);
    world.act(&Step::Request { from: 0, to: 1 });
    world.act(&Step::Request { from: 0, to: 2 });
    world.act(&Step::Respond { at: 2 });
    assert!(matches!(world.asked[1].outcome, Some(Ok(_))));
    world.act(&Step::Pass { milliseconds: 4000 });
    assert_eq!(world.asked[0].outcome, Some(Err(RequestError::TimedOut)));
}

#[test]
fn refused_request_ends_with_the_refusal() {
    let mut world = World::new(1, &[]);
    world.act(&Step::Request { from: 0, to: 0 });
    world.act(&Step::Refuse { at: 0 });
    assert_eq!(world.asked[0].outcome, Some(Err(RequestError::Refused)));
}
