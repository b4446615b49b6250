//! Requests that an end keeps in progress, one following another, while a part of the transfer is
//! lost.

use crate::arrivals::{Arrivals, Message};
use crate::end::{END, End, done};
use crate::error::Error;
use crate::load::{Asked, DEPTH, MESSAGE, Requests, Workload, WorkloadOutcome};
use crate::message::{Answer, Command, Completed, Operation};
use crate::slots::{self, SIZE, Slots};
use crate::status::Status;
use crate::workload_error::{MOST, WorkloadError};

/// Result of an operation on requests in progress.
pub(crate) type Result<T> = std::result::Result<T, WorkloadError>;

/// Requests in progress.
#[derive(Debug)]
pub(crate) enum Running {
    Asking(Asking),
    Receiving(Receiving),
}

impl Running {
    /// Posts the first requests.
    pub(crate) fn start(workload: Workload, end: &mut dyn End) -> Result<Self> {
        Ok(match workload.requests {
            Requests::Writes | Requests::Reads | Requests::Sends => {
                let mut asking = Asking {
                    workload,
                    slots: Slots::new(),
                    succeeded: 0,
                    failed: Vec::new(),
                };
                for _ in 0..DEPTH {
                    asking.post(end)?;
                }
                Self::Asking(asking)
            }
            Requests::Receives | Requests::ReceivesUnseen => {
                let mut receiving = Receiving {
                    workload,
                    posted: 0,
                    is_stopped: false,
                    is_held: false,
                    arrivals: Arrivals::default(),
                };
                for slot in 0..DEPTH {
                    receiving.post(slot, end)?;
                }
                Self::Receiving(receiving)
            }
        })
    }

    /// Takes an available completion. Returns `true` if there was one.
    pub(crate) fn poll(&mut self, end: &mut dyn End) -> Result<bool> {
        let command = Command::Poll;
        match end.ask(&command)? {
            Answer::Completed(completed) => self.take(completed, end).map(|()| true),
            Answer::Done => Ok(false),
            answer => Err(Error::of(answer, &command, END).into()),
        }
    }

    /// Waits until `count` requests have succeeded.
    pub(crate) fn succeed(&mut self, count: u64, end: &mut dyn End) -> Result<()> {
        while self.succeeded() < count {
            if matches!(self, Self::Asking(asking) if !asking.failed.is_empty()) {
                return Err(WorkloadError::Early);
            }
            self.wait(end)?;
        }
        Ok(())
    }

    /// Posts no more receives.
    pub(crate) fn hold(&mut self) {
        if let Self::Receiving(receiving) = self {
            receiving.is_held = true;
        }
    }

    /// Ends them.
    pub(crate) fn finish(mut self, flush: bool, end: &mut dyn End) -> Result<WorkloadOutcome> {
        match &mut self {
            Self::Asking(_) => self.fail(end)?,
            Self::Receiving(receiving) if flush => {
                receiving.is_stopped = true;
                receiving.is_held = true;
                done(end, &Command::Stop)?;
                while self.is_under_way() {
                    self.wait(end)?;
                }
            }
            Self::Receiving(_) => while self.poll(end)? {},
        }
        Ok(match self {
            Self::Asking(Asking { slots, failed, .. }) => WorkloadOutcome::Asked(Asked {
                posted: slots.posted(),
                failed,
                written: slots.into_written(),
            }),
            Self::Receiving(receiving) => WorkloadOutcome::Received(receiving.arrivals),
        })
    }

    /// Waits until all requests in progress have failed, or ended, and one more has failed.
    fn fail(&mut self, end: &mut dyn End) -> Result<()> {
        while self.is_under_way() {
            self.wait(end)?;
        }
        let Self::Asking(asking) = self else {
            return Ok(());
        };
        let before = asking.succeeded;
        asking.post(end)?;
        self.wait(end)?;
        match self.succeeded() == before {
            true => Ok(()),
            false => Err(WorkloadError::Afterwards),
        }
    }

    /// Returns `true` if a request has not ended.
    fn is_under_way(&self) -> bool {
        match self {
            Self::Asking(asking) => asking.slots.running() > 0,
            Self::Receiving(receiving) => receiving.posted != 0,
        }
    }

    fn succeeded(&self) -> u64 {
        match self {
            Self::Asking(asking) => asking.succeeded,
            Self::Receiving(receiving) => receiving.arrivals.count(),
        }
    }

    fn wait(&mut self, end: &mut dyn End) -> Result<()> {
        let command = Command::Wait;
        match end.ask(&command)? {
            Answer::Completed(completed) => self.take(completed, end),
            answer => Err(Error::of(answer, &command, END).into()),
        }
    }

