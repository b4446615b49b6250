//! The closed loop: keeps every queue's commands outstanding until the job has no more.

use std::time::{Duration, Instant};

use anyhow::Context;
use peerbar_nvme_driver::{Completion, DriverError, Registers};

use crate::loaded_queue::{Direction, DiskAddress, LoadedQueue, Slot};

/// How long nothing may complete.
const TIME_OUT: Duration = Duration::from_secs(20);
/// Polls of all queues without a completion before the thread yields.
const SPINS: u32 = 20_000;

/// What is to be done with the commands.
pub(crate) trait Job {
    /// Which way data goes.
    fn direction(&self) -> Direction;
    /// Where the next command goes, none if there is no more to do. The buffer is its own, to be filled for a write.
    fn next(&mut self, now: Instant, slot: &mut Slot) -> anyhow::Result<Option<DiskAddress>>;
    /// A command has ended well.
    fn done(&mut self, now: Instant, slot: &Slot) -> anyhow::Result<()>;
}

/// How a driver polls for completions.
pub(crate) struct Polling {
    /// Polls without a completion since the last one or the last sleep, and the limit of them.
    idle_polls: u32,
    spins: u32,
    /// None: the processor is offered to others, no more.
    sleep: Option<Duration>,
    last: Instant,
}

impl Polling {
    /// Waiting begins at `now`. After `spins` polls without a completion the thread sleeps for `sleep`, or yields.
    pub(crate) fn new(now: Instant, spins: u32, sleep: Option<Duration>) -> Self {
        Self {
            idle_polls: 0,
            spins,
            sleep,
            last: now,
        }
    }

    /// Something has completed.
    pub(crate) fn progress(&mut self, now: Instant) {
        (self.idle_polls, self.last) = (0, now);
    }

    /// Nothing has. Sleeps or yields now and then, and fails in the end.
    pub(crate) fn wait(&mut self) -> anyhow::Result<()> {
        self.idle_polls += 1;
        if self.idle_polls < self.spins {
            std::hint::spin_loop();
            return Ok(());
        }
        self.idle_polls = 0;
        match self.sleep {
            Some(time) => std::thread::sleep(time),
            None => std::thread::yield_now(),
        }
        if self.last.elapsed() > TIME_OUT {
            let (what, seconds) = ("a completion", TIME_OUT.as_secs());
            return Err(DriverError::Late { what, seconds }.into());
        }
        Ok(())
    }
}

/// Does `job` with all commands of `queues`. Returns once none is outstanding.
pub(crate) fn drive<R: Registers>(
    queues: &mut [LoadedQueue<R>],
    job: &mut impl Job,
) -> anyhow::Result<()> {
    let now = Instant::now();
    let mut outstanding = 0;
    for queue in queues.iter_mut() {
        outstanding += fill(queue, job, now)?;
    }
    let mut polling = Polling::new(now, SPINS, None);
    while outstanding > 0 {
        let mut progress = false;
        for queue in queues.iter_mut() {
            if let Some(completion) = queue.pair.pop()? {
                let now = Instant::now();
                outstanding -= turn(queue, job, completion, now)?;
                polling.progress(now);
                progress = true;
            }
        }
        if !progress {
            polling.wait()?;
        }
    }
    Ok(())
}

/// Submits what the job has for the commands of a queue: how many.
fn fill<R: Registers>(
    queue: &mut LoadedQueue<R>,
    job: &mut impl Job,
    now: Instant,
) -> anyhow::Result<usize> {
    let mut count = 0;
    for slot in &mut queue.slots {
        let Some(address) = job.next(now, slot)? else {
            break;
        };
        slot.set_target(job.direction(), address);
        slot.since = Some(now);
        queue.pair.push(slot.entry())?;
        count += 1;
    }
    if count > 0 {
        queue.pair.ring()?;
    }
    Ok(count)
}

/// Takes the completions of a queue, from `first` on, and submits others in their place: how many commands there are less.
fn turn<R: Registers>(
    queue: &mut LoadedQueue<R>,
    job: &mut impl Job,
    first: Completion,
    now: Instant,
) -> anyhow::Result<usize> {
    let mut less = 0;
    let mut next = Some(first);
    while let Some(completion) = next {
        let slot = queue.slots.get_mut(usize::from(completion.cid));
        let slot = slot
            .filter(|slot| slot.since.is_some())
            .with_context(|| stray(completion))?;
        if completion.status != 0 {
            return Err(failed(slot.opcode(), completion));
        }
        job.done(now, slot)?;
        match job.next(now, slot)? {
            Some(address) => {
                slot.set_target(job.direction(), address);
                slot.since = Some(now);
                queue.pair.push(slot.entry())?;
            }
            None => {
                slot.since = None;
                less += 1;
            }
        }
        next = queue.pair.pop()?;
    }
    queue.pair.ring()?;
    Ok(less)
}

/// The error of a completion that names a command that is not outstanding.
pub(crate) fn stray(completion: Completion) -> String {
    let Completion { sqid, cid, .. } = completion;
    format!("queue {sqid} completed command {cid}, which is not outstanding")
}

/// The error of a command that did not succeed.
pub(crate) fn failed(opcode: u8, completion: Completion) -> anyhow::Error {
    let status = completion.status;
    DriverError::Command { opcode, status }.into()
}
