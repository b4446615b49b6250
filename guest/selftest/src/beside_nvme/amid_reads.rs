//! Queues that end while commands of the GPU are in progress, because the disk holds them back.

use std::thread;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use peerbar_agent::checks::held_back::{
    self, MARK, OFFSETS, READ_BYTES, holds_most_back, in_progress, is_marked,
    until_commands_are_met,
};
use peerbar_agent::counters::{Begun, TrafficWatch};
use peerbar_agent::devices::Controller;
use peerbar_agent::disk;
use peerbar_agent::gpus::Gpu;
use peerbar_agent::guest_context::GuestContext;
use peerbar_gds::{Buffer, Error, Fault, QueueState};
use peerbar_pattern::Pattern;

use super::{DEPTH, Reader, TIME_OUT};
use crate::Test;
use crate::expect::{sizes, take_all};
use crate::held_back_reader::HeldBackReader;
use crate::load::memory_is_back;
use crate::user::GpuUser;

/// The participants.
pub(super) struct AmidReads<'a> {
    guest: &'a GuestContext,
    disk: &'a Controller,
    gpu: &'a Gpu,
    pattern: Pattern,
}

impl<'a> AmidReads<'a> {
    pub(super) fn new(test: &Test<'a>) -> anyhow::Result<Self> {
        Ok(Self {
            pattern: super::prepare(test)?,
            guest: test.guest,
            disk: test.disk()?,
            gpu: test.gpu()?,
        })
    }

    /// Kills the program, then revokes the memory. Deleting the queues waits for the commands in
    /// progress.
    pub(super) fn ends(&self) -> anyhow::Result<String> {
        let killed =
            until_commands_are_met("the end of the program", || self.ends_with_its_program());
        let killed = killed.context("a program is killed amid reads")?;
        let revoked = until_commands_are_met("a revoke of its memory", || self.loses_its_memory());
        let revoked = revoked.context("memory is revoked amid reads")?;
        Ok(format!(
            "commands in progress: the end of the program met {killed}, a revoke of its memory {revoked}"
        ))
    }

    fn ends_with_its_program(&self) -> anyhow::Result<u64> {
        let free = self.gpu.free_vram()?;
        let (watch, begun) = self.begin();
        let shape = (DEPTH, self.disk.disk.block);
        let user = GpuUser::disk_queues(self.gpu.node(), &self.disk.node, shape)?;
        let met = self.wait_until_held_back(&watch, &begun, || Ok(false))?;
        user.kill()?;
        self.have_ended(&watch, &begun)?;
        memory_is_back(self.guest, self.gpu)?;
        self.next_owner_keeps_its_mark(free)?;
        self.others_work()?;
        Ok(met)
    }

    fn loses_its_memory(&self) -> anyhow::Result<u64> {
        let free = self.gpu.free_vram()?;
        let mut reader = self.reader()?;
        let (watch, begun) = self.begin();
        reader.launch()?;
        let met = self.wait_until_held_back(&watch, &begun, || has_ended(&mut reader))?;
        reader.data.revoke()?;
        self.have_ended(&watch, &begun)?;
        let state = reader.pair.state()?;
        ensure!(
            state == QueueState::Revoked,
            "the queues are {state:?}, but should be revoked"
        );
        ends_by_its_limit(reader.statuses(TIME_OUT))?;
        reader.delete().release();
        self.next_owner_keeps_its_mark(free)?;
        self.others_work()?;
        Ok(met)
    }

    /// Tests a disk that refuses to delete the queues, so that nvme resets it: then the commands in
    /// progress never end.
    pub(super) fn is_reset(&self) -> anyhow::Result<String> {
        let lost = until_commands_are_met("a reset in place of the deletion", || {
            self.is_reset_amid_reads()
        });
        let lost =
            lost.context("the disk should have refused to delete the queues, and have been reset")?;
        Ok(format!(
            "commands in progress: a reset in place of the deletion met {lost}"
        ))
    }

    fn is_reset_amid_reads(&self) -> anyhow::Result<u64> {
        let mut reader = self.reader()?;
        let (watch, begun) = self.begin();
        reader.launch()?;
        self.wait_until_held_back(&watch, &begun, || has_ended(&mut reader))?;
        let mut deleted = reader.delete();
        let lost = in_progress(&watch.since(&begun)?, self.disk.number)?;
        let ended = match lost {
            0 => Ok(()),
            _ => ends_by_its_limit(deleted.statuses(TIME_OUT)),
        };
        let memory = [&deleted.data, deleted.queue_memory()];
        let kept = ended.and_then(|()| self.keep_their_mark(&memory));
        deleted.release();
        kept?;
        self.others_work()?;
        Ok(lost)
    }

