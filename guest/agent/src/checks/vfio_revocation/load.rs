//! Continuous reads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use peerbar_vfio_nvme::{Direction, Disk};

use super::slot::{DEPTH, READ, Slot, TIME_OUT};

/// Continuous reads.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// Number of successful reads.
    pub(super) done: AtomicU64,
    /// Number of reads that ended with an error.
    pub(super) failed: AtomicU64,
    /// `true` once no further read may begin.
    stop: AtomicBool,
}

impl Load {
    /// Reads into `address` while `work` runs, and until the last of these reads has ended. Returns
    /// the result of `work`, and the reads.
    pub(super) fn during<T>(
        &self,
        disk: &mut Disk,
        address: u64,
        work: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Vec<Slot>)> {
        thread::scope(|scope| {
            let reads = scope.spawn(|| self.run(disk, address));
            let worked = work();
            self.stop.store(true, Ordering::Release);
            match reads.join() {
                Ok(read) => read.and_then(|slots| Ok((worked?, slots))),
                Err(_) => bail!("the thread that reads panicked"),
            }
        })
    }

    /// Reads until it must stop, and then until no command is outstanding or the controller is
    /// disabled.
    fn run(&self, disk: &mut Disk, address: u64) -> anyhow::Result<Vec<Slot>> {
        let mut slots = vec![Slot::default(); usize::try_from(DEPTH)?];
        let mut free: Vec<usize> = (0..slots.len()).collect();
        let mut of_command = BTreeMap::new();
        let mut stopped = None;
        loop {
            if self.stop.load(Ordering::Acquire) {
                stopped.get_or_insert_with(Instant::now);
            }
            while let (None, Some(index)) = (stopped, free.last().copied()) {
                let number = u64::try_from(index)?;
                let slot = slots.get_mut(index).context("a slot that is not there")?;
                let block = slot.begin(number) / disk.identity().block_bytes;
                let at = address.saturating_add(number.saturating_mul(READ));
                let cid = disk.submit(Direction::Read, block, at, READ)?;
                of_command.insert(cid, index);
                free.pop();
            }
            if let Some((_, completion)) = disk.reap()? {
                let is_done = completion.status == 0;
                if let Some(index) = of_command.remove(&completion.cid) {
                    if let Some(slot) = slots.get_mut(index).filter(|_| is_done) {
                        slot.end_with_success();
                    }
                    free.push(index);
                }
                let count = if is_done { &self.done } else { &self.failed };
                count.fetch_add(1, Ordering::AcqRel);
                continue;
            }
            match stopped {
                Some(_) if disk.outstanding() == 0 || !disk.is_ready()? => return Ok(slots),
                Some(since) if since.elapsed() > TIME_OUT => bail!(
                    "{} reads have not ended {} s later",
                    disk.outstanding(),
                    TIME_OUT.as_secs()
                ),
                _ => thread::yield_now(),
            }
        }
    }

    /// Waits until `count`, one of the counts above, is at least `reads`.
    pub(super) fn wait_for(&self, count: &AtomicU64, reads: u64) -> anyhow::Result<()> {
        let begun = Instant::now();
        while count.load(Ordering::Acquire) < reads {
            let (done, failed) = (&self.done, &self.failed);
            ensure!(
                begun.elapsed() < TIME_OUT,
                "{} reads have ended well and {} with an error, and no more do",
                done.load(Ordering::Acquire),
                failed.load(Ordering::Acquire)
            );
            thread::yield_now();
        }
        Ok(())
    }
}
