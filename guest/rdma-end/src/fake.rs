//! Ends in memory, for tests.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::Ipv6Addr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::end::End;
use crate::error::Result;
use crate::load::MESSAGE;
use crate::message::{
    Address, Answer, Command, Completed, Operation, OwnResults, Rights, Span, Spare, SpareCommand,
    Tested,
};
use crate::status::Status;

/// The key and the address of spare memory.
const SPARE_KEY: u32 = 1000;
const SPARE: u64 = 1 << 40;
/// The number of an end's spare queue pair.
const OTHER_PAIR: u32 = 77;

/// A flaw of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    LastByte,
    OneByteMore,
    OtherImmediate,
    Refused,
    OtherNumber,
    StoresNothing,
    /// Requests end with this status, and move nothing.
    Dead(Status),
    /// Requests below this number end with this status, and move nothing.
    DeadBelow(u64, Status),
    /// Requests succeed, and move nothing.
    MovesNothing,
    /// A wait ends without a completion.
    WaitsForNothing,
    /// Each request completes twice.
    CompletesTwice,
    /// Each receive of a message completes twice.
    ReceivesTwice,
    /// Messages from this number on arrive twice.
    TwiceFrom(u64),
    /// Messages arrive with one byte less.
    ShortByOne,
    /// Receives of acknowledged messages fail.
    FailsReceives,
    /// Requests change their source.
    ChangesSource,
    /// Requests that must be refused are permitted.
    IgnoresRights,
    IgnoresKeys,
    IgnoresRange,
    IgnoresPairs,
    IgnoresLength,
    /// The receive of a refused message succeeds.
    ReceivesRefused,
    /// A message without a receive is reported to have arrived.
    LosesUnreceived,
    /// A message that was given up fills a later receive.
    KeepsUnreceived,
    /// A message that was given up has changed a byte.
    UnreceivedWritesByte,
    /// Memory stays registered.
    KeepsRegions,
    /// Memory does not stay as long as it is registered.
    LosesPinned,
    /// A refused request changes a byte.
    RefusedBringsByte,
    RefusedWritesByte,
    RefusedWritesSpare,
    /// Its own tests fail.
    FailsOwnTests,
}

/// A work request.
#[derive(Clone, Copy)]
struct Post {
    id: u64,
    operation: Operation,
    span: Span,
}

/// Spare memory.
#[derive(Clone, Copy)]
struct FakeSpare {
    rights: Rights,
    is_registered: bool,
    is_freed: bool,
    is_changed: bool,
}

#[derive(Default)]
struct State {
    /// The number of its queue pair, and its key.
    number: u32,
    spare: Option<FakeSpare>,
    memory: Vec<u8>,
    receives: VecDeque<(u64, Span)>,
    /// Messages that wait for a receive of the other end.
    waiting: VecDeque<Post>,
    completions: VecDeque<Completed>,
    files: HashMap<PathBuf, Vec<u8>>,
}

/// An end whose adapter copies at once.
pub(crate) struct FakeEnd {
    own: Rc<RefCell<State>>,
    other: Rc<RefCell<State>>,
    address: Address,
    peer: Option<Address>,
    flaw: Rc<Cell<Option<Flaw>>>,
}

impl FakeEnd {
    /// Makes two ends, each with `size` bytes of memory.
    pub(crate) fn pair(size: u64) -> (Self, Self) {
        // A byte of random content may equal the one that is already there, so a test has the same
        // content each time.
        fastrand::seed(1);
        let state = |number| {
            let memory = vec![0; usize::try_from(size).unwrap()];
            Rc::new(RefCell::new(State {
                number,
                memory,
                ..State::default()
            }))
        };
        let (one, two) = (state(1), state(2));
        let end = |own: &Rc<_>, other: &Rc<_>, number| Self {
            own: Rc::clone(own),
            other: Rc::clone(other),
            address: Address {
                gid: Ipv6Addr::from(u128::from(number)),
                queue_pair: number,
                key: number,
                address: 0,
                size,
                largest_message: MESSAGE,
            },
            peer: None,
            flaw: Rc::default(),
        };
        (end(&one, &two, 1), end(&two, &one, 2))
    }

    pub(crate) fn take_messages_of(&mut self, bytes: u32) {
        self.address.largest_message = bytes;
    }

    pub(crate) fn set(&self, flaw: Flaw) {
        self.flaw.set(Some(flaw));
    }

    /// Returns the flaw, to change it later.
    pub(crate) fn flaw(&self) -> Rc<Cell<Option<Flaw>>> {
        Rc::clone(&self.flaw)
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw.get() == Some(flaw)
    }