    fn begin(&self) -> (TrafficWatch<'_>, Begun) {
        let watch = TrafficWatch::new(self.guest);
        let begun = watch.begin();
        (watch, begun)
    }

    fn reader(&self) -> anyhow::Result<HeldBackReader> {
        let shape = (DEPTH, self.disk.disk.block);
        HeldBackReader::make(&self.gpu.open()?, &self.disk.node, shape)
    }

    /// Waits until the disk holds back most of the commands in progress. Returns their number.
    fn wait_until_held_back(
        &self,
        watch: &TrafficWatch<'_>,
        begun: &Begun,
        mut has_ended: impl FnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<u64> {
        let since = Instant::now();
        loop {
            let ended = has_ended()?;
            let traffic = watch.since(begun)?;
            if holds_most_back(&traffic, (self.disk.number, DEPTH), ended)? {
                return in_progress(&traffic, self.disk.number);
            }
            ensure!(
                since.elapsed() < TIME_OUT,
                "the disk holds back {} of {} commands, and no more come",
                traffic.injected_faults(self.disk.number),
                DEPTH
            );
            thread::yield_now();
        }
    }

    /// Checks that no command is in progress: the queues were deleted properly, so the disk has
    /// completed all of them.
    fn have_ended(&self, watch: &TrafficWatch<'_>, begun: &Begun) -> anyhow::Result<()> {
        let left = in_progress(&watch.since(begun)?, self.disk.number)?;
        ensure!(
            left == 0,
            "{left} commands of the GPU are in progress although its queues should be gone"
        );
        Ok(())
    }

    /// Checks that the memory is free again, and that its next owner's data stays unchanged.
    fn next_owner_keeps_its_mark(&self, free: u64) -> anyhow::Result<()> {
        let gpu = self.gpu.open()?;
        let taken = take_all(&gpu);
        let size = sizes(&taken);
        ensure!(
            size >= free,
            "{size} bytes of the GPU's memory are free, expected {free}"
        );
        self.keep_their_mark(&taken.iter().collect::<Vec<_>>())
    }

    /// Marks memory, and lets Linux execute a read that the disk holds back for as long as the
    /// earlier reads: all of its remaining work is done by then.
    fn keep_their_mark(&self, memory: &[&Buffer]) -> anyhow::Result<()> {
        for buffer in memory {
            let marks = vec![MARK; usize::try_from(buffer.size())?];
            buffer.mapping().write(0, &marks)?;
        }
        let [offset, _] = OFFSETS;
        let file = self.disk.disk.open_direct()?;
        disk::read(&file, offset, usize::try_from(READ_BYTES)?).context("Linux' own read")?;
        for buffer in memory {
            let mut seen = vec![0; usize::try_from(buffer.size())?];
            buffer.mapping().read(0, &mut seen)?;
            is_marked(&seen)?;
        }
        Ok(())
    }

    /// Checks that Linux' own I/O continues, and that new queues work. The disk grants only one
    /// pair, so the previous one must be gone.
    fn others_work(&self) -> anyhow::Result<()> {
        super::linux_works(self.guest, self.disk)?;
        let mut reader = Reader::make(self.disk, self.gpu, self.pattern)?;
        let read = reader.read_and_verify().context("by new queues");
        reader.release();
        read
    }
}

/// Returns `true` if the launch has ended, by its time limit at the earliest.
fn has_ended(reader: &mut HeldBackReader) -> anyhow::Result<bool> {
    match reader.statuses(held_back::PAUSE) {
        Err(Error::TimedOut(_)) => Ok(false),
        Ok(_) | Err(Error::Fault(Fault::TimeOut)) => Ok(true),
        Err(error) => Err(error).context("while the disk holds the reads back"),
    }
}

/// Checks that no completion came within the limit, since the disk holds them back for longer or
/// has lost them.
fn ends_by_its_limit(ended: peerbar_gds::Result<Vec<u16>>) -> anyhow::Result<()> {
    match ended {
        Err(Error::Fault(Fault::TimeOut)) => Ok(()),
        Ok(_) => bail!("the launch ended well instead of with fault 7"),
        Err(error) => Err(error).context("a launch that must end with fault 7"),
    }
}
