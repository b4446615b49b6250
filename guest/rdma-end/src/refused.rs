//! `rdma-refused`: requests that an adapter must refuse.

use peerbar_report::{RdmaMemory, RdmaRefused};

use crate::conductor::{
    Counted, EndSpec, Permitted, Results, Site, Step, TwoEnds, between, counted,
};
use crate::ends::{Ends, MARGIN, Side, Way};
use crate::error::{Error, Result};
use crate::message::{
    Address, Answer, Command, Completed, Content, Operation, OwnTests, PairState, Rights, Span,
    Spare, SpareCommand,
};
use crate::status::Status;

/// Bytes of a request.
const LENGTH: u32 = 512;
/// Bytes of memory of each end, as a transfer needs them.
const BYTES: u32 = 4 << 12;
/// Content of the near end's memory before and after a refused request.
const OWN: u8 = 0xc3;
/// The same for the far end's memory.
const UNTOUCHED: u8 = 0x5a;
/// Number of keys that are tried around an existing one.
const GUESSES: u32 = 64;
/// Numbers of work requests.
const REQUEST: u64 = 9;
const RECEIVE: u64 = 3;
const GIVEN_UP: u64 = 5;
/// Number of times that a message without a receive is sent again.
const RETRIES: [u8; 2] = [0, 2];
/// Immediate data of the message after those.
const LATER: u32 = 0x1a7e_0001;
/// The part of each end's memory that a request moves.
const PART: Span = Span {
    offset: MARGIN,
    length: LENGTH,
};

type Check<'e, 'a> = fn(&mut Refusals<'e, 'a>) -> Result<()>;

impl TwoEnds for RdmaRefused {
    fn ends(&self) -> [EndSpec<'_>; 2] {
        [
            EndSpec::new(&self.nic, &RdmaMemory::GuestRam),
            EndSpec::new(self.asked(), &self.memory()),
        ]
    }

    fn conduct(&self, site: &mut dyn Site, results: &mut Results) -> Step<()> {
        between(site, self.ends(), BYTES.into(), |site, ends| {
            counted(site, |_| refuse_all(ends, self.gpu.is_some(), results))
        })
    }

    fn judge_payload(&self, counted: Counted<'_>, results: &Results) -> Step<()> {
        let Permitted { written, read } = results.permitted;
        self.judge(counted.flows, written, read)
    }
}

/// A requester, and the end that must refuse.
struct Refusals<'e, 'a> {
    ends: &'e mut Ends<'a>,
    far: Address,
    permitted: Permitted,
}

/// Tests the requests of the near end's own program, those to the far one, and, if `of_gpu` is set,
/// the registration of the far one's memory.
fn refuse_all(ends: &mut Ends<'_>, of_gpu: bool, results: &mut Results) -> Step<()> {
    results.add_own(ends.own_tests(Side::Near, OwnTests::Requests))?;
    refuse(ends, of_gpu, results)?;
    if of_gpu {
        results.add_own(ends.own_tests(Side::Far, OwnTests::Registrations))?;
    }
    Ok(())
}

/// Makes the near end send requests to the far one, which has memory of a GPU if `of_gpu` is set,
/// that it must refuse. After each refusal no byte may have changed, and the adapters must continue
/// to work.
fn refuse(ends: &mut Ends<'_>, of_gpu: bool, results: &mut Results) -> Step<()> {
    let [_, far] = ends.addresses();
    let mut it = Refusals {
        ends,
        far,
        permitted: Permitted::default(),
    };
    let checks: [(&str, Check<'_, '_>); 9] = [
        ("write without the right", Refusals::write_without_the_right),
        ("read without the right", Refusals::read_without_the_right),
        ("guessed remote keys", Refusals::guessed_keys),
        ("the key of another region", Refusals::key_of_another),
        ("beyond the end of a region", Refusals::beyond_the_end),
        ("deregistered region", Refusals::deregistered),
        ("queue pairs in a wrong state", Refusals::wrong_states),
        ("message without a receive", Refusals::without_a_receive),
        (
            "message that is too long for its receive",
            Refusals::too_long,
        ),
    ];
    let of_gpus: [(&str, Check<'_, '_>); 2] = [
        ("buffer that is freed", Refusals::freed),
        ("revoke of a pinned buffer", Refusals::revoked),
    ];
    let of_gpus = of_gpus.into_iter().filter(|_| of_gpu);
    let mut usable = Ok(());
    for (name, check) in checks.into_iter().chain(of_gpus) {
        usable = usable.and(results.check(name, it.refuses(check)));
    }
    results.permitted = it.permitted;
    usable
}

