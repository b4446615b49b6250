//! One end of a transfer: an adapter, one of its queue pairs, and memory.

use std::collections::VecDeque;
use std::io;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use peerbar_gds::{FileOptions, GpuFile, Policy};
use peerbar_rdma_end::{
    self as rdma_end, Address, Answer, Command, Completed, End, OwnResults, OwnTests, Span, Tested,
};
use peerbar_verbs::{
    AccessFlags, AddressHandle, Completion, Context, Gid, Operation, Peer, ProtectionDomain,
    QueuePair, Region, Remote,
};

use super::memory::{Memory, MemoryKind, compared};
use super::spare::{self, SpareMemory};
use super::{DEPTH, TIME_OUT, completions, completions_lost, refusals, vram};

/// Number of files that stay open, for transfers one after the other.
const OPEN_FILES: usize = 4;

/// Number of tries to send a message for which the other side has no receive yet: unlimited.
const ENDLESSLY: u8 = 7;

/// An end in this process.
pub(crate) struct LocalEnd {
    domain: ProtectionDomain,
    pair: QueuePair,
    region: Region,
    kind: MemoryKind,
    memory: Memory,
    spare: Option<SpareMemory>,
    beside: Option<QueuePair>,
    other: Option<Other>,
    files: VecDeque<(PathBuf, GpuFile)>,
    posted: Instant,
    nic: String,
    /// Writes that complete in a queue in memory that will be lost.
    writes: Option<completions_lost::Load>,
}

/// The other end of work requests.
struct Other {
    peer: Peer,
    key: u32,
    address: u64,
}

impl LocalEnd {
    /// Opens an end by the adapter `nic`, with at least `size` bytes of memory, which the other end
    /// may read and write.
    pub(crate) fn open(nic: &str, kind: MemoryKind, size: u64) -> anyhow::Result<Self> {
        let context = Context::open(nic)?;
        let domain = ProtectionDomain::new(&context)?;
        let pair = QueuePair::ready(&domain, DEPTH, ENDLESSLY)?;
        let memory = Memory::new(kind, size)?;
        let region = memory.register(&domain, AccessFlags::ALL)?;
        Ok(Self {
            domain,
            pair,
            region,
            kind,
            memory,
            spare: None,
            beside: None,
            other: None,
            files: VecDeque::new(),
            posted: Instant::now(),
            nic: nic.to_owned(),
            writes: None,
        })
    }

    fn answer(&mut self, command: &Command) -> anyhow::Result<Answer> {
        match command {
            Command::Address => return Ok(Answer::Address(self.address()?)),
            Command::Wait => return Ok(Answer::Completed(self.wait()?)),
            Command::Poll => return self.poll(),
            Command::SendBeside { id, span, retries } => {
                return Ok(Answer::Completed(self.send_beside(*id, *span, *retries)?));
            }
            Command::Spare(command) => {
                let of = (self.kind, &self.domain);
                return spare::answer(&mut self.spare, of, *command);
            }
            Command::Pair(state) => {
                let (pair, number) = spare::pair(&self.domain, *state)?;
                self.beside = pair;
                return Ok(Answer::Pair(number));
            }
            Command::OwnTests(tests) => return Ok(Answer::Tested(self.test(*tests)?)),
            Command::CompleteWrites => {
                self.writes = Some(completions_lost::Load::start(&self.nic, self.kind)?);
            }
            Command::Stop => self.pair.stop()?,
            Command::Workload(_) => bail!("a server does it by other commands"),
            Command::Connect(address) => self.connect(address)?,
            Command::Put { span, content } => {
                self.memory
                    .write(span.offset, &content.bytes(span.length))?;
            }
            Command::Expect { span, contents } => {
                let [first, second] = contents.map(|content| content.bytes(span.length));
                let place = || {
                    let [one, two] = contents;
                    let two = (one != two).then(|| format!(" or {two}"));
                    let two = two.unwrap_or_default();
                    format!("at {}, which should have {one}{two}", span.offset)
                };
                let seen = self.memory.expect_either(span.offset, &first, &second);
                return Ok(compared(seen.with_context(place)));
            }
            Command::Receive { id, span } => {
                let into = self.region.local(span.offset, span.length);
                self.pair.post_receive(*id, into)?;
            }
            Command::Post {
                id,
                operation,
                span,
            } => self.post(*id, *operation, *span)?,
            Command::Load { path, at, span } => self.load(path, *at, *span)?,
            Command::Store { path, at, span } => self.store(path, *at, *span)?,
        }
        Ok(Answer::Done)
    }

