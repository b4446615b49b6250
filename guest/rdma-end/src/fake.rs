//! Ends in memory, for tests.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::Ipv6Addr;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use crate::{Address, Answer, Command, Completed, End, Operation, Result, Span, Status, content};

/// What goes wrong with an end.
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
    /// Those below this number do.
    DeadBelow(u64, Status),
    /// Requests succeed, and move nothing.
    MovesNothing,
    /// Messages come twice.
    Twice,
    /// Requests change what they read.
    ChangesSource,
}

/// A work request.
#[derive(Clone, Copy)]
struct Post {
    id: u64,
    operation: Operation,
    span: Span,
}

#[derive(Default)]
struct State {
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
    /// Two, each with `size` bytes of memory.
    pub(crate) fn pair(size: u64) -> (Self, Self) {
        let state = || {
            let memory = vec![0; usize::try_from(size).unwrap()];
            Rc::new(RefCell::new(State {
                memory,
                ..State::default()
            }))
        };
        let (one, two) = (state(), state());
        let end = |own: &Rc<_>, other: &Rc<_>, number| Self {
            own: Rc::clone(own),
            other: Rc::clone(other),
            address: Address {
                gid: Ipv6Addr::from(u128::from(number)),
                queue_pair: number,
                key: number,
                address: 0,
                size,
                largest_message: 4096,
            },
            peer: None,
            flaw: Rc::default(),
        };
        (end(&one, &two, 1), end(&two, &one, 2))
    }

    pub(crate) fn set(&self, flaw: Flaw) {
        self.flaw.set(Some(flaw));
    }

    /// To change it later.
    pub(crate) fn flaw(&self) -> Rc<Cell<Option<Flaw>>> {
        Rc::clone(&self.flaw)
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw.get() == Some(flaw)
    }

    /// A byte of its memory.
    pub(crate) fn memory(&self, at: u64) -> u8 {
        self.own.borrow().memory[usize::try_from(at).unwrap()]
    }

    /// Carries out `post`, or has it wait for a receive.
    fn carry(&self, post: Post) {
        let (own, other) = (&mut *self.own.borrow_mut(), &mut *self.other.borrow_mut());
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
        own.completions.push_back(completed(id, status, 0, None));
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
        let received = completed(id, Status::SUCCESS, post.span.length, immediate);
        other.completions.push_back(received);
        if self.has(Flaw::Twice)
            && let Some((id, _)) = other.receives.pop_front()
        {
            let again = completed(id, Status::SUCCESS, post.span.length, immediate);
            other.completions.push_back(again);
        }
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
    fn stop(&self) {
        let own = &mut *self.own.borrow_mut();
        let flushed = own.receives.drain(..);
        let flushed = flushed.map(|(id, _)| completed(id, Status::FLUSHED, 0, None));
        own.completions.extend(flushed);
    }
}

impl End for FakeEnd {
    fn ask(&mut self, command: &Command) -> Result<Answer> {
        if let Command::Post {
            id,
            operation,
            span,
        } = command
        {
            assert!(self.peer.is_some(), "an end that is not connected posts");
            self.carry(Post {
                id: *id,
                operation: *operation,
                span: *span,
            });
            return Ok(Answer::Done);
        }
        if let Command::Wait | Command::Poll = command {
            // What waited for a receive may have one now.
            let waiting = std::mem::take(&mut self.own.borrow_mut().waiting);
            waiting.into_iter().for_each(|post| self.carry(post));
        }
        if let Command::Stop = command {
            self.stop();
            return Ok(Answer::Done);
        }
        let own = &mut *self.own.borrow_mut();
        match command {
            Command::Address => return Ok(Answer::Address(self.address)),
            Command::Connect(peer) => self.peer = Some(*peer),
            Command::Fill { span, value } => own.memory[bytes(*span)].fill(*value),
            Command::Put { span, seed } => {
                let bytes_of = content(*seed, span.length);
                own.memory[bytes(*span)].copy_from_slice(&bytes_of);
            }
            Command::Expect { span, seed } => {
                let wanted = content(*seed, span.length);
                return Ok(compare(&own.memory[bytes(*span)], &wanted));
            }
            Command::ExpectValue { span, value } => {
                let seen = &own.memory[bytes(*span)];
                return Ok(compare(seen, &vec![*value; seen.len()]));
            }
            Command::ExpectEither { span, contents } => {
                let [one, two] = contents.map(|content| content.bytes(span.length));
                let seen = &own.memory[bytes(*span)];
                let wrong = |at: &usize| seen[*at] != one[*at] && seen[*at] != two[*at];
                let Some(at) = (0..seen.len()).find(wrong) else {
                    return Ok(Answer::Done);
                };
                let reason = format!("byte {at} of {}", seen.len());
                return Ok(Answer::Differs { reason });
            }
            Command::Receive { id, span } => own.receives.push_back((*id, *span)),
            Command::Wait => {
                let next = own.completions.pop_front();
                let reason = "nothing was completed".to_owned();
                return Ok(next.map_or(Answer::Failed { reason }, Answer::Completed));
            }
            Command::Poll => {
                let next = own.completions.pop_front();
                return Ok(next.map_or(Answer::Done, Answer::Completed));
            }
            Command::Load { path, at, span } => {
                let at = bytes(Span {
                    offset: *at,
                    ..*span
                });
                let file = self.other.borrow().files.get(path).cloned();
                let file = own.files.get(path).cloned().or(file);
                let file = file.unwrap_or_else(|| vec![0; at.end]);
                own.memory[bytes(*span)].copy_from_slice(&file[at]);
            }
            Command::Store { .. } if self.flaw.get() == Some(Flaw::StoresNothing) => {}
            Command::Store { path, at, span } => {
                let at = bytes(Span {
                    offset: *at,
                    ..*span
                });
                let file = own.files.entry(path.clone()).or_default();
                file.resize(file.len().max(at.end), 0);
                file[at].copy_from_slice(&own.memory[bytes(*span)]);
            }
            Command::Workload(_) => unreachable!("a server does it"),
            Command::Post { .. } | Command::Stop => unreachable!("it is done above"),
        }
        Ok(Answer::Done)
    }
}

fn bytes(span: Span) -> Range<usize> {
    let start = usize::try_from(span.offset).unwrap();
    start..start + usize::try_from(span.length).unwrap()
}

fn compare(seen: &[u8], wanted: &[u8]) -> Answer {
    let differs = seen.iter().zip(wanted).position(|(one, two)| one != two);
    match differs {
        None => Answer::Done,
        Some(at) => Answer::Differs {
            reason: format!("byte {at} of {}", wanted.len()),
        },
    }
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