    fn take(&mut self, completed: Completed, end: &mut dyn End) -> Result<()> {
        match self {
            Self::Asking(asking) => asking.take(&completed, end),
            Self::Receiving(receiving) => receiving.take(&completed, end),
        }
    }
}

/// Requests of the requester.
#[derive(Debug)]
pub(crate) struct Asking {
    workload: Workload,
    slots: Slots,
    succeeded: u64,
    failed: Vec<u64>,
}

impl Asking {
    fn post(&mut self, end: &mut dyn End) -> Result<()> {
        let request = self.slots.next()?;
        let [source, target] = [request.source, request.target].map(|slot| slots::span(slot, SIZE));
        let (operation, span) = match self.workload.requests {
            Requests::Reads => {
                let remote = source.offset;
                (Operation::Read { remote }, target)
            }
            Requests::Sends => {
                let (id, source) = (request.id, request.source);
                let immediate = Some(Message { id, source }.immediate());
                (Operation::Send { immediate }, slots::span(source, MESSAGE))
            }
            _ => {
                let (remote, immediate) = (target.offset, None);
                (Operation::Write { remote, immediate }, source)
            }
        };
        let post = Command::Post {
            id: request.id,
            operation,
            span,
        };
        Ok(done(end, &post)?)
    }

    /// Takes the completion of a request. Until one fails, another one follows.
    fn take(&mut self, completed: &Completed, end: &mut dyn End) -> Result<()> {
        let Completed { id, status, .. } = *completed;
        let has_succeeded = status == Status::SUCCESS;
        self.slots.complete(id, has_succeeded)?;
        let wanted = self.workload.failure;
        if has_succeeded {
            self.succeeded += 1;
        } else if Some(status) == wanted {
            self.failed.push(id);
        } else {
            return Err(WorkloadError::OtherStatus { id, status, wanted });
        }
        match self.failed.is_empty() {
            true if self.succeeded >= MOST => Err(WorkloadError::NoneFailed),
            true => self.post(end),
            // These were posted before the first one failed, and requests need not complete in
            // order.
            false => Ok(()),
        }
    }
}

/// Receives, each into its own slot, whose number is the receive's.
#[derive(Debug)]
pub(crate) struct Receiving {
    workload: Workload,
    /// A bit for each slot whose receive has not completed.
    posted: u64,
    /// `true` once the queue pair is stopped.
    is_stopped: bool,
    /// `true` if no receive follows a completed one.
    is_held: bool,
    arrivals: Arrivals,
}

impl Receiving {
    fn post(&mut self, slot: u32, end: &mut dyn End) -> Result<()> {
        let (id, span) = (slot.into(), slots::span(slot, MESSAGE));
        self.posted |= 1 << slot;
        Ok(done(end, &Command::Receive { id, span })?)
    }

    /// Takes the completion of a receive. Unless they are held, another one into the same slot
    /// follows.
    fn take(&mut self, completed: &Completed, end: &mut dyn End) -> Result<()> {
        let Completed { id, status, .. } = *completed;
        let slot = u32::try_from(id).ok().filter(|slot| *slot < DEPTH);
        let slot = slot.filter(|slot| self.posted & (1 << slot) != 0);
        let slot = slot.ok_or(WorkloadError::NotInProgress { id })?;
        self.posted &= !(1 << slot);
        match status {
            Status::SUCCESS => self.arrived(completed, slot, end)?,
            Status::FLUSHED if self.is_stopped => {}
            status if Some(status) == self.workload.failure => self.arrivals.fail(),
            status => return Err(WorkloadError::ReceiveFailed { id, status }),
        }
        match self.is_held {
            true => Ok(()),
            false => self.post(slot, end),
        }
    }

    fn arrived(&mut self, completed: &Completed, slot: u32, end: &mut dyn End) -> Result<()> {
        let id = completed.id;
        let message = completed.immediate.map(Message::of);
        let message = message.filter(|_| completed.bytes == MESSAGE);
        let Some(Message { id, source }) = message else {
            let completed = format!("{completed:?}");
            return Err(WorkloadError::NoMessage { id, completed });
        };
        self.arrivals.add(id)?;
        if self.workload.requests == Requests::ReceivesUnseen {
            return Ok(());
        }
        let content = slots::content(self.workload.seed, source);
        let compared = done(end, &Command::expect(slots::span(slot, MESSAGE), content));
        compared.map_err(|source| WorkloadError::Torn { id, slot, source })
    }
}
