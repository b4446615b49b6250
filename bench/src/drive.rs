//! The closed loop: keeps the commands of every queue outstanding until the job has no more.

use std::time::{Duration, Instant};

use anyhow::Context;
use peerbar_nvme_driver::{Completion, DriverError, Registers};

use crate::loaded_queue::{Direction, LoadedQueue, Slot};

/// Time limit from one completion to the next.
const TIME_OUT: Duration = Duration::from_secs(20);
/// Polls of all queues without a completion before the thread yields.
const SPINS: u32 = 20_000;

/// The work of the commands.
pub(crate) trait Job {
    /// Returns the direction of the data.
    fn direction(&self) -> Direction;
    /// Returns the offset of the next command on the disk, or `None` if there is no more work. For
    /// a write it fills the buffer, which it may use until the command completes.
    fn next(&mut self, now: Instant, slot: &mut Slot) -> anyhow::Result<Option<u64>>;
    /// Takes a command that has succeeded.
    fn done(&mut self, now: Instant, slot: &Slot) -> anyhow::Result<()>;
}

/// Executes `job` with all commands of `queues`. Returns once none is outstanding.
pub(crate) fn drive<R: Registers>(
    queues: &mut [LoadedQueue<R>],
    job: &mut impl Job,
) -> anyhow::Result<()> {
    let now = Instant::now();
    let mut outstanding = 0;
    for queue in queues.iter_mut() {
        outstanding += fill(queue, job, now)?;
    }
    let (mut idle_polls, mut last) = (0, now);
    while outstanding > 0 {
        let mut progress = false;
        for queue in queues.iter_mut() {
            if let Some(completion) = queue.pair.pop()? {
                let now = Instant::now();
                outstanding -= turn(queue, job, completion, now)?;
                (idle_polls, last) = (0, now);
                progress = true;
            }
        }
        if progress {
            continue;
        }
        idle_polls += 1;
        if idle_polls % SPINS > 0 {
            std::hint::spin_loop();
            continue;
        }
        std::thread::yield_now();
        if last.elapsed() > TIME_OUT {
            let (what, seconds) = ("a completion", TIME_OUT.as_secs());
            return Err(DriverError::Late { what, seconds }.into());
        }
    }
    Ok(())
}

/// Submits the job's next requests with the commands of a queue. Returns how many.
fn fill<R: Registers>(
    queue: &mut LoadedQueue<R>,
    job: &mut impl Job,
    now: Instant,
) -> anyhow::Result<usize> {
    let mut count = 0;
    for slot in &mut queue.slots {
        let Some(offset) = job.next(now, slot)? else {
            break;
        };
        slot.set_target(job.direction(), offset);
        slot.since = Some(now);
        queue.pair.push(slot.entry())?;
        count += 1;
    }
    if count > 0 {
        queue.pair.ring()?;
    }
    Ok(count)
}

/// Takes the completions of a queue, from `first` on, and submits others in their place. Returns
/// the difference in outstanding commands.
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
            Some(offset) => {
                slot.set_target(job.direction(), offset);
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

/// Returns the error of a completion for a command that is not outstanding.
fn stray(completion: Completion) -> String {
    let Completion { sqid, cid, .. } = completion;
    format!("queue {sqid} completed command {cid}, which is not outstanding")
}

/// Returns the error of a command that did not succeed.
fn failed(opcode: u8, completion: Completion) -> anyhow::Error {
    let status = completion.status;
    DriverError::Command { opcode, status }.into()
}
