//! Completion queues in a buffer in the host's memory or a GPU's, polled there.

use std::rc::Rc;

use anyhow::{Context as _, ensure};
use peerbar_gds::ExportPolicy;
use peerbar_verbs::{
    CompletionBuffer, Context, Entry, Operation, ProtectionDomain, QueuePair, Status,
};

use super::TIME_OUT;
use super::loopback::Loopback;
use super::memory::{Memory, MemoryKind, PAGE};
use super::report::{AddResult, refused};

/// Entries of a queue.
pub(super) const ENTRIES: u32 = 16;
/// Bytes of its entries.
const QUEUE: u64 = 32 * ENTRIES as u64;
/// Total number of requests of each direction that a queue pair takes.
const DEPTH: u32 = 256;
/// Bytes of a message.
const LENGTH: u32 = 64;
/// The bytes around the entries.
const BESIDE: u8 = 0x5a;

/// Makes the adapter `nic` complete requests in queues in memory of this kind. `add` gets each
/// result. Returns the number of completions.
pub(crate) fn run(nic: &str, kind: MemoryKind, add: AddResult<'_>) -> anyhow::Result<u64> {
    let fixture = Fixture::new(nic, kind)?;
    add(
        "writes, nearly five times round the queue",
        fixture.writes(),
    );
    add("sends and receives", fixture.messages());
    add("a request that fails", fixture.failure());
    if let MemoryKind::Vram(_) = kind {
        add("buffer that can be revoked", fixture.revocable());
        add("revoke of a queue's buffer", fixture.revoked());
    }
    add("buffer that is too short", fixture.short());
    add("receives that are flushed", fixture.flush());
    add("nothing but the entries", fixture.beside());
    Ok(fixture.sent.consumed() + fixture.received.consumed())
}

/// Two queue pairs, each with a queue in a page of the memory.
struct Fixture {
    ends: Loopback,
    sent: Rc<CompletionBuffer>,
    received: Rc<CompletionBuffer>,
    memory: Rc<Memory>,
    kind: MemoryKind,
}

impl Fixture {
    fn new(nic: &str, kind: MemoryKind) -> anyhow::Result<Self> {
        let context = Context::open(nic)?;
        let domain = ProtectionDomain::new(&context)?;
        let memory = Rc::new(Memory::new(kind, 2 * PAGE)?);
        memory.write(0, &vec![BESIDE; usize::try_from(2 * PAGE)?])?;
        let policy = ExportPolicy::Pinned;
        let queue =
            |offset| anyhow::Ok(Rc::new(queue(&context, &memory, policy, offset, ENTRIES)?));
        let (sent, received) = (queue(0)?, queue(PAGE)?);
        let pair = |queue| ready(&domain, DEPTH, queue);
        Ok(Self {
            ends: Loopback::new(&domain, [pair(&sent)?, pair(&received)?], PAGE)?,
            sent,
            received,
            memory,
            kind,
        })
    }

    fn post(&self, operation: Operation) -> anyhow::Result<()> {
        self.ends.post(0, operation, LENGTH)
    }

    /// Takes the completions of that many requests of the requester, which need not end in order.
    fn take(&self, count: u32, status: Status) -> anyhow::Result<()> {
        let first = self.sent.consumed();
        let all = first..first + u64::from(count);
        let mut missing: Vec<u64> = all.collect();
        for _ in 0..count {
            let entry = self.sent.wait(TIME_OUT)?;
            let done = entry.completion;
            ensure!(!entry.is_receive, "{entry:?} is of a receive");
            ensure!(
                done.queue_pair == self.ends.asking.number(),
                "{entry:?} is of another queue pair"
            );
            ensure!(done.status == status, "{entry:?}, not {status}");
            let position = missing.iter().position(|id| *id == done.id);
            let position = position.with_context(|| format!("{entry:?} is of no request"))?;
            missing.swap_remove(position);
        }
        ensure!(self.sent.poll()?.is_none(), "there is one completion more");
        Ok(())
    }

    /// Posts writes. The last round is not complete, so that later entries are written in both
    /// phases.
    fn writes(&self) -> anyhow::Result<()> {
        for count in [ENTRIES, 1, ENTRIES, ENTRIES, ENTRIES, ENTRIES - 3] {
            for _ in 0..count {
                self.post(Operation::Write(self.ends.there()))?;
            }
            self.take(count, Status::SUCCESS)?;
        }
        Ok(())
    }