    fn test(&mut self, tests: OwnTests) -> anyhow::Result<OwnResults> {
        let mut results = OwnResults::default();
        let add = &mut |name: &str, result: anyhow::Result<()>| {
            results.tests.push(Tested {
                name: name.to_owned(),
                failure: result.err().map(|error| format!("{error:#}")),
            });
        };
        match tests {
            OwnTests::Requests => refusals::run(&self.nic, add)?,
            OwnTests::Registrations => vram::run(&self.nic, self.memory.gpu()?, add)?,
            OwnTests::Completions => {
                results.completions = completions::run(&self.nic, self.kind, add)?;
            }
            OwnTests::LostCompletions => {
                let writes = self
                    .writes
                    .take()
                    .context("no write completes: start them first")?;
                add(
                    "queue pairs fail, and no success is reported after",
                    writes.lose(),
                );
            }
        }
        Ok(results)
    }

    /// Returns a completion, if there is one.
    fn poll(&mut self) -> anyhow::Result<Answer> {
        let completion = self.pair.poll()?;
        let completed = completion.map(|it| self.completed(it)).transpose()?;
        Ok(completed.map_or(Answer::Done, Answer::Completed))
    }

    fn address(&self) -> anyhow::Result<Address> {
        let remote = self.region.remote(0);
        let context = self.domain.context();
        Ok(Address {
            gid: Ipv6Addr::from(context.gid()?.0),
            queue_pair: self.pair.number(),
            key: remote.key,
            address: remote.address,
            size: self.memory.size(),
            largest_message: context.largest_message()?,
        })
    }

    fn connect(&mut self, address: &Address) -> anyhow::Result<()> {
        let handle = AddressHandle::new(&self.domain, Gid(address.gid.octets()))?;
        self.other = Some(Other {
            peer: Peer {
                handle,
                queue_pair: address.queue_pair,
            },
            key: address.key,
            address: address.address,
        });
        Ok(())
    }

    fn post(&mut self, id: u64, operation: rdma_end::Operation, span: Span) -> anyhow::Result<()> {
        let other = self.other.as_ref();
        let other = other.context("the other end is not known: connect first")?;
        let operation = other.operation(operation);
        let local = self.region.local(span.offset, span.length);
        self.posted = Instant::now();
        Ok(self.pair.post(id, operation, local, &other.peer)?)
    }

    fn send_beside(&mut self, id: u64, span: Span, retries: u8) -> anyhow::Result<Completed> {
        let other = self.other.as_ref();
        let other = other.context("the other end is not known: connect first")?;
        let pair = QueuePair::ready(&self.domain, DEPTH, retries)?;
        let local = self.region.local(span.offset, span.length);
        self.posted = Instant::now();
        pair.post(id, Operation::Send, local, &other.peer)?;
        self.completed(pair.wait(TIME_OUT)?)
    }

    fn wait(&self) -> anyhow::Result<Completed> {
        self.completed(self.pair.wait(TIME_OUT)?)
    }

    fn completed(&self, completion: Completion) -> anyhow::Result<Completed> {
        let elapsed = self.posted.elapsed();
        let Completion {
            id,
            status,
            bytes,
            immediate,
            ..
        } = completion;
        Ok(Completed {
            id,
            status,
            bytes,
            immediate,
            nanoseconds: u64::try_from(elapsed.as_nanos())?,
        })
    }

