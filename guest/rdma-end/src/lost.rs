//! `rdma-lost`: requests in progress while a part of the transfer is lost, and the remaining parts
//! afterwards.

use std::io;

use peerbar_report::{RdmaLoad, RdmaLost, RdmaMemory, RdmaPart};

use crate::arrivals::Arrivals;
use crate::conductor::{Counted, EndSpec, Results, Site, Step, TwoEnds, between, counted};
use crate::ends::{Ends, MARGIN, Side, Way};
use crate::error::{Error, Result, in_one_line};
use crate::load::{Asked, DEPTH, MESSAGE, Requests, Workload, WorkloadCommand, WorkloadOutcome};
use crate::slots;
use crate::status::Status;

/// Number of requests that succeed before anything is lost.
const BEFORE: u64 = 64;
/// Name of the result about the requests themselves.
const FAILS: &str = "requests in progress and later ones fail";
/// Bytes of a transfer that tries the remaining parts.
const SIZE: u32 = 64 << 10;
/// The same for a message.
const SMALL: u32 = 4096;
/// Bytes of memory that each end needs to try the remaining parts.
const GO_ON_BYTES: u64 = SIZE as u64 + 2 * MARGIN;

impl TwoEnds for RdmaLost {
    fn ends(&self) -> [EndSpec<'_>; 2] {
        [
            EndSpec::new(&self.nic, &self.from),
            EndSpec::new(&self.peer, &self.to),
        ]
    }

    fn conduct(&self, site: &mut dyn Site, results: &mut Results) -> Step<()> {
        let part = self.part();
        let part = part.ok_or_else(|| format!("{} is not part of the transfer", self.loses))?;
        let loss = Loss {
            part,
            amid: self.by,
        };
        between(site, self.ends(), slots::bytes().into(), |site, ends| {
            // Later requests are not judged.
            counted(site, |site| {
                loss.conduct(ends, &mut || site.kill(), results)
            })
        })?;
        for pair in left(part) {
            let [near, far] = pair.map(|side| match side {
                Side::Near => &*self.nic,
                Side::Far => &*self.peer,
            });
            go_on(
                site,
                [near, far],
                format!("{near} and {far} go on"),
                results,
            )?;
        }
        Ok(())
    }

    fn judge_payload(&self, counted: Counted<'_>, results: &Results) -> Step<()> {
        self.judge(counted.flows, results.payload)
    }

    fn fails_dma(&self) -> bool {
        true
    }
}

/// Returns the pairs of adapters that continue without `part`, each with requester and responder.
fn left(part: RdmaPart) -> &'static [[Side; 2]] {
    const NEAR: [Side; 2] = [Side::Near, Side::Near];
    const FAR: [Side; 2] = [Side::Far, Side::Far];
    match part {
        RdmaPart::Peer => &[NEAR],
        RdmaPart::Fabric => &[NEAR, FAR],
        RdmaPart::Source | RdmaPart::Target => &[NEAR, FAR, [Side::Near, Side::Far]],
    }
}

/// Makes new ends of these adapters with guest RAM transfer in each way.
pub(crate) fn go_on(
    site: &mut dyn Site,
    nics: [&str; 2],
    name: String,
    results: &mut Results,
) -> Step<()> {
    let ends = nics.map(|nic| EndSpec::new(nic, &RdmaMemory::GuestRam));
    between(site, ends, GO_ON_BYTES, |_, ends| {
        let moved = Way::ALL.into_iter().try_for_each(|way| {
            let length = if ends.takes(way, SIZE) { SIZE } else { SMALL };
            ends.transfer(way, length, fastrand::u64(..)).map(drop)
        });
        results.check(name, moved)
    })
}

/// The part that is lost, and the requests in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss {
    part: RdmaPart,
    amid: RdmaLoad,
}

impl Loss {
    /// Makes the near end send requests to the far one until the part is lost, which `kill`
    /// requests. The payload is that of the requests that succeeded, or 0 if they went wrong.
    fn conduct(
        self,
        ends: &mut Ends<'_>,
        kill: &mut dyn FnMut() -> io::Result<()>,
        results: &mut Results,
    ) -> Step<()> {
        let seed = fastrand::u64(..);
        let prepared = self.prepare(ends, seed);
        prepared.map_err(|error| in_one_line(&error))?;
        let (asked, received) = match self.lose(ends, seed, kill) {
            Ok(ended) => ended,
            Err(error) => return results.check(FAILS, Err(error)),
        };
        results.check(FAILS, Ok(()))?;
        let bytes = u64::from(self.request_bytes());
        results.payload = asked.succeeded().saturating_mul(bytes);
        self.judge(ends, seed, (&asked, received.as_ref()), results)
    }