impl<'e, 'a> Refusals<'e, 'a> {
    /// Checks that the requests of `check` are refused, change no byte, and harm neither adapter.
    fn refuses(&mut self, check: Check<'e, 'a>) -> Result<()> {
        let whole = Span {
            offset: 0,
            length: BYTES,
        };
        let sides = [(Side::Near, OWN), (Side::Far, UNTOUCHED)];
        for (side, value) in sides {
            self.fill(side, whole, value)?;
        }
        check(self)?;
        for (side, value) in sides {
            let kept = Command::expect(whole, Content::Value(value));
            self.ends.done(side, &kept)?;
        }
        self.ends.done(Side::Near, &Command::Connect(self.far))?;
        for way in [Way::Write, Way::Read, Way::Send] {
            self.ends.transfer(way, LENGTH, fastrand::u64(..))?;
            self.permit(way == Way::Read);
        }
        Ok(())
    }

    fn write_without_the_right(&mut self) -> Result<()> {
        let none = Rights {
            local_write: false,
            remote_write: false,
            remote_read: false,
        };
        let others = Rights {
            remote_write: false,
            ..Rights::ALL
        };
        for rights in [none, others] {
            let spare = self.spare(rights)?;
            self.expect(at(self.far, spare), write(0), Status::REMOTE_ACCESS)?;
            self.untouched()?;
        }
        Ok(())
    }

    fn read_without_the_right(&mut self) -> Result<()> {
        let spare = self.spare(Rights {
            remote_read: false,
            ..Rights::ALL
        })?;
        self.expect(at(self.far, spare), read(0), Status::REMOTE_ACCESS)?;
        self.untouched()
    }

    fn guessed_keys(&mut self) -> Result<()> {
        let known = self.far.key;
        for guess in 1..=GUESSES {
            for key in [known.wrapping_add(guess), known.wrapping_sub(guess)] {
                self.expect_no_access(Address { key, ..self.far }, 0)?;
            }
        }
        Ok(())
    }

    fn key_of_another(&mut self) -> Result<()> {
        let spare = self.spare(Rights::ALL)?;
        let far = self.far;
        self.expect_no_access(
            Address {
                key: spare.key,
                ..far
            },
            0,
        )?;
        let address = spare.address;
        self.expect_no_access(Address { address, ..far }, 0)?;
        self.untouched()
    }

    fn beyond_the_end(&mut self) -> Result<()> {
        let size = self.far.size;
        let last = size.wrapping_sub(LENGTH.into());
        for offset in [last + 1, size, 0_u64.wrapping_sub(1), u64::MAX / 2] {
            self.expect_no_access(self.far, offset)?;
        }
        Ok(())
    }

    fn deregistered(&mut self) -> Result<()> {
        let spare = self.spare(Rights::ALL)?;
        self.ask_spare(SpareCommand::Deregister)?;
        self.expect_no_access(at(self.far, spare), 0)?;
        self.untouched()
    }

    fn wrong_states(&mut self) -> Result<()> {
        for state in PairState::ALL {
            let queue_pair = self.pair(state)?;
            let to = Address {
                queue_pair,
                ..self.far
            };
            let send = Operation::Send { immediate: None };
            for operation in [write(0), read(0), send] {
                self.expect(to, operation, Status::REMOTE_BAD_QUEUE_PAIR)?;
            }
        }
        Ok(())
    }

    fn too_long(&mut self) -> Result<()> {
        let span = Span {
            offset: MARGIN,
            length: LENGTH - 1,
        };
        let id = RECEIVE;
        self.ends.done(Side::Far, &Command::Receive { id, span })?;
        let send = Operation::Send { immediate: None };
        self.expect(self.far, send, Status::REMOTE_INVALID_REQUEST)?;
        let received = self.wait(Side::Far, RECEIVE)?;
        check(Side::Far, received, Status::LOCAL_LENGTH)
    }

    /// Checks that a message without a receive is given up, and fills no receive that is posted
    /// later.
    fn without_a_receive(&mut self) -> Result<()> {
        self.ends.done(Side::Near, &Command::Connect(self.far))?;
        for retries in RETRIES {
            let status = self.send_beside(retries)?;
            check(Side::Near, status, Status::RECEIVER_NOT_READY)?;
        }
        let kept = Command::expect(PART, Content::Value(UNTOUCHED));
        self.ends.done(Side::Far, &kept)?;
        self.receive_later()?;
        self.permit(false);
        // Data that has arrived must not be mistaken for that of a refused request.
        self.fill(Side::Far, PART, UNTOUCHED)
    }

    fn fill(&mut self, side: Side, span: Span, value: u8) -> Result<()> {
        let content = Content::Value(value);
        self.ends.done(side, &Command::Put { span, content })
    }

