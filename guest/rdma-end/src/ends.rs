//! Two ends, and transfers between them.

use std::fmt;
use std::time::Duration;

use crate::end::End;
use crate::error::{Error, Result};
use crate::load::{WorkloadCommand, WorkloadOutcome};
use crate::message::{
    Address, Answer, Command, Completed, Content, Operation, OwnResults, OwnTests, Span,
};
use crate::status::Status;

/// Bytes of memory before and after the transferred ones that must stay unchanged: a page.
pub const MARGIN: u64 = 4096;

/// A transfer without a disk starts this number of bytes before a page.
const BEFORE_PAGE: u64 = 64;

/// Content of the receiving end's memory before a transfer.
const UNTOUCHED: u8 = 0xa5;
/// Numbers of the work requests.
const RECEIVE: u64 = 1;
const REQUEST: u64 = 2;

/// The way in which bytes go from one end to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The near end writes them to the far one.
    Write,
    /// The same, and a receive of the far end completes.
    WriteImmediate,
    /// The near end reads them from the far one.
    Read,
    /// The near end sends them.
    Send,
    /// The same with immediate data.
    SendImmediate,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Write,
        Self::WriteImmediate,
        Self::Read,
        Self::Send,
        Self::SendImmediate,
    ];

    /// Returns `true` if it takes a receive of the other end.
    fn is_received(self) -> bool {
        !matches!(self, Self::Write | Self::Read)
    }

    fn immediate(self, seed: u64) -> Option<u32> {
        let data = u32::try_from(seed & u64::from(u32::MAX)).unwrap_or(0);
        matches!(self, Self::WriteImmediate | Self::SendImmediate).then_some(data)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::WriteImmediate => "write with immediate data",
            Self::Read => "read",
            Self::Send => "send",
            Self::SendImmediate => "send with immediate data",
        })
    }
}

/// One of two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first requester.
    Near,
    /// The other end.
    Far,
}

impl Side {
    /// Returns the other side.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Near => "near end",
            Self::Far => "far end",
        }
    }
}

/// Two ends that know each other's address.
pub struct Ends<'a> {
    ends: [&'a mut dyn End; 2],
    addresses: [Address; 2],
}

impl<'a> Ends<'a> {
    /// Tells each end the other's address.
    ///
    /// # Errors
    /// As for [`Ends::transfer`].
    pub fn connect(near: &'a mut dyn End, far: &'a mut dyn End) -> Result<Self> {
        let unknown = Address {
            gid: std::net::Ipv6Addr::UNSPECIFIED,
            queue_pair: 0,
            key: 0,
            address: 0,
            size: 0,
            largest_message: 0,
        };
        let mut ends = Self {
            ends: [near, far],
            addresses: [unknown; 2],
        };
        ends.addresses = [ends.address(Side::Near)?, ends.address(Side::Far)?];
        let [near, far] = ends.addresses;
        ends.done(Side::Near, &Command::Connect(far))?;
        ends.done(Side::Far, &Command::Connect(near))?;
        Ok(ends)
    }

    /// Returns the near end's address, then the far one's.
    pub fn addresses(&self) -> [Address; 2] {
        self.addresses
    }

    /// Returns `true` if `way` can move `length` bytes: a send is one message.
    pub fn takes(&self, way: Way, length: u32) -> bool {
        let [near, far] = self.addresses;
        let message = near.largest_message.min(far.largest_message);
        !matches!(way, Way::Send | Way::SendImmediate) || length <= message
    }