    /// Returns a byte of its memory.
    pub(crate) fn memory(&self, at: u64) -> u8 {
        self.own.borrow().memory[usize::try_from(at).unwrap()]
    }

    /// Executes `post`, or lets it wait for a receive.
    fn carry(&self, post: Post) {
        let (own, other) = (&mut *self.own.borrow_mut(), &mut *self.other.borrow_mut());
        if let Some(status) = self.refusal(other, post) {
            own.completions
                .push_back(completed(post.id, status, 0, None));
            self.refused(own, other, post);
            return;
        }
        let takes_receive = !matches!(
            post.operation,
            Operation::Read { .. }
                | Operation::Write {
                    immediate: None,
                    ..
                }
        );
        if takes_receive && other.receives.is_empty() {
            return own.waiting.push_back(post);
        }
        let status = match self.flaw.get() {
            Some(Flaw::Refused) => Status::REMOTE_ACCESS,
            Some(Flaw::Dead(status)) => status,
            Some(Flaw::DeadBelow(first, status)) if post.id < first => status,
            _ => Status::SUCCESS,
        };
        let id = post.id + u64::from(self.has(Flaw::OtherNumber));
        let times = 1 + usize::from(self.has(Flaw::CompletesTwice));
        let ended = vec![completed(id, status, 0, None); times];
        own.completions.extend(ended);
        let to = self.peer.unwrap();
        let is_of_memory = to.key == other.number && to.queue_pair == other.number;
        let end = remote(post).checked_add(post.span.length.into());
        let is_inside = end.is_some_and(|end| bytes_to(end) <= other.memory.len());
        if !is_of_memory || !is_inside {
            return;
        }
        let is_dead = !matches!(status, Status::SUCCESS | Status::REMOTE_ACCESS);
        if is_dead && status != Status::BAD_RESPONSE || self.has(Flaw::MovesNothing) {
            return;
        }
        let receive = takes_receive.then(|| other.receives.pop_front().unwrap());
        if let (Status::BAD_RESPONSE, Some((id, _))) = (status, receive) {
            let failed = completed(id, Status::LOCAL_PROTECTION, 0, None);
            return other.completions.push_back(failed);
        }
        self.copy(own, other, post, receive);
        let Some((id, _)) = receive else {
            return;
        };
        let immediate = post.operation.immediate();
        let immediate = immediate.map(|data| data ^ u32::from(self.has(Flaw::OtherImmediate)));
        let length = post.span.length - u32::from(self.has(Flaw::ShortByOne));
        let status = match self.has(Flaw::FailsReceives) {
            true => Status::LOCAL_PROTECTION,
            false => Status::SUCCESS,
        };
        let received = completed(id, status, length, immediate);
        let times = 1 + usize::from(self.has(Flaw::ReceivesTwice));
        other.completions.extend(vec![received; times]);
        if matches!(self.flaw.get(), Some(Flaw::TwiceFrom(first)) if post.id >= first) {
            let next = other.receives.pop_front();
            let again =
                next.map(|(id, _)| completed(id, Status::SUCCESS, post.span.length, immediate));
            other.completions.extend(again);
        }
    }

    /// Executes requests that waited for a receive and may have one now.
    fn retry(&self) {
        let waiting = std::mem::take(&mut self.own.borrow_mut().waiting);
        waiting.into_iter().for_each(|post| self.carry(post));
    }

    /// Sends a message that is given up if there is no receive for it.
    fn send_beside(&self, id: u64, span: Span) -> Answer {
        let post = Post {
            id,
            operation: Operation::Send { immediate: None },
            span,
        };
        if !self.other.borrow().receives.is_empty() {
            self.carry(post);
            let sent = self.own.borrow_mut().completions.pop_back();
            return Answer::Completed(sent.unwrap());
        }
        if self.has(Flaw::KeepsUnreceived) {
            self.own.borrow_mut().waiting.push_back(post);
        }
        self.other.borrow_mut().memory[0] += u8::from(self.has(Flaw::UnreceivedWritesByte));
        let status = match self.has(Flaw::LosesUnreceived) {
            true => Status::SUCCESS,
            false => Status::RECEIVER_NOT_READY,
        };
        Answer::Completed(completed(id, status, 0, None))
    }