    fn prepare(self, ends: &mut Ends<'_>, seed: u64) -> Result<()> {
        self.fits(ends.addresses())?;
        slots::fill_source(ends.end(self.source()), seed)?;
        slots::fill_target(ends.end(self.target()))
    }

    /// Refuses ends that do not accept the messages.
    fn fits(self, addresses: [crate::message::Address; 2]) -> Result<()> {
        for (side, address) in [Side::Near, Side::Far].into_iter().zip(addresses) {
            let largest = address.largest_message;
            if self.amid == RdmaLoad::Sends && largest < MESSAGE {
                return Err(Error::LargeMessage {
                    side: side.name(),
                    length: MESSAGE,
                    largest,
                });
            }
        }
        Ok(())
    }

    /// Returns the bytes of a request.
    fn request_bytes(self) -> u32 {
        match self.amid {
            RdmaLoad::Writes | RdmaLoad::Reads => slots::SIZE,
            RdmaLoad::Sends => MESSAGE,
        }
    }

    /// Runs the requests. Returns once all requests in progress have failed, and one more.
    fn lose(
        self,
        ends: &mut Ends<'_>,
        seed: u64,
        kill: &mut dyn FnMut() -> io::Result<()>,
    ) -> Result<(Asked, Option<Arrivals>)> {
        let (requests, receives) = self.workloads(seed);
        if let Some(receives) = receives {
            ends.workload(Side::Far, WorkloadCommand::Start(receives))?;
        }
        let is_held = receives.is_some() && self.part == RdmaPart::Peer;
        let asked = ask(ends, requests, is_held, kill);
        if receives.is_none() {
            return Ok((asked?, None));
        }
        // An adapter that is gone flushes nothing. If receives went wrong, messages do not end, and
        // that is the reason.
        let flush = asked.is_ok() && self.part != RdmaPart::Peer;
        match ends.finish(Side::Far, flush)? {
            WorkloadOutcome::Received(arrivals) => Ok((asked?, Some(arrivals))),
            outcome => Err(Error::outcome(outcome)),
        }
    }

    /// Judges the results of the requests in the remaining memory.
    fn judge(
        self,
        ends: &mut Ends<'_>,
        seed: u64,
        (asked, received): (&Asked, Option<&Arrivals>),
        results: &mut Results,
    ) -> Step<()> {
        if let Some(arrivals) = received {
            let fails = self.part == RdmaPart::Target;
            results.check("each message arrived once", arrived(asked, arrivals, fails))?;
        }
        if self.part == self.changed() {
            // The memory is gone. The source of the requests must still be intact.
            let kept = slots::expect_source(ends.end(self.source()), seed);
            return results.check("the source is untouched", kept);
        }
        let target = ends.end(self.target());
        match received {
            None => {
                let seen = slots::expect_target(target, seed, &asked.written);
                results.check("the target has all acknowledged data", seen)
            }
            Some(_) => {
                let kept = slots::expect_beside(target, DEPTH, MESSAGE);
                results.check("nothing but the messages has changed", kept)
            }
        }
    }

    /// Returns the requests, and the receives that they need.
    fn workloads(self, seed: u64) -> (Workload, Option<Workload>) {
        let workload = |requests, failure| Workload {
            requests,
            seed,
            failure,
        };
        let requests = match self.amid {
            RdmaLoad::Writes => Requests::Writes,
            RdmaLoad::Reads => Requests::Reads,
            RdmaLoad::Sends => Requests::Sends,
        };
        let receives = match self.part {
            RdmaPart::Target => workload(Requests::ReceivesUnseen, Some(Status::LOCAL_PROTECTION)),
            _ => workload(Requests::Receives, None),
        };
        let is_received = self.amid == RdmaLoad::Sends;
        (
            workload(requests, Some(self.status())),
            is_received.then_some(receives),
        )
    }

    /// Returns the status of requests without the part.
    fn status(self) -> Status {
        match (self.part, self.amid) {
            (RdmaPart::Peer | RdmaPart::Fabric, _) => Status::RESPONSE_TIMEOUT,
            (RdmaPart::Source, _) => Status::LOCAL_PROTECTION,
            (RdmaPart::Target, RdmaLoad::Sends) => Status::BAD_RESPONSE,
            (RdmaPart::Target, _) => Status::REMOTE_ACCESS,
        }
    }