    /// Moves `length` bytes of the content of `seed`, and compares them and the bytes around them.
    /// Returns the time from the request to its completion.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn transfer(&mut self, way: Way, length: u32, seed: u64) -> Result<Duration> {
        let (source, target) = match way {
            Way::Read => (Side::Far, Side::Near),
            _ => (Side::Near, Side::Far),
        };
        let page = self.prepare(target, length)?;
        let offset = page.offset.saturating_sub(BEFORE_PAGE);
        let span = Span { offset, ..page };
        self.fill(source, length, 0)?;
        let content = Content::Seed(seed);
        self.done(source, &Command::Put { span, content })?;
        let elapsed = self.carry(way, Side::Near, span, seed)?;
        self.done(target, &Command::expect(span, content))?;
        self.expect_margins(target, span)?;
        self.expect_no_more()?;
        Ok(elapsed)
    }

    /// Fills the memory of `target` with other content than a transfer's, and returns the range for
    /// a transfer of `length` bytes.
    pub(crate) fn prepare(&mut self, target: Side, length: u32) -> Result<Span> {
        let needed = u64::from(length).saturating_add(2 * MARGIN);
        for (side, address) in [Side::Near, Side::Far].into_iter().zip(self.addresses) {
            if address.size < needed {
                return Err(Error::TooSmall {
                    side: side.name(),
                    length,
                    needed,
                    size: address.size,
                });
            }
        }
        self.fill(target, length, UNTOUCHED)?;
        Ok(Span {
            offset: MARGIN,
            length,
        })
    }

    /// Fills the memory of `side` with one value, as far as a transfer of `length` bytes and the
    /// margins around it extend.
    fn fill(&mut self, side: Side, length: u32, value: u8) -> Result<()> {
        let margins = u32::try_from(2 * MARGIN).unwrap_or(u32::MAX);
        let span = Span {
            offset: 0,
            length: length.saturating_add(margins),
        };
        let content = Content::Value(value);
        self.done(side, &Command::Put { span, content })
    }

    /// Checks that the memory around `span` is unchanged.
    pub(crate) fn expect_margins(&mut self, target: Side, span: Span) -> Result<()> {
        let end = span.offset.saturating_add(span.length.into());
        let before = u32::try_from(span.offset).unwrap_or(u32::MAX);
        let after = u32::try_from(MARGIN).unwrap_or(u32::MAX);
        for (offset, length) in [(0, before), (end, after)] {
            let span = Span { offset, length };
            self.done(target, &Command::expect(span, Content::Value(UNTOUCHED)))?;
        }
        Ok(())
    }

    /// Makes `asking` move the bytes of `span` by `way`, from the memory of one end to the same
    /// offset of the other.
    pub(crate) fn carry(
        &mut self,
        way: Way,
        asking: Side,
        span: Span,
        seed: u64,
    ) -> Result<Duration> {
        let immediate = way.immediate(seed);
        let remote = span.offset;
        let operation = match way {
            Way::Write | Way::WriteImmediate => Operation::Write { remote, immediate },
            Way::Read => Operation::Read { remote },
            Way::Send | Way::SendImmediate => Operation::Send { immediate },
        };
        let asked = asking.other();
        if way.is_received() {
            self.done(asked, &Command::Receive { id: RECEIVE, span })?;
        }
        let post = Command::Post {
            id: REQUEST,
            operation,
            span,
        };
        self.done(asking, &post)?;
        let sent = self.completed(asking)?;
        let is_right = sent.id == REQUEST;
        self.check(asking, &sent, is_right, &format!("request {REQUEST}"))?;
        if way.is_received() {
            let seen = self.completed(asked)?;
            let length = span.length;
            let is_right =
                seen.id == RECEIVE && seen.bytes == length && seen.immediate == immediate;
            let wanted =
                format!("receive {RECEIVE} of {length} bytes with immediate data {immediate:?}");
            self.check(asked, &seen, is_right, &wanted)?;
        }
        Ok(Duration::from_nanos(sent.nanoseconds))
    }

    /// Makes `side` execute `command`, whose only answer is that it is done.
    pub(crate) fn done(&mut self, side: Side, command: &Command) -> Result<()> {
        match self.end(side).ask(command)? {
            Answer::Done => Ok(()),
            answer => Err(Error::of(answer, command, side.name())),
        }
    }

    /// Sends `side` this command about its requests in progress.
    pub(crate) fn workload(&mut self, side: Side, command: WorkloadCommand) -> Result<()> {
        self.done(side, &Command::Workload(command))
    }

    /// Makes `side` end its requests in progress, and flush its receives if `flush` is set.
    pub(crate) fn finish(&mut self, side: Side, flush: bool) -> Result<WorkloadOutcome> {
        let command = Command::Workload(WorkloadCommand::Finish { flush });
        match self.end(side).ask(&command)? {
            Answer::Outcome(outcome) => Ok(outcome),
            answer => Err(Error::of(answer, &command, side.name())),
        }
    }

    /// Makes `side` run tests that need no other end.
    pub(crate) fn own_tests(&mut self, side: Side, tests: OwnTests) -> Result<OwnResults> {
        let command = Command::OwnTests(tests);
        match self.end(side).ask(&command)? {
            Answer::Tested(tested) => Ok(tested),
            answer => Err(Error::of(answer, &command, side.name())),
        }
    }

    fn address(&mut self, side: Side) -> Result<Address> {
        let command = Command::Address;
        match self.end(side).ask(&command)? {
            Answer::Address(address) => Ok(address),
            answer => Err(Error::of(answer, &command, side.name())),
        }
    }

    /// Returns the next completion of `side`, which must be successful.
    fn completed(&mut self, side: Side) -> Result<Completed> {
        let command = Command::Wait;
        match self.end(side).ask(&command)? {
            Answer::Completed(done) if done.status == Status::SUCCESS => Ok(done),
            Answer::Completed(done) => Err(Error::Request {
                side: side.name(),
                id: done.id,
                status: done.status,
            }),
            answer => Err(Error::of(answer, &command, side.name())),
        }
    }

    /// Checks that neither end has a completion that was not waited for.
    pub(crate) fn expect_no_more(&mut self) -> Result<()> {
        let command = Command::Poll;
        for side in [Side::Near, Side::Far] {
            match self.end(side).ask(&command)? {
                Answer::Done => {}
                Answer::Completed(seen) => {
                    return Err(Error::OneMore {
                        side: side.name(),
                        seen: format!("{seen:?}"),
                    });
                }
                answer => return Err(Error::of(answer, &command, side.name())),
            }
        }
        Ok(())
    }

    fn check(&self, side: Side, seen: &Completed, is_right: bool, wanted: &str) -> Result<()> {
        if is_right {
            return Ok(());
        }
        Err(Error::Completion {
            side: side.name(),
            wanted: wanted.to_owned(),
            seen: format!("{seen:?}"),
        })
    }

    /// Returns one of the ends.
    pub(crate) fn end(&mut self, side: Side) -> &mut dyn End {
        let [near, far] = &mut self.ends;
        match side {
            Side::Near => *near,
            Side::Far => *far,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeEnd, Flaw};
    use crate::load::MESSAGE;

    #[test]
    fn each_way_moves_the_content() {
        let (mut near, mut far) = FakeEnd::pair(5 * MARGIN);
        let mut ends = Ends::connect(&mut near, &mut far).unwrap();
        for way in Way::ALL {
            for length in [1, 100, 4096] {
                assert!(ends.takes(way, length));
                ends.transfer(way, length, 3).unwrap();
            }
            let is_send = matches!(way, Way::Send | Way::SendImmediate);
            assert_eq!(ends.takes(way, MESSAGE + 1), !is_send, "{way}");
        }
    }

    #[test]
    fn transfer_with_a_flaw_fails_and_names_the_end() {
        for (flaw, way, wanted) in [
            (Flaw::LastByte, Way::Write, "far end: byte 99 of 100"),
            (Flaw::LastByte, Way::Read, "near end: byte 99 of 100"),
            (Flaw::OneByteMore, Way::Send, "far end: byte 0 of 4096"),
            (Flaw::OneByteMore, Way::Read, "near end: byte 0 of 4096"),
            (
                Flaw::OtherImmediate,
                Way::SendImmediate,
                "far end: receive 1",
            ),
            (
                Flaw::OtherImmediate,
                Way::WriteImmediate,
                "far end: receive 1",
            ),
            (Flaw::Refused, Way::Write, "near end: work request 2 ended"),
            (
                Flaw::OtherNumber,
                Way::Write,
                "near end: request 2 completed",
            ),
            (
                Flaw::CompletesTwice,
                Way::Read,
                "near end: Completed { id: 2,",
            ),
            (
                Flaw::ReceivesTwice,
                Way::Send,
                "far end: Completed { id: 1,",
            ),
        ] {
            let (mut near, mut far) = FakeEnd::pair(4 * MARGIN);
            near.set(flaw);
            let mut ends = Ends::connect(&mut near, &mut far).unwrap();
            let error = ends.transfer(way, 100, 5).unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{flaw:?}, {way}: {error}");
        }
    }

    #[test]
    fn transfer_that_leaves_no_margin_is_refused() {
        let (mut near, mut far) = FakeEnd::pair(2 * MARGIN);
        let mut ends = Ends::connect(&mut near, &mut far).unwrap();
        let error = ends.transfer(Way::Write, 1, 0).unwrap_err().to_string();
        assert!(error.ends_with("needs 8193 bytes of memory: the near end has 8192"));
    }
}