    /// Returns the status with which `post` is refused, if it is.
    fn refusal(&self, other: &State, post: Post) -> Option<Status> {
        let to = self.peer.unwrap();
        let unless = |flaw, status| (!self.has(flaw)).then_some(status);
        if to.queue_pair != other.number {
            return unless(Flaw::IgnoresPairs, Status::REMOTE_BAD_QUEUE_PAIR);
        }
        if let Operation::Send { .. } = post.operation {
            let (_, receive) = other.receives.front()?;
            let is_too_long = receive.length < post.span.length;
            let refused = unless(Flaw::IgnoresLength, Status::REMOTE_INVALID_REQUEST);
            return refused.filter(|_| is_too_long);
        }
        let spare = other.spare.filter(|spare| spare.is_registered);
        let (rights, base, size) = match spare {
            Some(spare) if to.key == SPARE_KEY => (spare.rights, SPARE, SpareCommand::BYTES),
            _ if to.key == other.number => {
                let size = u64::try_from(other.memory.len()).unwrap();
                (Rights::ALL, 0, size)
            }
            _ => return unless(Flaw::IgnoresKeys, Status::REMOTE_ACCESS),
        };
        let start = to.address.wrapping_add(remote(post)).wrapping_sub(base);
        let end = start.checked_add(post.span.length.into());
        if end.is_none_or(|end| end > size) {
            return unless(Flaw::IgnoresRange, Status::REMOTE_ACCESS);
        }
        let is_permitted = match post.operation {
            Operation::Read { .. } => rights.remote_read,
            _ => rights.remote_write,
        };
        unless(Flaw::IgnoresRights, Status::REMOTE_ACCESS).filter(|_| !is_permitted)
    }

    /// Applies the effects of a refused request.
    fn refused(&self, own: &mut State, other: &mut State, post: Post) {
        if let Operation::Send { .. } = post.operation {
            let status = match self.has(Flaw::ReceivesRefused) {
                true => Status::SUCCESS,
                false => Status::LOCAL_LENGTH,
            };
            let next = other.receives.pop_front();
            let failed = next.map(|(id, _)| completed(id, status, 0, None));
            other.completions.extend(failed);
        }
        let local = bytes(post.span).start;
        own.memory[local] ^= u8::from(self.has(Flaw::RefusedBringsByte));
        other.memory[0] ^= u8::from(self.has(Flaw::RefusedWritesByte));
        if let Some(spare) = &mut other.spare {
            spare.is_changed |= self.has(Flaw::RefusedWritesSpare);
        }
    }

    fn spare(&self, command: SpareCommand) -> Answer {
        let own = &mut *self.own.borrow_mut();
        if let SpareCommand::Make(rights) = command {
            own.spare = Some(FakeSpare {
                rights,
                is_registered: true,
                is_freed: false,
                is_changed: false,
            });
            return Answer::Spare(Spare {
                key: SPARE_KEY,
                address: SPARE,
            });
        }
        let spare = own.spare.as_mut().unwrap();
        let is_lost = self.has(Flaw::LosesPinned);
        let reason = "it is in use".to_owned();
        match command {
            SpareCommand::Deregister => spare.is_registered = self.has(Flaw::KeepsRegions),
            SpareCommand::Free => {
                spare.is_freed = true;
                spare.is_registered &= !is_lost;
            }
            SpareCommand::Revoke if spare.is_registered && !is_lost => {
                return Answer::Failed { reason };
            }
            SpareCommand::Expect if spare.is_changed && !spare.is_freed => {
                return Answer::Differs { reason };
            }
            SpareCommand::Revoke | SpareCommand::Expect | SpareCommand::Make(_) => {}
        }
        Answer::Done
    }

    fn copy(&self, own: &mut State, other: &mut State, post: Post, receive: Option<(u64, Span)>) {
        let Post {
            operation, span, ..
        } = post;
        let offset = match operation {
            Operation::Write { remote, .. } | Operation::Read { remote } => remote,
            Operation::Send { .. } => receive.unwrap().1.offset,
        };
        let (local, remote) = (bytes(span), bytes(Span { offset, ..span }));
        let (source, from, target, to) = match operation {
            Operation::Read { .. } => (&mut other.memory, remote, &mut own.memory, local),
            _ => (&mut own.memory, local, &mut other.memory, remote),
        };
        target[to.clone()].copy_from_slice(&source[from.clone()]);
        source[from.start] ^= u8::from(self.has(Flaw::ChangesSource));
        target[to.end - 1] ^= u8::from(self.has(Flaw::LastByte));
        target[to.end] ^= u8::from(self.has(Flaw::OneByteMore));
    }

    /// Flushes the receives.
    fn stop(&self) -> Answer {
        let own = &mut *self.own.borrow_mut();
        let flushed = own.receives.drain(..);
        let flushed = flushed.map(|(id, _)| completed(id, Status::FLUSHED, 0, None));
        own.completions.extend(flushed);
        Answer::Done
    }

    fn post(&self, post: Post) -> Answer {
        assert!(self.peer.is_some(), "an end that is not connected posts");
        self.retry();
        self.carry(post);
        Answer::Done
    }