    fn messages(&self) -> anyhow::Result<()> {
        for number in 0..2 * ENTRIES {
            let into = self.ends.target.1.local(0, LENGTH);
            self.ends.asked.post_receive(0, into)?;
            self.post(Operation::SendImmediate(number))?;
            self.take(1, Status::SUCCESS)?;
            let entry = self.receive(number)?;
            let done = entry.completion.succeeded()?;
            ensure!(
                (done.bytes, done.immediate) == (LENGTH, Some(number)),
                "the receive of message {number} completes with {entry:?}"
            );
        }
        Ok(())
    }

    fn failure(&self) -> anyhow::Result<()> {
        let mut nowhere = self.ends.there();
        nowhere.key ^= 1;
        self.post(Operation::Write(nowhere))?;
        self.take(1, Status::REMOTE_ACCESS)?;
        self.post(Operation::Read(self.ends.there()))?;
        self.take(1, Status::SUCCESS)
    }

    fn flush(&self) -> anyhow::Result<()> {
        for _ in 0..ENTRIES {
            let into = self.ends.target.1.local(0, LENGTH);
            self.ends.asked.post_receive(0, into)?;
        }
        self.ends.asked.stop()?;
        for number in 2 * ENTRIES..3 * ENTRIES {
            let entry = self.receive(number)?;
            ensure!(
                entry.completion.status == Status::FLUSHED,
                "a receive of a queue pair that is stopped completes with {entry:?}"
            );
        }
        let more = self.received.poll()?;
        ensure!(more.is_none(), "there is one completion more: {more:?}");
        Ok(())
    }

    /// Takes the completion of the receive that was posted after that many others.
    fn receive(&self, number: u32) -> anyhow::Result<Entry> {
        let entry = self.received.wait(TIME_OUT)?;
        let done = entry.completion;
        let wanted = (true, self.ends.asked.number(), u64::from(number));
        ensure!(
            (entry.is_receive, done.queue_pair, done.id) == wanted,
            "receive {number} of queue pair {}: {entry:?} is of another request",
            self.ends.asked.number()
        );
        Ok(entry)
    }

    fn beside(&self) -> anyhow::Result<()> {
        let beside = vec![BESIDE; usize::try_from(PAGE - QUEUE)?];
        for page in [0, PAGE] {
            self.memory.expect(page + QUEUE, &beside)?;
        }
        Ok(())
    }

    fn short(&self) -> anyhow::Result<()> {
        let context = self.ends.domain.context();
        let two_pages = u32::try_from(2 * PAGE / 32)?;
        let queue = queue(context, &self.memory, ExportPolicy::Pinned, PAGE, two_pages);
        refused(queue, libc::EINVAL)
    }

    /// Checks that revocable memory is refused: the kernel's driver must pin memory, which its
    /// exporter does not allow.
    fn revocable(&self) -> anyhow::Result<()> {
        let other = Rc::new(Memory::new(self.kind, PAGE)?);
        let context = self.ends.domain.context();
        let queue = queue(context, &other, ExportPolicy::Revocable, 0, ENTRIES);
        refused(queue, libc::EOPNOTSUPP)
    }

    fn revoked(&self) -> anyhow::Result<()> {
        let revoked = self.memory.buffer()?.revoke();
        ensure!(revoked.is_err(), "memory of a queue was revoked");
        self.post(Operation::Write(self.ends.there()))?;
        self.take(1, Status::SUCCESS)
    }
}

/// Makes a queue in the page at this offset of the memory. The adapter's driver gets a dma-buf with
/// this policy.
pub(super) fn queue(
    context: &Context,
    memory: &Rc<Memory>,
    policy: ExportPolicy,
    page: u64,
    entries: u32,
) -> anyhow::Result<CompletionBuffer> {
    let part = page..page + PAGE;
    let queue = match &**memory {
        Memory::Host(mapping) => {
            CompletionBuffer::in_memory(context, mapping.clone(), part, entries)
        }
        Memory::Vram(buffer, _) => {
            let dma_buf = buffer.export_as(policy)?;
            CompletionBuffer::in_dma_buf(context, dma_buf, memory.clone(), part, entries)
        }
    };
    Ok(queue?)
}

/// Makes a queue pair that sends and receives, with its completions in this queue.
pub(super) fn ready(
    domain: &ProtectionDomain,
    depth: u32,
    queue: &Rc<CompletionBuffer>,
) -> anyhow::Result<QueuePair> {
    let pair = QueuePair::with_buffer(domain, depth, queue)?;
    pair.start(0)?;
    Ok(pair)
}