    /// Returns the part whose memory the requests change.
    fn changed(self) -> RdmaPart {
        match self.amid {
            RdmaLoad::Writes | RdmaLoad::Sends => RdmaPart::Target,
            RdmaLoad::Reads => RdmaPart::Source,
        }
    }

    /// Returns the end whose memory they change.
    fn target(self) -> Side {
        match self.amid {
            RdmaLoad::Writes | RdmaLoad::Sends => Side::Far,
            RdmaLoad::Reads => Side::Near,
        }
    }

    /// Returns the end whose memory they read.
    fn source(self) -> Side {
        self.target().other()
    }
}

/// Makes the near end send requests until one fails. If the far end's adapter will be lost, its
/// receives are held before, so that none is posted to an adapter that is gone. Messages in
/// progress then find a receive or wait for one.
fn ask(
    ends: &mut Ends<'_>,
    requests: Workload,
    is_held: bool,
    kill: &mut dyn FnMut() -> io::Result<()>,
) -> Result<Asked> {
    let near = Side::Near;
    ends.workload(near, WorkloadCommand::Start(requests))?;
    ends.workload(near, WorkloadCommand::Succeed { count: BEFORE })?;
    if is_held {
        ends.workload(Side::Far, WorkloadCommand::Hold)?;
    }
    kill().map_err(Error::Kill)?;
    match ends.finish(near, false)? {
        WorkloadOutcome::Asked(asked) => Ok(asked),
        outcome => Err(Error::outcome(outcome)),
    }
}