    fn receive(&self, id: u64, span: Span) -> Answer {
        self.own.borrow_mut().receives.push_back((id, span));
        Answer::Done
    }

    fn wait(&self) -> Answer {
        self.retry();
        if self.has(Flaw::WaitsForNothing) {
            return Answer::Done;
        }
        let next = self.own.borrow_mut().completions.pop_front();
        let reason = "nothing was completed".to_owned();
        next.map_or(Answer::Failed { reason }, Answer::Completed)
    }

    fn poll(&self) -> Answer {
        self.retry();
        let next = self.own.borrow_mut().completions.pop_front();
        next.map_or(Answer::Done, Answer::Completed)
    }

    fn put(&self, span: Span, contents: &[u8]) -> Answer {
        self.own.borrow_mut().memory[bytes(span)].copy_from_slice(contents);
        Answer::Done
    }

    fn expect_either(&self, span: Span, [one, two]: [&[u8]; 2]) -> Answer {
        let own = self.own.borrow();
        let seen = &own.memory[bytes(span)];
        let wrong = |at: &usize| seen[*at] != one[*at] && seen[*at] != two[*at];
        match (0..seen.len()).find(wrong) {
            None => Answer::Done,
            Some(at) => Answer::Differs {
                reason: format!("byte {at} of {}", seen.len()),
            },
        }
    }

    /// Reads a file of either end, from byte `offset` on, into the memory. A missing file is all
    /// zeros.
    fn load(&self, path: &Path, offset: u64, span: Span) -> Answer {
        let own = &mut *self.own.borrow_mut();
        let range = bytes(Span { offset, ..span });
        let file = self.other.borrow().files.get(path).cloned();
        let file = own.files.get(path).cloned().or(file);
        let file = file.unwrap_or_else(|| vec![0; range.end]);
        own.memory[bytes(span)].copy_from_slice(&file[range]);
        Answer::Done
    }

    fn store(&self, path: &Path, offset: u64, span: Span) -> Answer {
        if self.has(Flaw::StoresNothing) {
            return Answer::Done;
        }
        let own = &mut *self.own.borrow_mut();
        let range = bytes(Span { offset, ..span });
        let file = own.files.entry(path.to_owned()).or_default();
        file.resize(file.len().max(range.end), 0);
        file[range].copy_from_slice(&own.memory[bytes(span)]);
        Answer::Done
    }
}

impl End for FakeEnd {
    fn ask(&mut self, command: &Command) -> Result<Answer> {
        Ok(match *command {
            Command::Address => Answer::Address(self.address),
            Command::Connect(peer) => {
                self.peer = Some(peer);
                Answer::Done
            }
            Command::Put { span, content } => self.put(span, &content.bytes(span.length)),
            Command::Expect { span, contents } => {
                let [one, two] = contents.map(|content| content.bytes(span.length));
                self.expect_either(span, [&one, &two])
            }
            Command::Receive { id, span } => self.receive(id, span),
            Command::Post {
                id,
                operation,
                span,
            } => self.post(Post {
                id,
                operation,
                span,
            }),
            Command::SendBeside { id, span, .. } => self.send_beside(id, span),
            Command::Wait => self.wait(),
            Command::Poll => self.poll(),
            Command::Stop => self.stop(),
            Command::Pair(_) => Answer::Pair(OTHER_PAIR),
            Command::Spare(command) => self.spare(command),
            Command::Load { ref path, at, span } => self.load(path, at, span),
            Command::Store { ref path, at, span } => self.store(path, at, span),
            Command::OwnTests(tests) => Answer::Tested(OwnResults {
                tests: vec![Tested {
                    name: format!("{tests:?}"),
                    failure: self
                        .has(Flaw::FailsOwnTests)
                        .then(|| "it is taken".to_owned()),
                }],
                completions: 0,
            }),
            Command::CompleteWrites => Answer::Done,
            Command::Workload(_) => unreachable!("a server does it"),
        })
    }
}

/// Returns the offset of a request at the other end.
fn remote(post: Post) -> u64 {
    match post.operation {
        Operation::Write { remote, .. } | Operation::Read { remote } => remote,
        Operation::Send { .. } => 0,
    }
}

fn bytes_to(end: u64) -> usize {
    usize::try_from(end).unwrap_or(usize::MAX)
}

fn bytes(span: Span) -> Range<usize> {
    let start = usize::try_from(span.offset).unwrap();
    start..start + usize::try_from(span.length).unwrap()
}

fn completed(id: u64, status: Status, bytes: u32, immediate: Option<u32>) -> Completed {
    Completed {
        id,
        status,
        bytes,
        immediate,
        nanoseconds: 1,
    }
}
