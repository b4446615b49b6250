//! Two adapters and their fabric. Again and again, one of the three is killed or stopped at a
//! random moment during transfers. `scripts/test --only dying-adapters` runs it.
//!
//! A killed process starts again. A request that succeeds has moved its bytes. A request that fails
//! has moved some of them or none, and nothing else is written. After each moment all transfers
//! work again, with the surviving parts.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;
use peerbar_fabric::PEER_TIME_OUT;
use peerbar_rig::{Daemon, DaemonCommand, new_seed};
use rustix::process::Signal;

use crate::transfers::REGION_BYTES;
use crate::two_daemons::{End, GIDS, GONE, introduce, stop};

/// Number of requests in progress at a moment. Each has its own slot in both regions.
const REQUESTS: u16 = 32;
const SLOT: usize = REGION_BYTES as usize / REQUESTS as usize;
/// The longest time from the first request to the moment, in µs. Without a moment, all requests are
/// done by then.
const BEFORE: u64 = 3_000;
/// Usual and long stops in ms.
const SHORT: (u64, u64) = (1, 60);
const LONG: (u64, u64) = (500, 8000);
/// On a slow machine, stops from this duration on may exceed the time-out of a request.
const FAILING: Duration = PEER_TIME_OUT.saturating_sub(Duration::from_millis(1500));
/// One of this many stops is long.
const LONG_EVERY: u32 = 25;
/// Limit of the time until transfers work again.
const RECOVERY: Duration = Duration::from_secs(60);
/// Limit of the descriptors of a part that has survived all moments: its own, and those of a few
/// connections.
const MOST_DESCRIPTORS: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Requester,
    Responder,
    Fabric,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    Kill,
    Stop(Duration),
}

/// An event: its kind, the requests that it interrupts, and its delay after the first of them.
#[derive(Clone, Copy, Debug)]
struct Moment {
    part: Part,
    action: Action,
    operation: Operation,
    requester: usize,
    before: Duration,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, action, .. } = self;
        write!(
            f,
            "{action:?} of {part:?}, {:?} after {:?} by {}",
            self.before, self.operation, GIDS[self.requester]
        )
    }
}

impl Moment {
    fn draw(random: &mut Rng) -> Self {
        let parts = [Part::Requester, Part::Responder, Part::Fabric];
        let (least, most) = match random.u32(0..LONG_EVERY) {
            0 => LONG,
            _ => SHORT,
        };
        let stop = Duration::from_millis(random.u64(least..=most));
        Self {
            part: parts[random.usize(0..parts.len())],
            action: [Action::Kill, Action::Stop(stop)][random.usize(0..2)],
            operation: [Operation::RdmaWrite, Operation::RdmaRead][random.usize(0..2)],
            requester: random.usize(0..2),
            before: Duration::from_micros(random.u64(0..BEFORE)),
        }
    }

    /// Returns `true` if a request may fail because of it.
    fn may_fail(&self) -> bool {
        match self.action {
            Action::Kill => true,
            Action::Stop(time) => time >= FAILING,
        }
    }
}

/// Requests in progress, and the target's content before and after them.
struct Batch {
    operation: Operation,
    requester: usize,
    target: usize,
    before: Vec<u8>,
    after: Vec<u8>,
}

/// Number of requests that have succeeded, and that have failed.
#[derive(Clone, Copy, Debug, Default)]
struct Ended {
    well: u64,
    otherwise: u64,
}

/// The requests that were posted right before a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Amid {
    /// Number of requests in progress at the moment.
    in_progress: usize,
    ended: Ended,
}

/// The two adapters and their fabric.
struct AdapterPair {
    fabric: Daemon,
    ends: [End; 2],
    /// For each end, the data of writes to it that may still arrive, although their requests have
    /// failed or their requester was killed.
    late: [Vec<Vec<u8>>; 2],
    random: Rng,
    amid: Amid,
}