/// Checks that each acknowledged message has arrived, and no message that was not sent. If the
/// memory was lost, receives must have failed.
fn arrived(asked: &Asked, arrivals: &Arrivals, fails: bool) -> Result<()> {
    let fault = match arrivals.first_lost(asked.posted, &asked.failed) {
        Some(id) => Some(format!("message {id} was acknowledged, and did not arrive")),
        None if arrivals.has_unsent(asked.posted) => {
            Some("a message arrived that was never sent".to_owned())
        }
        None if fails && arrivals.failed() == 0 => Some("no receive has failed".to_owned()),
        None => None,
    };
    fault.map_or(Ok(()), |fault| Err(Error::Messages(fault)))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::end::End;
    use crate::fake::{FakeEnd, Flaw};
    use crate::message::{Answer, Command};
    use crate::server::Server;

    const ALL: [RdmaPart; 4] = [
        RdmaPart::Peer,
        RdmaPart::Source,
        RdmaPart::Target,
        RdmaPart::Fabric,
    ];

    /// A far end that continues while the near one executes a command.
    #[derive(Clone)]
    struct Far(Rc<RefCell<Server<FakeEnd>>>);

    impl End for Far {
        fn ask(&mut self, command: &Command) -> Result<Answer> {
            self.0.borrow_mut().ask(command)
        }
    }

    /// A near end, and the far one that continues at the same time.
    struct Near(FakeEnd, Far);

    impl End for Near {
        fn ask(&mut self, command: &Command) -> Result<Answer> {
            for _ in 0..2 * DEPTH {
                self.1.0.borrow_mut().go_on();
            }
            self.0.ask(command)
        }
    }

    /// Returns the failures of a loss, if requests behave as `before` says up to the loss and as
    /// `after` says from then on.
    fn failures(loss: Loss, before: Option<Flaw>, after: Option<Flaw>) -> Vec<String> {
        conducted(loss, before, after).0
    }

    /// Returns the same, with the number of acknowledged bytes.
    fn conducted(loss: Loss, before: Option<Flaw>, after: Option<Flaw>) -> (Vec<String>, u64) {
        let (near, far) = FakeEnd::pair(slots::bytes().into());
        let flaw = near.flaw();
        let far = Far(Rc::new(RefCell::new(Server::new(far))));
        let (mut near, mut far) = (Server::new(Near(near, far.clone())), far);
        let mut ends = Ends::connect(&mut near, &mut far).unwrap();
        let mut results = Results::default();
        flaw.set(before);
        let mut kill = || {
            flaw.set(after);
            Ok(())
        };
        // An end that answers with something else ends the check. Its failure is in the results.
        let _ = loss.conduct(&mut ends, &mut kill, &mut results);
        (results.failures(), results.payload)
    }

    fn loss(part: RdmaPart, amid: RdmaLoad) -> Loss {
        Loss { part, amid }
    }

    #[test]
    fn loss_that_ends_all_requests_rightly_passes() {
        for part in ALL {
            for amid in [RdmaLoad::Writes, RdmaLoad::Reads, RdmaLoad::Sends] {
                let loss = loss(part, amid);
                let dead = Flaw::Dead(loss.status());
                let failures = failures(loss, None, Some(dead));
                assert_eq!(failures, [""; 0], "{loss:?}");
            }
        }
    }

    #[test]
    fn acknowledged_bytes_are_those_of_requests_that_succeeded() {
        for (amid, bytes) in [
            (RdmaLoad::Writes, slots::SIZE),
            (RdmaLoad::Reads, slots::SIZE),
            (RdmaLoad::Sends, MESSAGE),
        ] {
            let it = loss(RdmaPart::Fabric, amid);
            let (_, acknowledged) = conducted(it, None, Some(Flaw::Dead(it.status())));
            // The fake executes the requests that are in progress before the loss.
            let requests = BEFORE + u64::from(DEPTH);
            assert!(acknowledged >= BEFORE * u64::from(bytes), "{amid:?}");
            assert!(acknowledged <= requests * u64::from(bytes), "{amid:?}");
            let (_, acknowledged) = conducted(it, None, None);
            assert_eq!(acknowledged, 0, "{amid:?}");
        }
    }

    #[test]
    fn messages_that_an_end_does_not_take_are_refused() {
        for (amid, is_refused) in [(RdmaLoad::Writes, false), (RdmaLoad::Sends, true)] {
            let (near, mut far) = FakeEnd::pair(slots::bytes().into());
            far.take_messages_of(MESSAGE - 1);
            let mut died = || Err(io::ErrorKind::Other.into());
            let [mut near, mut far] = [near, far].map(Server::new);
            let mut ends = Ends::connect(&mut near, &mut far).unwrap();
            let loss = loss(RdmaPart::Fabric, amid);
            let error = loss
                .conduct(&mut ends, &mut died, &mut Results::default())
                .err();
            let wanted =
                "messages have 8928 bytes, and the far end takes 8927: have it write or read";
            assert_eq!(error.as_deref(), is_refused.then_some(wanted));
        }
    }

    #[test]
    fn request_that_ends_otherwise_fails_the_check() {
        for amid in [RdmaLoad::Writes, RdmaLoad::Reads, RdmaLoad::Sends] {
            let it = loss(RdmaPart::Fabric, amid);
            for (before, after, wanted) in [
                (None, None, "256 requests have succeeded"),
                (
                    None,
                    Some(Flaw::Dead(Status::REMOTE_ABORTED)),
                    "a remote abort, not with a response time-out",
                ),
                (Some(Flaw::WaitsForNothing), None, "answers Done to Wait"),
                (
                    Some(Flaw::Dead(it.status())),
                    None,
                    "a request failed before anything died",
                ),
            ] {
                let failures = failures(it, before, after);
                let [only] = failures.as_slice() else {
                    panic!("{amid:?}, {after:?}: {failures:?}")
                };
                assert!(only.contains(wanted), "{amid:?}: {only}");
            }
        }
    }

    #[test]
    fn request_that_succeeds_afterwards_fails_the_check() {
        let it = loss(RdmaPart::Fabric, RdmaLoad::Writes);
        // The requests that are posted until the first one fails.
        let posted = BEFORE + 2 * u64::from(DEPTH);
        let revived = Flaw::DeadBelow(posted, it.status());
        let failures = failures(it, None, Some(revived)).concat();
        assert!(failures.contains("after all others failed"), "{failures}");
    }

    #[test]
    fn memory_that_is_not_as_acknowledged_fails_the_check() {
        let dead = |it: Loss| Some(Flaw::Dead(it.status()));
        for (amid, part, before, wanted) in [
            (
                RdmaLoad::Writes,
                RdmaPart::Peer,
                Flaw::MovesNothing,
                "the target has all acknowledged data: end: byte 0",
            ),
            (
                RdmaLoad::Reads,
                RdmaPart::Target,
                Flaw::MovesNothing,
                "the target has all acknowledged data: end: byte 0",
            ),
            (
                RdmaLoad::Writes,
                RdmaPart::Fabric,
                Flaw::LastByte,
                "the target has all acknowledged data: end: byte 65535",
            ),
            (
                RdmaLoad::Writes,
                RdmaPart::Target,
                Flaw::ChangesSource,
                "the source is untouched: end: byte 0",
            ),
            (
                RdmaLoad::Sends,
                RdmaPart::Target,
                Flaw::ChangesSource,
                "the source is untouched: end: byte 0",
            ),
            (
                RdmaLoad::Sends,
                RdmaPart::Source,
                Flaw::OneByteMore,
                "nothing but the messages has changed: end: byte 0",
            ),
        ] {
            let it = loss(part, amid);
            let failures = failures(it, Some(before), dead(it)).concat();
            assert!(
                failures.starts_with(wanted),
                "{it:?}, {before:?}: {failures}"
            );
        }
    }

    #[test]
    fn message_that_is_torn_lost_or_doubled_fails_the_check() {
        for (flaw, wanted) in [
            (
                Flaw::LastByte,
                "message 0 in slot 0: end: byte 8927 of 8928",
            ),
            (Flaw::TwiceFrom(0), "message 0 was received twice"),
            (Flaw::ShortByOne, "receive 0 completed as no message"),
            (
                Flaw::FailsReceives,
                "receive 0 ended with a local protection",
            ),
            (
                Flaw::MovesNothing,
                "message 0 was acknowledged, and did not arrive",
            ),
        ] {
            let it = loss(RdmaPart::Fabric, RdmaLoad::Sends);
            let failures = failures(it, Some(flaw), Some(Flaw::Dead(it.status()))).concat();
            assert!(failures.contains(wanted), "{flaw:?}: {failures}");
        }
    }

    #[test]
    fn fault_of_receives_that_are_to_be_held_is_told_afterwards() {
        let it = loss(RdmaPart::Peer, RdmaLoad::Sends);
        let dead = Flaw::Dead(it.status());
        // The far end meets it before the near one has the completions that it waits for, and is
        // told to hold afterwards.
        let last = BEFORE + u64::from(DEPTH) - 2;
        let failures = failures(it, Some(Flaw::TwiceFrom(last)), Some(dead)).concat();
        let wanted = format!("message {last} was received twice");
        assert!(failures.contains(&wanted), "{failures}");
    }

    #[test]
    fn failure_lasts_until_requests_are_started_again() {
        let (mut near, mut far) = FakeEnd::pair(slots::bytes().into());
        let address = |end: &mut FakeEnd| match end.ask(&Command::Address).unwrap() {
            Answer::Address(address) => address,
            other => panic!("{other:?}"),
        };
        let addresses = [address(&mut near), address(&mut far)];
        near.ask(&Command::Connect(addresses[1])).unwrap();
        far.ask(&Command::Connect(addresses[0])).unwrap();
        let flaw = near.flaw();
        let mut server = Server::new(near);
        let (writes, _) = loss(RdmaPart::Peer, RdmaLoad::Writes).workloads(1);
        let mut ask = |command| {
            let command = Command::Workload(command);
            server.ask(&command).unwrap()
        };
        flaw.set(Some(Flaw::Refused));
        assert_eq!(ask(WorkloadCommand::Start(writes)), Answer::Done);
        for _ in 0..2 {
            let Answer::Failed { reason } = ask(WorkloadCommand::Succeed { count: 1 }) else {
                panic!("no failure")
            };
            assert!(reason.starts_with("request 0 ended with"), "{reason}");
        }
        flaw.set(None);
        assert_eq!(ask(WorkloadCommand::Start(writes)), Answer::Done);
    }

    #[test]
    fn receives_must_fail_where_their_memory_has_died() {
        let it = loss(RdmaPart::Target, RdmaLoad::Sends);
        let asked = Asked {
            posted: 2,
            failed: vec![1],
            written: Vec::new(),
        };
        let mut arrivals = Arrivals::default();
        arrivals.add(0).unwrap();
        assert!(arrived(&asked, &arrivals, false).is_ok());
        let error = arrived(&asked, &arrivals, true).unwrap_err().to_string();
        assert_eq!(error, "no receive has failed");
        arrivals.fail();
        assert!(arrived(&asked, &arrivals, true).is_ok());
        assert_eq!(failures(it, None, Some(Flaw::Dead(it.status()))), [""; 0]);
        arrivals.add(5).unwrap();
        assert!(arrived(&asked, &arrivals, true).is_err());
    }

    #[test]
    fn pairs_that_are_left_have_nothing_of_the_part() {
        for part in ALL {
            let left = left(part);
            let has = |pair| left.contains(&pair);
            assert!(has([Side::Near, Side::Near]), "{part:?}");
            assert_eq!(has([Side::Far, Side::Far]), part != RdmaPart::Peer);
            let joined = !matches!(part, RdmaPart::Peer | RdmaPart::Fabric);
            assert_eq!(has([Side::Near, Side::Far]), joined, "{part:?}");
        }
    }
}
