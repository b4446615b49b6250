//! Requests in progress while a part of the transfer dies, and what is left afterwards.

use std::io::Write as _;

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use peerbar_rdma_end::{Command, Ends, Operation, Span, Way};
use peerbar_verbs::Status;

use super::DEPTH;
use super::end::{self, LocalEnd};
use super::memory::MemoryKind;
use super::report::Report;
use super::slots::{SIZE, Slots};
use super::transfers::memory_size;

/// Requests that succeed before anything dies.
const BEFORE: u64 = 64;
/// Requests that may succeed once it was asked for: the death comes sooner.
const AFTER: u64 = 1 << 20;

/// Which part dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// The adapter that is asked.
    Peer,
    /// The memory of the one that asks.
    Source,
    /// The memory of the one that is asked.
    Target,
    /// What joins the adapters.
    Fabric,
}

impl Part {
    /// How requests end without it.
    fn status(self) -> Status {
        match self {
            Self::Peer | Self::Fabric => Status::RESPONSE_TIMEOUT,
            Self::Source => Status::LOCAL_PROTECTION,
            Self::Target => Status::REMOTE_ACCESS,
        }
    }
}

/// What is in progress then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Requests {
    /// Writes from the memory of the one that asks to that of the other.
    Writes,
    /// Reads into the memory of the one that asks.
    Reads,
}

impl Requests {
    /// The part whose memory they change.
    fn target(self) -> Part {
        match self {
            Self::Writes => Part::Target,
            Self::Reads => Part::Source,
        }
    }
}

/// Has the adapter `nic` with the first of `kinds` ask `peer` with the second until `part` dies, which the line "under load" asks for.
pub(crate) fn run(
    nic: &str,
    peer: &str,
    kinds: [MemoryKind; 2],
    (part, requests): (Part, Requests),
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut load = Load::start(nic, peer, kinds, (part, requests))?;
    report.add("requests in progress and later ones fail", load.run());
    if part == requests.target() {
        // Its memory is gone. What a request reads must still be there.
        report.add("the source is untouched", load.expect_source());
    } else {
        report.add("the target has what was acknowledged", load.expect_target());
    }
    drop(load);
    report.add(format!("{nic} goes on"), works(nic, nic));
    if part != Part::Peer {
        report.add(format!("{peer} goes on"), works(peer, peer));
    }
    if matches!(part, Part::Source | Part::Target) {
        report.add(format!("{nic} and {peer} go on"), works(nic, peer));
    }
    Ok(())
}

/// Requests in progress.
struct Load {
    near: LocalEnd,
    far: LocalEnd,
    part: Part,
    requests: Requests,
    slots: Slots,
}

impl Load {
    fn start(
        nic: &str,
        peer: &str,
        [from, to]: [MemoryKind; 2],
        (part, requests): (Part, Requests),
    ) -> anyhow::Result<Self> {
        let mut near = LocalEnd::open(nic, from, Slots::bytes())?;
        let mut far = LocalEnd::open(peer, to, Slots::bytes())?;
        end::connect(&mut near, &mut far)?;
        let slots = Slots::new(fastrand::u64(..));
        match requests {
            Requests::Writes => slots.fill(&mut near, &mut far)?,
            Requests::Reads => slots.fill(&mut far, &mut near)?,
        }
        Ok(Self {
            near,
            far,
            part,
            requests,
            slots,
        })
    }

    /// Returns once all requests in progress have failed, and one more.
    fn run(&mut self) -> anyhow::Result<()> {
        for _ in 0..DEPTH {
            self.post()?;
        }
        let mut succeeded = 0;
        while self.succeeds()? {
            succeeded += 1;
            if succeeded == BEFORE {
                println!("# under load");
                std::io::stdout().flush()?;
            }
            ensure!(
                succeeded < BEFORE + AFTER,
                "{AFTER} requests have succeeded since the death was asked for"
            );
            self.post()?;
        }
        ensure!(succeeded >= BEFORE, "a request failed before anything died");
        // Those were posted before the first one failed, and requests need not complete in order.
        for _ in 1..DEPTH {
            self.succeeds()?;
        }
        self.post()?;
        ensure!(
            !self.succeeds()?,
            "a request succeeds after all others failed"
        );
        Ok(())
    }

    fn expect_target(&self) -> anyhow::Result<()> {
        let target = match self.requests {
            Requests::Writes => &self.far,
            Requests::Reads => &self.near,
        };
        self.slots.expect_target(&target.read(Slots::bytes())?)
    }

    fn expect_source(&mut self) -> anyhow::Result<()> {
        let source = match self.requests {
            Requests::Writes => &mut self.near,
            Requests::Reads => &mut self.far,
        };
        self.slots.expect_source(source)
    }

    fn post(&mut self) -> anyhow::Result<()> {
        let request = self.slots.next()?;
        let (operation, offset) = match self.requests {
            Requests::Writes => {
                let (remote, immediate) = (request.target, None);
                (Operation::Write { remote, immediate }, request.source)
            }
            Requests::Reads => {
                let remote = request.source;
                (Operation::Read { remote }, request.target)
            }
        };
        let length = SIZE;
        let command = Command::Post {
            id: request.id,
            operation,
            span: Span { offset, length },
        };
        end::done(&mut self.near, &command)
    }

    /// Waits for a completion. One that fails must do so as it is right for the part that died.
    fn succeeds(&mut self) -> anyhow::Result<bool> {
        let done = end::completed(&mut self.near).context("a request does not end")?;
        let has_succeeded = done.status == Status::SUCCESS.0;
        self.slots.complete(done.id, has_succeeded)?;
        let wanted = self.part.status();
        ensure!(
            has_succeeded || done.status == wanted.0,
            "request {} ended with {}, not with {wanted}",
            done.id,
            done.meaning
        );
        Ok(has_succeeded)
    }
}

/// New ends with guest RAM transfer in each way.
fn works(nic: &str, peer: &str) -> anyhow::Result<()> {
    let end = |nic| LocalEnd::open(nic, MemoryKind::Host, memory_size(&[SIZE]));
    let mut ends = Ends::connect(end(nic)?, end(peer)?)?;
    for way in Way::ALL {
        let length = if ends.takes(way, SIZE) { SIZE } else { 4096 };
        ends.transfer(way, length, fastrand::u64(..))
            .with_context(|| format!("a {way} of {length} bytes"))?;
    }
    Ok(())
}