impl AdapterPair {
    fn start(random: Rng) -> Self {
        let fabric = DaemonCommand::new(programs().join("peerbar-fabric")).start();
        let ends = [0, 1].map(|index| End::start(fabric.socket(), index));
        let mut pair = Self {
            fabric,
            ends,
            late: Default::default(),
            random,
            amid: Amid::default(),
        };
        introduce(&mut pair.ends);
        pair
    }

    /// Posts a request for each slot, with new contents of the source.
    fn post(&mut self, operation: Operation, requester: usize) -> Batch {
        let responder = 1 - requester;
        let (source, target) = match operation {
            Operation::RdmaRead => (responder, requester),
            _ => (requester, responder),
        };
        let mut after = vec![0; REGION_BYTES as usize];
        self.random.fill(&mut after);
        self.ends[source].put(&after);
        let before = self.ends[target].contents();
        let (local, remote) = (self.ends[requester].keys.0, self.ends[responder].keys.1);
        let pairs = &mut self.ends[requester].pairs;
        for request in 0..REQUESTS {
            let offset = u64::from(request) * SLOT as u64;
            pairs.request = request;
            pairs.rdma(operation, (remote, offset), (local, offset), SLOT as u32);
        }
        Batch {
            operation,
            requester,
            target,
            before,
            after,
        }
    }

    /// Waits until all requests have ended, and checks the data that each has moved.
    fn end(&mut self, batch: &Batch, may_fail: bool) -> Ended {
        let mut ended = Ended::default();
        let mut statuses = BTreeMap::new();
        for _ in 0..REQUESTS {
            let (request, status) = self.ends[batch.requester].pairs.sent();
            let again = statuses.insert(request, status);
            assert_eq!(again, None, "request {request} has ended twice");
        }
        for status in statuses.values() {
            match *status == CompletionStatus::Ok as u8 {
                true => ended.well += 1,
                false => ended.otherwise += 1,
            }
        }
        let is_expected = |status: &u8| *status == 0 || (may_fail && GONE.contains(status));
        assert!(statuses.values().all(is_expected), "{statuses:?}");
        self.check(batch, |request| statuses[&request] == 0);
        if ended.otherwise == 0 {
            // The target has executed all requests that it had received before.
            self.late[batch.target].clear();
        } else {
            self.expect_late(batch);
        }
        ended
    }

    /// Expects that data of writes that have not succeeded may arrive later.
    fn expect_late(&mut self, batch: &Batch) {
        if batch.operation == Operation::RdmaWrite {
            self.late[batch.target].push(batch.after.clone());
        }
    }

    /// Checks that the successful requests have moved their bytes, and that the target contains no
    /// other bytes.
    fn check(&self, batch: &Batch, has_succeeded: impl Fn(u16) -> bool) {
        let contents = self.ends[batch.target].contents();
        for request in 0..REQUESTS {
            let slot = usize::from(request) * SLOT..(usize::from(request) + 1) * SLOT;
            let [found, before, after] =
                [&contents, &batch.before, &batch.after].map(|data| &data[slot.clone()]);
            if has_succeeded(request) {
                let others = found.iter().zip(after).filter(|(a, b)| a != b).count();
                let earlier = found.iter().zip(before).filter(|(a, b)| a == b).count();
                assert_eq!(
                    others, 0,
                    "request {request} succeeded without these of its {SLOT} bytes; {earlier} are as before it"
                );
            }
            let late = &self.late[batch.target];
            let is_known = |at: usize| {
                let mut late = late.iter().map(|data| data[slot.start + at]);
                [before[at], after[at]].contains(&found[at]) || late.any(|byte| byte == found[at])
            };
            assert!(
                (0..SLOT).all(is_known),
                "slot {request} has bytes that no request moves"
            );
        }
    }

