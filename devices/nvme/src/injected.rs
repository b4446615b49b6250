//! Faults that are injected into commands, and commands and completions that are held back.

use std::time::{Duration, Instant};

use peerbar_dma::Origin;
use peerbar_fault::{Action, BlockCommand, Kind};
use peerbar_nvme_spec::command::nvm::BlockRange;
use peerbar_nvme_spec::command::{NvmOpcode, SubmissionEntry};

use crate::data::DataPath;
use crate::ended::Ended;
use crate::job::Job;

/// A command or a completion that a worker holds back.
pub(crate) enum HeldBackItem {
    /// A command that has not begun.
    Command(Job),
    /// A completion.
    Completion(Ended),
}

/// Items that are held back, each until it is due.
pub(crate) struct HeldBack<T>(Vec<(Instant, T)>);

impl<T> Default for HeldBack<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> HeldBack<T> {
    pub(crate) fn add(&mut self, by: Duration, held: T) {
        self.0.push((Instant::now() + by, held));
    }

    /// Returns the time at which the first item is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.0.iter().map(|(due, _)| *due).min()
    }

    /// Takes an item that is due, the earliest first.
    pub(crate) fn take_due(&mut self) -> Option<T> {
        let due = self.due().filter(|due| *due <= Instant::now())?;
        let at = self.0.iter().position(|(other, _)| *other == due)?;
        Some(self.0.remove(at).1)
    }

    /// Takes all items.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = T> {
        std::mem::take(&mut self.0)
            .into_iter()
            .map(|(_, held)| held)
    }
}

impl DataPath {
    /// Returns the fault that a rule injects into a command of queue `queue`, or, with
    /// [`Kind::Completion`] or [`Kind::Data`], into its completion or its data.
    #[inline]
    pub(crate) fn injected(
        &self,
        kind: Kind,
        queue: u16,
        entry: &SubmissionEntry,
    ) -> Option<Action> {
        let faults = self.requester().faults();
        if !faults.is_armed(kind) {
            return None;
        }
        let fired = match kind {
            Kind::Command => faults.command(&block_command(entry)),
            Kind::Completion => faults.completion(&block_command(entry)),
            Kind::Data => faults.data(&block_command(entry)),
            _ => faults.admin_command(entry.opcode),
        }?;
        let origin = Origin::command(queue, entry.cid.get());
        self.requester().note_injected(origin, &fired);
        Some(fired.action)
    }
}

fn block_command(entry: &SubmissionEntry) -> BlockCommand {
    use NvmOpcode::{Compare, Read, Verify, Write, WriteZeroes};
    let with_range = [Read, Write, WriteZeroes, Compare, Verify];
    let opcode = NvmOpcode::try_from(entry.opcode);
    let has_range = opcode.is_ok_and(|opcode| with_range.contains(&opcode));
    let range = BlockRange::from(entry);
    let first = range.slba.get();
    BlockCommand {
        opcode: entry.opcode,
        nsid: entry.nsid.get(),
        blocks: has_range.then(|| first..first.saturating_add(range.blocks().into())),
    }
}
