//! Sends, writes and reads between two queue pairs.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use peerbar_verbs::{
    Access, AddressHandle, Completion, Context, Operation, Peer, ProtectionDomain, QueuePair,
    Region,
};

use super::memory::{Memory, MemoryKind};
use super::report::Report;
use super::{DEPTH, PATIENCE};

/// Bytes around what is transferred, which must stay as they are.
const MARGIN: u64 = 64;
/// What they are.
const UNTOUCHED: u8 = 0xa5;

/// Transfers each of `sizes` from `kinds[0]` of the adapter `nic` to `kinds[1]` of `peer`, in each way that there is.
pub(crate) fn run(
    nic: &str,
    peer: &str,
    [from, to]: [MemoryKind; 2],
    sizes: &[u32],
    report: &mut Report,
) -> anyhow::Result<()> {
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let (sender, receiver) = (
        Side::open(nic, from, largest)?,
        Side::open(peer, to, largest)?,
    );
    let pair = Connected::new(sender, receiver)?;
    let message = pair.sender.context().largest_message()?;
    for &size in sizes {
        for way in [Way::Write, Way::WriteImmediate, Way::Read] {
            pair.report(way, size, report);
        }
        if size <= message {
            for way in [Way::Send, Way::SendImmediate] {
                pair.report(way, size, report);
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Write,
    WriteImmediate,
    Read,
    Send,
    SendImmediate,
}

impl Way {
    fn word(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::WriteImmediate => "write with immediate data",
            Self::Read => "read",
            Self::Send => "send",
            Self::SendImmediate => "send with immediate data",
        }
    }
}

/// An adapter, a queue pair of it, and memory.
struct Side {
    domain: ProtectionDomain,
    pair: QueuePair,
    region: Region,
    memory: Memory,
}

impl Side {
    fn open(nic: &str, kind: MemoryKind, largest: u32) -> anyhow::Result<Self> {
        let context = Context::open(nic)?;
        let domain = ProtectionDomain::new(&context)?;
        let pair = QueuePair::ready(&domain, DEPTH)?;
        let memory = Memory::new(kind, u64::from(largest).saturating_add(2 * MARGIN))?;
        let region = memory.register(&domain, Access::ALL)?;
        Ok(Self {
            domain,
            pair,
            region,
            memory,
        })
    }

    fn context(&self) -> &Context {
        self.domain.context()
    }

    /// Gives all of its memory one value.
    fn fill(&self, value: u8) -> anyhow::Result<()> {
        let size = usize::try_from(self.memory.size())?;
        self.memory.write(0, &vec![value; size])
    }
}

/// Two sides, each of which knows the other's address: an adapter permits RDMA to those only that it knows.
struct Connected {
    sender: Side,
    receiver: Side,
    to_receiver: Peer,
    _to_sender: AddressHandle,
}

impl Connected {
    fn new(sender: Side, receiver: Side) -> anyhow::Result<Self> {
        let handle = AddressHandle::new(&sender.domain, receiver.context().gid()?)?;
        let to_sender = AddressHandle::new(&receiver.domain, sender.context().gid()?)?;
        let to_receiver = Peer::of(handle, &receiver.pair);
        Ok(Self {
            sender,
            receiver,
            to_receiver,
            _to_sender: to_sender,
        })
    }

    /// Reports a transfer, and counts it if it succeeds.
    fn report(&self, way: Way, size: u32, report: &mut Report) {
        let moved = self.transfer(way, size);
        if let Ok(elapsed) = moved {
            report.count(size.into(), elapsed);
        }
        report.add(format!("{} {size}", way.word()), moved.map(drop));
    }

    /// Moves `size` fresh bytes, and checks them and those around them. Returns the time from the request to its completion.
    fn transfer(&self, way: Way, size: u32) -> anyhow::Result<Duration> {
        let immediate = fastrand::u32(..);
        let (source, target) = match way {
            Way::Read => (&self.receiver, &self.sender),
            _ => (&self.sender, &self.receiver),
        };
        source.fill(0)?;
        target.fill(UNTOUCHED)?;
        let mut bytes = vec![0; usize::try_from(size)?];
        fastrand::fill(&mut bytes);
        source.memory.write(MARGIN, &bytes)?;
        let remote = self.receiver.region.remote(MARGIN);
        let operation = match way {
            Way::Write => Operation::Write(remote),
            Way::WriteImmediate => Operation::WriteImmediate(remote, immediate),
            Way::Read => Operation::Read(remote),
            Way::Send => Operation::Send,
            Way::SendImmediate => Operation::SendImmediate(immediate),
        };
        let is_received = matches!(way, Way::Send | Way::SendImmediate | Way::WriteImmediate);
        if is_received {
            let into = self.receiver.region.local(MARGIN, size);
            self.receiver.pair.post_receive(1, into)?;
        }
        let local = self.sender.region.local(MARGIN, size);
        let pair = &self.sender.pair;
        let start = Instant::now();
        pair.post(2, operation, local, &self.to_receiver)?;
        let sent = pair.wait(PATIENCE).context("the sender")?.succeeded()?;
        let elapsed = start.elapsed();
        ensure!(sent.id == 2, "request 2 completed as {}", sent.id);
        if is_received {
            let received = self.receiver.pair.wait(PATIENCE).context("the receiver")?;
            let wants = matches!(way, Way::WriteImmediate | Way::SendImmediate);
            check_receive(received.succeeded()?, size, wants.then_some(immediate))?;
        }
        let margin = [UNTOUCHED; 64];
        let end = MARGIN.saturating_add(size.into());
        target.memory.expect(MARGIN, &bytes)?;
        target
            .memory
            .expect(0, &margin)
            .context("before the data")?;
        target
            .memory
            .expect(end, &margin)
            .context("after the data")?;
        Ok(elapsed)
    }
}

fn check_receive(received: Completion, size: u32, immediate: Option<u32>) -> anyhow::Result<()> {
    ensure!(
        received.id == 1 && received.bytes == size && received.immediate == immediate,
        "receive 1 of {size} bytes with immediate data {immediate:?} completed as {received:?}"
    );
    Ok(())
}