    fn daemon(&mut self, part: Part, requester: usize) -> &mut Daemon {
        match part {
            Part::Requester => &mut self.ends[requester].daemon,
            Part::Responder => &mut self.ends[1 - requester].daemon,
            Part::Fabric => &mut self.fabric,
        }
    }

    fn inject(&mut self, moment: Moment) {
        let Moment {
            part, requester, ..
        } = moment;
        let batch = self.post(moment.operation, requester);
        let begun = Instant::now();
        while begun.elapsed() < moment.before {
            std::hint::spin_loop();
        }
        self.amid.in_progress += usize::from(REQUESTS) - self.ends[requester].pairs.ended();
        match moment.action {
            Action::Kill => self.daemon(part, requester).kill(),
            Action::Stop(time) => {
                stop(self.daemon(part, requester));
                thread::sleep(time);
                self.daemon(part, requester).signal(Signal::CONT);
            }
        }
        match (part, moment.action) {
            // The outcome of its requests stays unknown.
            (Part::Requester, Action::Kill) => {
                self.check(&batch, |_| false);
                self.expect_late(&batch);
            }
            _ => {
                let ended = self.end(&batch, moment.may_fail());
                self.amid.ended.well += ended.well;
                self.amid.ended.otherwise += ended.otherwise;
            }
        }
        if moment.action == Action::Kill {
            self.start_again(part, requester);
        }
        self.recover(requester);
    }

    fn start_again(&mut self, part: Part, requester: usize) {
        let index = match part {
            Part::Fabric => return self.fabric.restart(),
            Part::Requester => requester,
            Part::Responder => 1 - requester,
        };
        self.late[index].clear();
        self.ends[index] = End::start(self.fabric.socket(), index);
        introduce(&mut self.ends);
    }

    /// Waits until all requests succeed, by either adapter. Begins with the `requester` whose
    /// requests may have failed: a peer that was stopped executes the requests that it had received
    /// before those that follow.
    fn recover(&mut self, requester: usize) {
        let deadline = Instant::now() + RECOVERY;
        let responder = 1 - requester;
        for (requester, operation) in [
            (requester, Operation::RdmaWrite),
            (responder, Operation::RdmaRead),
        ] {
            loop {
                let batch = self.post(operation, requester);
                if self.end(&batch, true).otherwise == 0 {
                    break;
                }
                assert!(Instant::now() < deadline, "requests still fail");
            }
        }
    }
}

/// Returns the folder of the programs that scripts/build makes, such as the fabric.
fn programs() -> PathBuf {
    let built = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peerbar");
    env::var_os("PEERBAR_PROGRAMS").map_or_else(built, PathBuf::from)
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
#[ignore = "kills parts for minutes; scripts/test --only dying-adapters runs it"]
fn parts_die_and_no_request_lies() {
    let moments = number("PEERBAR_DYING_MOMENTS", 200);
    let mut random = Rng::with_seed(new_seed());
    let mut adapters = AdapterPair::start(random.fork());
    let mut done: BTreeMap<_, u64> = BTreeMap::new();
    let begun = Instant::now();
    for number in 1..=moments {
        let moment = Moment::draw(&mut random);
        println!("moment {number}: {moment}");
        adapters.inject(moment);
        let is_kill = moment.action == Action::Kill;
        *done.entry((moment.part, is_kill)).or_default() += 1;
    }
    for daemon in [
        &adapters.fabric,
        &adapters.ends[0].daemon,
        &adapters.ends[1].daemon,
    ] {
        let descriptors = daemon.open_descriptors();
        assert!(descriptors < MOST_DESCRIPTORS, "{descriptors} descriptors");
    }
    let took = begun.elapsed();
    println!(
        "{moments} moments in {took:.0?}, by part and whether it was killed: {done:?}; requests amid them: {:?}",
        adapters.amid
    );
    // A few moments may all come after the last request.
    assert!(
        adapters.amid.in_progress > 0 || moments < 50,
        "no request was in progress at any moment"
    );
}
