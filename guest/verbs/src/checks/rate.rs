//! The rate at which an adapter executes requests.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use clap::ValueEnum;
use peerbar_rdma_end::{Answer, Command, Content, End as _, Operation, Span};
use peerbar_report::RdmaRate;
use peerbar_verbs::Status;

use super::DEPTH;
use super::end::{self, LocalEnd};
use super::memory::MemoryKind;

/// The content of the target before the first request.
const UNTOUCHED: Content = Content::Value(0xa5);

/// The kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Messages to receives of the other adapter.
    Sends,
    /// Writes to the other's memory.
    Writes,
    /// Reads of the other's memory.
    Reads,
}

/// Lets the adapter `nic`, with memory of the first of `kinds`, send `peer` requests of one kind
/// and size, [`DEPTH`] in progress. For `time`, each one that completes is followed by another.
/// Every byte is compared in the end. Prints a [`RdmaRate`] as a line of JSON.
pub(crate) fn run(
    nic: &str,
    peer: &str,
    [from, to]: [MemoryKind; 2],
    (kind, size): (Kind, u32),
    time: Duration,
) -> anyhow::Result<()> {
    let bytes = u64::from(size).saturating_mul(DEPTH.into());
    let mut load = Load {
        near: LocalEnd::open(nic, from, bytes)?,
        far: LocalEnd::open(peer, to, bytes)?,
        kind,
        size,
        seed: fastrand::u64(..),
    };
    end::connect(&mut load.near, &mut load.far)?;
    load.fill()?;
    let rate = load.run(time)?;
    load.expect()?;
    println!("{}", serde_json::to_string(&rate)?);
    Ok(())
}

/// Requests in progress, each with its own slot in both memories. A request's number is that of its
/// slot.
struct Load {
    near: LocalEnd,
    far: LocalEnd,
    kind: Kind,
    size: u32,
    seed: u64,
}

impl Load {
    fn run(&mut self, time: Duration) -> anyhow::Result<RdmaRate> {
        let slots = u64::from(DEPTH);
        if self.kind == Kind::Sends {
            (0..slots).try_for_each(|slot| self.receive(slot))?;
        }
        let start = Instant::now();
        (0..slots).try_for_each(|slot| self.post(slot))?;
        let (mut requests, mut posted) = (0, slots);
        while requests < posted {
            let slot = self.complete()?;
            requests += 1;
            if start.elapsed() < time {
                self.post(slot)?;
                posted += 1;
            }
        }
        Ok(RdmaRate {
            requests,
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// Waits until a request has been executed. Returns the slot for the next one.
    fn complete(&mut self) -> anyhow::Result<u64> {
        let sent = succeeded(&mut self.near)?;
        if self.kind != Kind::Sends {
            return Ok(sent);
        }
        // Messages need not arrive in order: a completed send means that some posted receive has
        // taken it.
        let received = succeeded(&mut self.far)?;
        self.receive(received)?;
        Ok(sent)
    }

    fn receive(&mut self, slot: u64) -> anyhow::Result<()> {
        let span = self.span(slot);
        end::done(&mut self.far, &Command::Receive { id: slot, span })
    }

    fn post(&mut self, slot: u64) -> anyhow::Result<()> {
        let span = self.span(slot);
        let (remote, immediate) = (span.offset, None);
        let operation = match self.kind {
            Kind::Sends => Operation::Send { immediate },
            Kind::Writes => Operation::Write { remote, immediate },
            Kind::Reads => Operation::Read { remote },
        };
        let id = slot;
        let post = Command::Post {
            id,
            operation,
            span,
        };
        end::done(&mut self.near, &post)
    }

    /// Fills the source with its content, and the target with another one.
    fn fill(&mut self) -> anyhow::Result<()> {
        for slot in 0..DEPTH.into() {
            let (span, content) = (self.span(slot), self.content(slot));
            let [source, target] = self.sides();
            end::done(source, &Command::Put { span, content })?;
            let content = UNTOUCHED;
            end::done(target, &Command::Put { span, content })?;
        }
        Ok(())
    }

    /// Compares the target with the expected content.
    fn expect(&mut self) -> anyhow::Result<()> {
        for slot in 0..DEPTH.into() {
            let wanted = Command::expect(self.span(slot), self.content(slot));
            let [_, target] = self.sides();
            match target.ask(&wanted)? {
                Answer::Done => {}
                answer => bail!("slot {slot} after the requests: {answer:?}"),
            }
        }
        Ok(())
    }

    /// Returns a slot's content. Any receive may take any message, so all messages are
    /// alike.
    fn content(&self, slot: u64) -> Content {
        Content::Seed(match self.kind {
            Kind::Sends => self.seed,
            Kind::Writes | Kind::Reads => self.seed.wrapping_add(slot),
        })
    }

    /// Returns the end with the source, and the one with the target.
    fn sides(&mut self) -> [&mut LocalEnd; 2] {
        match self.kind {
            Kind::Sends | Kind::Writes => [&mut self.near, &mut self.far],
            Kind::Reads => [&mut self.far, &mut self.near],
        }
    }

    fn span(&self, slot: u64) -> Span {
        Span {
            offset: slot.saturating_mul(self.size.into()),
            length: self.size,
        }
    }
}

/// Returns the number of the next request of `end` that completes, which must have succeeded.
fn succeeded(end: &mut LocalEnd) -> anyhow::Result<u64> {
    let done = end::completed(end)?;
    ensure!(
        done.status == Status::SUCCESS,
        "request {} ended with {}",
        done.id,
        done.status
    );
    Ok(done.id)
}
