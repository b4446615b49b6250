//! Transfers that go through one or several disks, many at a time.

use std::time::{Duration, Instant};

use anyhow::anyhow;

use crate::drive::{Polling, failed, stray};
use crate::loaded_queue::{Direction, DiskAddress, LoadedQueue, Slot};

/// How many times all stages are polled without a completion before the processor is left to others: servers need more of them than
/// small machines have.
const SPINS: u32 = 50;

/// A device that does its part of transfers, by the number of their buffers.
pub(crate) trait Stage {
    /// Has it do its part, after the next [`Stage::ring`].
    fn submit(&mut self, buffer: usize, address: DiskAddress) -> anyhow::Result<()>;
    /// Notifies it of what was submitted.
    fn ring(&mut self) -> anyhow::Result<()>;
    /// The next buffer that it has done, if there is one.
    fn pop(&mut self) -> anyhow::Result<Option<usize>>;
}

/// Disk commands of one direction as a stage.
pub(crate) struct DiskStage {
    queue: LoadedQueue,
    direction: Direction,
    /// Whether completions have been taken that the controller does not know of.
    taken: bool,
}

impl DiskStage {
    /// The commands of `queue`, each with the buffer of its number.
    pub(crate) fn new(queue: LoadedQueue, direction: Direction) -> Self {
        Self {
            queue,
            direction,
            taken: false,
        }
    }
}

impl Stage for DiskStage {
    fn submit(&mut self, buffer: usize, address: DiskAddress) -> anyhow::Result<()> {
        let Some(slot) = self.queue.slots.get_mut(buffer) else {
            return Ok(());
        };
        slot.set_target(self.direction, address);
        Ok(self.queue.pair.push(slot.entry())?)
    }

    fn ring(&mut self) -> anyhow::Result<()> {
        Ok(self.queue.pair.ring()?)
    }

    fn pop(&mut self) -> anyhow::Result<Option<usize>> {
        let Some(completion) = self.queue.pair.pop()? else {
            if std::mem::take(&mut self.taken) {
                self.queue.pair.ring()?;
            }
            return Ok(None);
        };
        self.taken = true;
        let buffer = usize::from(completion.cid);
        match (completion.status, self.queue.slots.get(buffer)) {
            (0, Some(_)) => Ok(Some(buffer)),
            (0, None) => Err(anyhow!(stray(completion))),
            (_, slot) => Err(failed(slot.map_or(0, Slot::opcode), completion)),
        }
    }
}

/// The result of a chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Transfers that went through all stages.
    pub(crate) transfers: u64,
    pub(crate) time: Duration,
}

/// Sends transfers through `stages` as long as `next` has addresses for them, each with one of `buffers` buffers, and sleeps
/// for `sleep`, if given, while no stage has a completion.
pub(crate) fn run(
    stages: &mut [impl Stage],
    buffers: u16,
    sleep: Option<Duration>,
    next: &mut dyn FnMut() -> Option<DiskAddress>,
) -> anyhow::Result<Run> {
    let begun = Instant::now();
    let mut polling = Polling::new(begun, SPINS, sleep);
    let mut chain = Chain {
        stages,
        addresses: vec![None; buffers.into()],
        transfers: 0,
    };
    for buffer in 0..buffers {
        chain.begin(buffer.into(), next())?;
    }
    chain.ring(0)?;
    while chain.addresses.iter().any(Option::is_some) {
        if chain.turn(next)? {
            polling.progress(Instant::now());
        } else {
            polling.wait()?;
        }
    }
    Ok(Run {
        transfers: chain.transfers,
        time: begun.elapsed(),
    })
}

struct Chain<'s, S> {
    stages: &'s mut [S],
    /// By buffer: of the transfer that it is used for.
    addresses: Vec<Option<DiskAddress>>,
    transfers: u64,
}

impl<S: Stage> Chain<'_, S> {
    fn begin(&mut self, buffer: usize, address: Option<DiskAddress>) -> anyhow::Result<()> {
        if let Some(slot) = self.addresses.get_mut(buffer) {
            *slot = address;
        }
        self.submit(0, buffer)
    }

    fn submit(&mut self, stage: usize, buffer: usize) -> anyhow::Result<()> {
        let address = self.addresses.get(buffer).copied().flatten();
        match (self.stages.get_mut(stage), address) {
            (Some(stage), Some(address)) => stage.submit(buffer, address),
            _ => Ok(()),
        }
    }

    fn ring(&mut self, stage: usize) -> anyhow::Result<()> {
        self.stages.get_mut(stage).map_or(Ok(()), S::ring)
    }

    /// Polls every stage once; whether any has done something.
    fn turn(&mut self, next: &mut dyn FnMut() -> Option<DiskAddress>) -> anyhow::Result<bool> {
        let mut progress = false;
        for index in 0..self.stages.len() {
            let following = (index + 1) % self.stages.len();
            let mut done = false;
            while let Some(buffer) = self.pop(index)? {
                done = true;
                if following == 0 {
                    self.transfers += 1;
                    self.begin(buffer, next())?;
                } else {
                    self.submit(following, buffer)?;
                }
            }
            if done {
                self.ring(following)?;
            }
            progress |= done;
        }
        Ok(progress)
    }

    fn pop(&mut self, stage: usize) -> anyhow::Result<Option<usize>> {
        self.stages.get_mut(stage).map_or(Ok(None), S::pop)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::rc::Rc;

    use super::*;

    /// Does everything in order, once rung, and notes what.
    #[derive(Default)]
    struct Notes {
        submitted: VecDeque<usize>,
        rung: usize,
        done: Rc<RefCell<Vec<(usize, DiskAddress)>>>,
    }

    impl Stage for Notes {
        fn submit(&mut self, buffer: usize, address: DiskAddress) -> anyhow::Result<()> {
            self.submitted.push_back(buffer);
            self.done.borrow_mut().push((buffer, address));
            Ok(())
        }

        fn ring(&mut self) -> anyhow::Result<()> {
            self.rung = self.submitted.len();
            Ok(())
        }

        fn pop(&mut self) -> anyhow::Result<Option<usize>> {
            let Some(rung) = self.rung.checked_sub(1) else {
                return Ok(None);
            };
            self.rung = rung;
            Ok(self.submitted.pop_front())
        }
    }

    #[test]
    fn every_transfer_goes_through_all_stages_with_its_address() {
        let mut stages = [Notes::default(), Notes::default()];
        let [first, second] = stages.each_ref().map(|stage| stage.done.clone());
        let mut addresses = (0..10).map(|offset| DiskAddress { nsid: 1, offset });
        let run = run(&mut stages, 3, None, &mut || addresses.next()).unwrap();
        assert_eq!(run.transfers, 10);
        let sorted = |done: &RefCell<Vec<(usize, DiskAddress)>>| {
            let done = done.borrow();
            let mut offsets: Vec<u64> = done.iter().map(|(_, address)| address.offset).collect();
            offsets.sort_unstable();
            offsets
        };
        assert_eq!(sorted(&first), Vec::from_iter(0..10));
        assert_eq!(sorted(&second), Vec::from_iter(0..10));
        for pair in second.borrow().iter() {
            assert!(first.borrow().contains(pair), "a transfer keeps its buffer");
        }
    }
}