    /// Sends a message with a receive, and checks that this message fills it.
    fn receive_later(&mut self) -> Result<()> {
        let (id, span) = (RECEIVE, PART);
        self.ends.done(Side::Far, &Command::Receive { id, span })?;
        let immediate = Some(LATER);
        let post = Command::Post {
            id: REQUEST,
            operation: Operation::Send { immediate },
            span,
        };
        self.ends.done(Side::Near, &post)?;
        let received = self.completed(Side::Far, RECEIVE)?;
        if received.immediate != immediate {
            let fault =
                format!("a receive was filled by a message that was given up before: {received:?}");
            return Err(Error::Permitted(fault));
        }
        check(Side::Far, received.status, Status::SUCCESS)?;
        let sent = self.wait(Side::Near, REQUEST)?;
        check(Side::Near, sent, Status::SUCCESS)?;
        self.ends.expect_no_more()
    }

    /// Checks that memory that an adapter has pinned is not given to another buffer before it is
    /// deregistered, and cannot be accessed afterwards.
    fn freed(&mut self) -> Result<()> {
        let spare = self.spare(Rights::ALL)?;
        self.ask_spare(SpareCommand::Free)?;
        self.expect(at(self.far, spare), write(0), Status::SUCCESS)?;
        self.untouched()?;
        self.ask_spare(SpareCommand::Deregister)?;
        self.expect_no_access(at(self.far, spare), 0)?;
        self.untouched()
    }

    fn revoked(&mut self) -> Result<()> {
        let spare = self.spare(Rights::ALL)?;
        match self.ask_spare(SpareCommand::Revoke) {
            Err(Error::Failed { .. }) => {}
            Err(error) => return Err(error),
            Ok(()) => {
                let fault = "memory that is pinned was revoked".to_owned();
                return Err(Error::Permitted(fault));
            }
        }
        self.expect(at(self.far, spare), write(0), Status::SUCCESS)?;
        self.ask_spare(SpareCommand::Deregister)?;
        self.ask_spare(SpareCommand::Revoke)?;
        self.expect_no_access(at(self.far, spare), 0)
    }

    /// Counts a permitted request.
    fn permit(&mut self, is_read: bool) {
        let bytes = match is_read {
            true => &mut self.permitted.read,
            false => &mut self.permitted.written,
        };
        *bytes = bytes.saturating_add(LENGTH.into());
    }

    /// Checks that neither a write nor a read at `offset` of the memory at `to` is permitted.
    fn expect_no_access(&mut self, to: Address, offset: u64) -> Result<()> {
        for operation in [write(offset), read(offset)] {
            self.expect(to, operation, Status::REMOTE_ACCESS)?;
        }
        Ok(())
    }

    /// Checks that a request for `to` ends with this status.
    fn expect(&mut self, to: Address, operation: Operation, wanted: Status) -> Result<()> {
        self.ends.done(Side::Near, &Command::Connect(to))?;
        let post = Command::Post {
            id: REQUEST,
            operation,
            span: PART,
        };
        self.ends.done(Side::Near, &post)?;
        let status = self.wait(Side::Near, REQUEST)?;
        check(Side::Near, status, wanted).map_err(|error| {
            let (key, pair) = (to.key, to.queue_pair);
            Error::Permitted(format!(
                "{operation:x?} by key {key:#x} to queue pair {pair}: {error}"
            ))
        })?;
        if wanted == Status::SUCCESS {
            self.permit(matches!(operation, Operation::Read { .. }));
        }
        Ok(())
    }

    /// Returns the status of request `id` of `side`.
    fn wait(&mut self, side: Side, id: u64) -> Result<Status> {
        Ok(self.completed(side, id)?.status)
    }

    /// Returns the completion of request `id` of `side`, which must be the next one.
    fn completed(&mut self, side: Side, id: u64) -> Result<Completed> {
        match self.ends.end(side).ask(&Command::Wait)? {
            Answer::Completed(completed) if completed.id == id => Ok(completed),
            answer => Err(Error::of(answer, &Command::Wait, side.name())),
        }
    }

    /// Returns the status of a message of the near end that is sent again up to `retries` times.
    fn send_beside(&mut self, retries: u8) -> Result<Status> {
        let command = Command::SendBeside {
            id: GIVEN_UP,
            span: PART,
            retries,
        };
        match self.ends.end(Side::Near).ask(&command)? {
            Answer::Completed(completed) if completed.id == GIVEN_UP => Ok(completed.status),
            answer => Err(Error::of(answer, &command, Side::Near.name())),
        }
    }

