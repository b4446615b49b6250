//! A completion queue in memory of a GPU that dies while requests complete in it.

use std::rc::Rc;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use peerbar_gds::ExportPolicy;
use peerbar_verbs::{CompletionBuffer, Context, Operation, ProtectionDomain, QueuePair, Status};

use super::TIME_OUT;
use super::completions::{ENTRIES, queue, ready};
use super::loopback::Loopback;
use super::memory::{Memory, MemoryKind, PAGE};
use super::report::refused;

/// Number of requests that complete before the memory is lost.
const BEFORE: u64 = 64;
/// Total number of requests that a queue pair takes.
const DEPTH: u32 = 256;
/// Bytes of a write.
const LENGTH: u32 = 8;

/// Writes of 8 bytes each, which contain the number of the write, one after the other.
pub(crate) struct Load {
    /// The requesting queue pair is replaced once it has taken its total number of requests.
    ends: Loopback,
    /// A queue pair with a receive that no message arrives for, which uses the same queue.
    idle: QueuePair,
    queue: Rc<CompletionBuffer>,
    /// Writes posted in total, and by this queue pair.
    posted: u64,
    of_pair: u32,
    /// The end of the writes: the failure of their queue pair, or a mistake.
    ended: Option<anyhow::Result<()>>,
}

impl Load {
    /// Starts writes of the adapter `nic` with a queue in memory of this kind. Returns once some have
    /// completed.
    pub(crate) fn start(nic: &str, kind: MemoryKind) -> anyhow::Result<Self> {
        let mut load = Self::new(nic, kind)?;
        while load.posted < BEFORE {
            ensure!(
                load.write()?,
                "the queue pair has failed before the memory died"
            );
        }
        Ok(load)
    }

    fn new(nic: &str, kind: MemoryKind) -> anyhow::Result<Self> {
        let context = Context::open(nic)?;
        let domain = ProtectionDomain::new(&context)?;
        let memory = Rc::new(Memory::new(kind, PAGE)?);
        let queue = queue(&context, &memory, ExportPolicy::Pinned, 0, ENTRIES)?;
        let queue = Rc::new(queue);
        let pair = ready(&domain, DEPTH, &queue)?;
        let asked = QueuePair::ready(&domain, 1, 0)?;
        let ends = Loopback::new(&domain, [pair, asked], PAGE)?;
        let idle = ready(&domain, 1, &queue)?;
        idle.post_receive(0, ends.target.1.local(LENGTH.into(), LENGTH))?;
        Ok(Self {
            ends,
            idle,
            queue,
            posted: 0,
            of_pair: 0,
            ended: None,
        })
    }

    /// Executes a write. Returns `false` once the writes have ended.
    pub(crate) fn go_on(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = match self.write() {
                Ok(true) => None,
                Ok(false) => Some(Ok(())),
                Err(error) => Some(Err(error)),
            };
        }
        self.ended.is_none()
    }

    /// Continues until the queue pairs have failed.
    pub(crate) fn lose(mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + TIME_OUT;
        while self.go_on() {
            ensure!(
                Instant::now() < deadline,
                "the adapter completes requests in memory that should have died"
            );
        }
        self.ended.take().unwrap_or(Ok(()))?;
        let idle = self.idle.has_failed()?;
        ensure!(idle, "the other queue pair of the queue is not in error");
        let another = refused(ready(&self.ends.domain, 1, &self.queue), libc::EINVAL);
        another.context("a queue pair of a queue that has failed")?;
        let told = self.queue.poll()?;
        let is_told = told.is_some_and(|it| it.completion.status == Status::SUCCESS);
        ensure!(!is_told, "{told:?} was told by a queue that is gone");
        Ok(())
    }

    /// Posts a write, and returns `true` if it completes.
    fn write(&mut self) -> anyhow::Result<bool> {
        self.post()?;
        self.completes()
    }

    /// Posts a write of its number.
    fn post(&mut self) -> anyhow::Result<()> {
        if self.of_pair == DEPTH {
            self.ends.asking = ready(&self.ends.domain, DEPTH, &self.queue)?;
            self.of_pair = 0;
        }
        self.posted += 1;
        let source = &self.ends.source.0;
        source.write(0, &self.posted.to_le_bytes())?;
        self.ends
            .post(0, Operation::Write(self.ends.there()), LENGTH)?;
        self.of_pair += 1;
        Ok(())
    }

    /// Waits until the last write completes, after which its target must contain it, or its queue
    /// pair fails. Returns `true` if it completes.
    fn completes(&self) -> anyhow::Result<bool> {
        let deadline = Instant::now() + TIME_OUT;
        loop {
            if let Some(entry) = self.queue.poll()? {
                let done = entry.completion.succeeded();
                done.with_context(|| format!("write {} has completed with an error", self.posted))?;
                let there = self.ends.target.0.mapping().load64(0)?;
                ensure!(
                    there == self.posted,
                    "write {} has completed, and its target has {there}",
                    self.posted
                );
                return Ok(true);
            }
            if self.ends.asking.has_failed()? {
                return Ok(false);
            }
            ensure!(
                Instant::now() < deadline,
                "write {} neither completes nor fails its queue pair",
                self.posted
            );
            thread::yield_now();
        }
    }
}