    fn load(&mut self, path: &Path, at: u64, span: Span) -> anyhow::Result<()> {
        let file = self.file(path)?;
        let buffer = self.memory.buffer()?;
        let end = span.offset.saturating_add(span.length.into());
        let read = file.read_at(buffer, span.offset..end, at)?;
        ensure!(
            read == u64::from(span.length),
            "{} has {read} of {} bytes at {at}",
            path.display(),
            span.length
        );
        Ok(())
    }

    fn store(&mut self, path: &Path, at: u64, span: Span) -> anyhow::Result<()> {
        let file = self.file(path)?;
        let end = span.offset.saturating_add(span.length.into());
        file.write_at(self.memory.buffer()?, span.offset..end, at)?;
        Ok(file.sync()?)
    }

    /// Opens the file for reading and writing, without the page cache.
    fn file(&mut self, path: &Path) -> anyhow::Result<GpuFile> {
        if let Some((_, file)) = self.files.iter().find(|(known, _)| known == path) {
            return Ok(file.clone());
        }
        let options = FileOptions::new().write(true).policy(Policy::PeerOnly);
        let file = options.open(self.memory.gpu()?, path)?;
        self.files.truncate(OPEN_FILES - 1);
        self.files.push_front((path.to_owned(), file.clone()));
        Ok(file)
    }
}

impl Other {
    fn operation(&self, operation: rdma_end::Operation) -> Operation {
        let remote_at = |offset| Remote {
            key: self.key,
            address: self.address.wrapping_add(offset),
        };
        match operation {
            rdma_end::Operation::Send { immediate: None } => Operation::Send,
            rdma_end::Operation::Send {
                immediate: Some(data),
            } => Operation::SendImmediate(data),
            rdma_end::Operation::Write {
                remote,
                immediate: None,
            } => Operation::Write(remote_at(remote)),
            rdma_end::Operation::Write {
                remote,
                immediate: Some(data),
            } => Operation::WriteImmediate(remote_at(remote), data),
            rdma_end::Operation::Read { remote } => Operation::Read(remote_at(remote)),
        }
    }
}

impl End for LocalEnd {
    fn go_on(&mut self) -> bool {
        self.writes
            .as_mut()
            .is_some_and(completions_lost::Load::go_on)
    }

    fn ask(&mut self, command: &Command) -> rdma_end::Result<Answer> {
        let answer = self.answer(command);
        Ok(answer.unwrap_or_else(|error| Answer::Failed {
            reason: format!("{error:#}"),
        }))
    }
}

/// Connects both ends.
pub(crate) fn connect(near: &mut LocalEnd, far: &mut LocalEnd) -> anyhow::Result<()> {
    let (at_near, at_far) = (near.address()?, far.address()?);
    near.connect(&at_far)?;
    far.connect(&at_near)
}

/// Executes a command whose only answer is that it is done.
pub(crate) fn done(end: &mut LocalEnd, command: &Command) -> anyhow::Result<()> {
    match end.ask(command)? {
        Answer::Done => Ok(()),
        other => bail!("{other:?}"),
    }
}

/// Waits for the next completion of `end`.
pub(crate) fn completed(end: &mut LocalEnd) -> anyhow::Result<Completed> {
    match end.ask(&Command::Wait)? {
        Answer::Completed(completed) => Ok(completed),
        answer => bail!("a request was to complete: {answer:?}"),
    }
}

/// Serves an end on the standard input and output.
pub(crate) fn run(nic: &str, kind: MemoryKind, size: u64) -> anyhow::Result<()> {
    let end = LocalEnd::open(nic, kind, size)?;
    Ok(rdma_end::serve(
        end,
        io::BufReader::new(io::stdin()),
        io::stdout().lock(),
    )?)
}