    fn spare(&mut self, rights: Rights) -> Result<Spare> {
        let command = Command::Spare(SpareCommand::Make(rights));
        match self.ends.end(Side::Far).ask(&command)? {
            Answer::Spare(spare) => Ok(spare),
            answer => Err(Error::of(answer, &command, Side::Far.name())),
        }
    }

    fn pair(&mut self, state: PairState) -> Result<u32> {
        let command = Command::Pair(state);
        match self.ends.end(Side::Far).ask(&command)? {
            Answer::Pair(number) => Ok(number),
            answer => Err(Error::of(answer, &command, Side::Far.name())),
        }
    }

    fn ask_spare(&mut self, command: SpareCommand) -> Result<()> {
        self.ends.done(Side::Far, &Command::Spare(command))
    }

    fn untouched(&mut self) -> Result<()> {
        self.ask_spare(SpareCommand::Expect)
    }
}

/// Returns the same end with other memory.
fn at(end: Address, Spare { key, address }: Spare) -> Address {
    Address {
        key,
        address,
        ..end
    }
}

fn write(remote: u64) -> Operation {
    Operation::Write {
        remote,
        immediate: None,
    }
}

fn read(remote: u64) -> Operation {
    Operation::Read { remote }
}

fn check(side: Side, status: Status, wanted: Status) -> Result<()> {
    match status == wanted {
        true => Ok(()),
        false => Err(Error::Permitted(format!(
            "a request of the {} ended with {status}, not with {wanted}",
            side.name()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeEnd, Flaw};

    /// Returns the results with this flaw of the adapters.
    fn results(flaw: Option<Flaw>, of_gpu: bool) -> Results {
        let (mut near, mut far) = FakeEnd::pair(BYTES.into());
        near.flaw().set(flaw);
        far.flaw().set(flaw);
        let mut ends = Ends::connect(&mut near, &mut far).unwrap();
        let mut results = Results::default();
        // An end that answers with something else ends the check. Its failure is in the results.
        let _ = refuse_all(&mut ends, of_gpu, &mut results);
        results
    }

    #[test]
    fn adapter_that_refuses_everything_passes() {
        let results = results(None, true);
        assert_eq!((results.failures().len(), results.subtests.len()), (0, 13));
    }

    #[test]
    fn transfers_after_refusals_and_writes_to_pinned_memory_pass() {
        let length = u64::from(LENGTH);
        for (of_gpu, written, read) in [(false, 19, 9), (true, 25, 11)] {
            let permitted = results(None, of_gpu).permitted;
            let wanted = Permitted {
                written: written * length,
                read: read * length,
            };
            assert_eq!(permitted, wanted);
        }
    }

    #[test]
    fn anything_that_is_permitted_or_changes_a_byte_is_found() {
        for (flaw, wanted) in [
            (
                Flaw::IgnoresRights,
                "write without the right,read without the right",
            ),
            (
                Flaw::IgnoresKeys,
                "guessed remote keys,deregistered region,buffer that is freed,revoke of a pinned buffer",
            ),
            (
                Flaw::IgnoresRange,
                "the key of another region,beyond the end of a region",
            ),
            (
                Flaw::KeepsRegions,
                "deregistered region,buffer that is freed,revoke of a pinned buffer",
            ),
            (Flaw::IgnoresPairs, "queue pairs in a wrong state"),
            (
                Flaw::IgnoresLength,
                // The completion that it leaves is not the one that the next transfer waits for.
                "message that is too long for its receive,buffer that is freed",
            ),
            (
                Flaw::ReceivesRefused,
                "message that is too long for its receive",
            ),
            (Flaw::LosesUnreceived, "message without a receive"),
            (Flaw::UnreceivedWritesByte, "message without a receive"),
            (
                Flaw::KeepsUnreceived,
                // Each later message arrives after another one.
                "message without a receive,message that is too long for its receive,buffer that is freed,revoke of a pinned buffer",
            ),
            (
                Flaw::LosesPinned,
                "buffer that is freed,revoke of a pinned buffer",
            ),
            (Flaw::FailsOwnTests, "Requests,Registrations"),
        ] {
            let failures = results(Some(flaw), true).failures();
            let names: Vec<&str> = failures
                .iter()
                .filter_map(|line| line.split(": ").next())
                .collect();
            assert_eq!(names.join(","), wanted, "{flaw:?}: {failures:?}");
        }
        for (flaw, side) in [
            (Flaw::RefusedBringsByte, "near end"),
            (Flaw::RefusedWritesByte, "far end"),
            (Flaw::RefusedWritesSpare, "far end"),
        ] {
            let failures = results(Some(flaw), true).failures();
            assert!(!failures.is_empty(), "{flaw:?}");
            assert!(
                failures.iter().all(|line| line.contains(side)),
                "{flaw:?}: {failures:?}"
            );
        }
    }
}
