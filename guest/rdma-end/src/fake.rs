//! Ends in memory, for tests.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::Ipv6Addr;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use crate::{Address, Answer, Command, Completed, End, Operation, Result, Span, content};

/// What goes wrong with an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    LastByte,
    OneByteMore,
    OtherImmediate,
    Refused,
    OtherNumber,
    StoresNothing,
}

#[derive(Default)]
struct State {
    memory: Vec<u8>,
    receives: VecDeque<(u64, Span)>,
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

    fn carry(&self, id: u64, operation: Operation, span: Span) -> Result<Answer> {
        let (mut own, mut other) = (self.own.borrow_mut(), self.other.borrow_mut());
        let id = if self.has(Flaw::OtherNumber) {
            id + 1
        } else {
            id
        };
        let status = u32::from(self.has(Flaw::Refused)) * 10;
        let remote = match operation {
            Operation::Write { remote, .. } | Operation::Read { remote } => remote,
            Operation::Send { .. } => other.receives.front().unwrap().1.offset,
        };
        let (local, remote) = (
            bytes(span),
            bytes(Span {
                offset: remote,
                ..span
            }),
        );
        let (from, to, at) = match operation {
            Operation::Read { .. } => (&other.memory[remote], &mut own.memory, local),
            _ => (&own.memory[local], &mut other.memory, remote),
        };
        to[at.clone()].copy_from_slice(from);
        if self.has(Flaw::LastByte) {
            to[at.end - 1] ^= 1;
        }
        if self.has(Flaw::OneByteMore) {
            to[at.end] ^= 1;
        }
        own.completions.push_back(completed(id, status, 0, None));
        let immediate = match operation {
            Operation::Read { .. }
            | Operation::Write {
                immediate: None, ..
            } => {
                return Ok(Answer::Done);
            }
            Operation::Send { immediate } | Operation::Write { immediate, .. } => immediate,
        };
        let immediate = immediate.map(|data| data ^ u32::from(self.has(Flaw::OtherImmediate)));
        let (id, _) = other.receives.pop_front().unwrap();
        let received = completed(id, 0, span.length, immediate);
        other.completions.push_back(received);
        Ok(Answer::Done)
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
            return self.carry(*id, *operation, *span);
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
            Command::Receive { id, span } => own.receives.push_back((*id, *span)),
            Command::Wait => {
                let next = own.completions.pop_front();
                let reason = "nothing was completed".to_owned();
                return Ok(next.map_or(Answer::Failed { reason }, Answer::Completed));
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
            Command::Post { .. } => unreachable!("it is carried out above"),
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

fn completed(id: u64, status: u32, bytes: u32, immediate: Option<u32>) -> Completed {
    Completed {
        id,
        status,
        meaning: format!("status {status}"),
        bytes,
        immediate,
        nanoseconds: 1,
    }
}
