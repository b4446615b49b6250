//! The closed loop: keeps every lane's commands outstanding until the job has no more.

use std::time::{Duration, Instant};

use crate::Error;
use crate::lane::{Direction, Lane, Place, Slot};
use crate::queue::Completion;

/// How long nothing may complete.
const PATIENCE: Duration = Duration::from_secs(20);
/// How many times in vain all lanes are looked at before the processor is left to others.
const SPINS: u32 = 20_000;

/// What is to be done with the commands.
pub(crate) trait Job {
    /// Which way data goes.
    fn direction(&self) -> Direction;
    /// Where the next command goes, none if there is no more to do. The buffer is its own, to be filled for a write.
    fn next(&mut self, now: Instant, slot: &mut Slot) -> Result<Option<Place>, Error>;
    /// A command has ended well.
    fn done(&mut self, now: Instant, slot: &Slot) -> Result<(), Error>;
}

/// What is left to do for who waits for completions.
pub(crate) struct Patience {
    /// Looks in vain since the last completion or nap, and how many there may be.
    vain: u32,
    spins: u32,
    /// None: the processor is offered to others, no more.
    nap: Option<Duration>,
    last: Instant,
}

impl Patience {
    /// Waiting begins at `now`. After `spins` looks in vain the processor is left to others: for a `nap`, or if they want it.
    pub(crate) fn new(now: Instant, spins: u32, nap: Option<Duration>) -> Self {
        Self {
            vain: 0,
            spins,
            nap,
            last: now,
        }
    }

    /// Something has completed.
    pub(crate) fn progress(&mut self, now: Instant) {
        (self.vain, self.last) = (0, now);
    }

    /// Nothing has: to be looked at again. Leaves the processor to others now and then, and gives up in the end.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        self.vain += 1;
        if self.vain < self.spins {
            std::hint::spin_loop();
            return Ok(());
        }
        self.vain = 0;
        match self.nap {
            Some(nap) => std::thread::sleep(nap),
            None => std::thread::yield_now(),
        }
        if self.last.elapsed() > PATIENCE {
            return Err(Error::Late {
                what: "a completion",
                seconds: PATIENCE.as_secs(),
            });
        }
        Ok(())
    }
}

/// Does `job` with all commands of `lanes`. Returns once none is outstanding.
pub(crate) fn drive(lanes: &mut [Lane], job: &mut impl Job) -> Result<(), Error> {
    let now = Instant::now();
    let mut outstanding = 0;
    for lane in lanes.iter_mut() {
        outstanding += fill(lane, job, now)?;
    }
    let mut patience = Patience::new(now, SPINS, None);
    while outstanding > 0 {
        let mut progress = false;
        for lane in lanes.iter_mut() {
            if let Some(completion) = lane.queue.pop()? {
                let now = Instant::now();
                outstanding -= turn(lane, job, completion, now)?;
                patience.progress(now);
                progress = true;
            }
        }
        if !progress {
            patience.wait()?;
        }
    }
    Ok(())
}

/// Submits what the job has for the commands of a lane: how many.
fn fill(lane: &mut Lane, job: &mut impl Job, now: Instant) -> Result<usize, Error> {
    let mut count = 0;
    for slot in &mut lane.slots {
        let Some(place) = job.next(now, slot)? else {
            break;
        };
        slot.aim(job.direction(), place);
        slot.since = Some(now);
        lane.queue.push(slot.entry())?;
        count += 1;
    }
    if count > 0 {
        lane.queue.ring()?;
    }
    Ok(count)
}

/// Takes the completions of a lane, from `first` on, and submits anew: how many commands there are less.
fn turn(
    lane: &mut Lane,
    job: &mut impl Job,
    first: Completion,
    now: Instant,
) -> Result<usize, Error> {
    let mut less = 0;
    let mut next = Some(first);
    while let Some(completion) = next {
        let slot = lane.slots.get_mut(usize::from(completion.cid));
        let slot = slot
            .filter(|slot| slot.since.is_some())
            .ok_or(Error::Stray {
                queue: lane.queue.id,
                cid: completion.cid,
            })?;
        if completion.status != 0 {
            return Err(Error::Command {
                opcode: slot.entry().opcode,
                status: completion.status,
            });
        }
        job.done(now, slot)?;
        match job.next(now, slot)? {
            Some(place) => {
                slot.aim(job.direction(), place);
                slot.since = Some(now);
                lane.queue.push(slot.entry())?;
            }
            None => {
                slot.since = None;
                less += 1;
            }
        }
        next = lane.queue.pop()?;
    }
    lane.queue.ring()?;
    Ok(less)
}
