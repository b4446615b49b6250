//! Reads and writes by Linux' own driver while other work is in progress.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, anyhow};
use peerbar_agent::mapped_buffer::MappedBuffer;
use peerbar_pattern::Pattern;

/// Bytes of a block, and the number of blocks. One transfer has one block, by one command.
pub(super) const IO_BYTES: u64 = 4096;
const BLOCKS: u64 = 64;
/// Bytes of the disk that are used.
pub(super) const BYTES: u64 = IO_BYTES * BLOCKS;

/// The progress of the transfers.
#[derive(Debug, Default)]
pub(super) struct Progress {
    transfers: AtomicU64,
    is_over: AtomicBool,
    stop: AtomicBool,
}

impl Progress {
    /// Returns `true` if all blocks have been written and read once, or a transfer has failed.
    pub(super) fn is_enough(&self) -> bool {
        self.transfers() >= 2 * BLOCKS || self.is_over.load(Ordering::Acquire)
    }

    fn transfers(&self) -> u64 {
        self.transfers.load(Ordering::Acquire)
    }
}

/// Writes and reads the blocks of `disk` from `start` on, over and over, until `work` is done.
/// Returns its value, and the number of transfers.
pub(super) fn beside<T>(
    disk: &File,
    pattern: Pattern,
    start: u64,
    work: impl FnOnce(&Progress) -> anyhow::Result<T>,
) -> anyhow::Result<(T, u64)> {
    let progress = Progress::default();
    let (value, linux) = thread::scope(|scope| {
        let linux = scope.spawn(|| {
            let done = transfer_until_stopped(disk, pattern, start, &progress);
            progress.is_over.store(true, Ordering::Release);
            done
        });
        let value = work(&progress);
        progress.stop.store(true, Ordering::Release);
        (value, linux.join())
    });
    let linux = linux.map_err(|_| anyhow!("the thread with Linux' I/O has panicked"))?;
    linux.context("Linux' own I/O")?;
    Ok((value?, progress.transfers()))
}

fn transfer_until_stopped(
    disk: &File,
    pattern: Pattern,
    start: u64,
    progress: &Progress,
) -> anyhow::Result<()> {
    let mut memory = MappedBuffer::guest_ram(usize::try_from(IO_BYTES)?)?;
    for block in (0..BLOCKS).cycle() {
        if progress.stop.load(Ordering::Acquire) {
            break;
        }
        let at = start.saturating_add(block * IO_BYTES);
        there_and_back(disk, pattern, at, &mut memory)?;
        progress.transfers.fetch_add(2, Ordering::AcqRel);
    }
    Ok(())
}

fn there_and_back(
    disk: &File,
    pattern: Pattern,
    at: u64,
    memory: &mut MappedBuffer,
) -> anyhow::Result<()> {
    let length = usize::try_from(IO_BYTES)?;
    memory.copy_in(&pattern.bytes(at, length))?;
    memory.write_to(disk, at, length)?;
    memory.copy_in(&vec![0; length])?;
    memory.read_from(disk, at, length)?;
    Ok(pattern.verify(at, &memory.to_vec(length)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATTERN: Pattern = Pattern { disk: 1, round: 7 };

    #[test]
    fn transfers_go_on_until_the_work_is_done() {
        let disk = tempfile::tempfile().unwrap();
        disk.set_len(BYTES + IO_BYTES).unwrap();
        let work = |progress: &Progress| {
            while !progress.is_enough() {
                thread::yield_now();
            }
            Ok(7)
        };
        let (value, transfers) = beside(&disk, PATTERN, IO_BYTES, work).unwrap();
        assert_eq!(value, 7);
        assert!(transfers >= 2 * BLOCKS, "{transfers}");
    }

    #[test]
    fn failed_transfer_ends_the_wait_and_is_reported() {
        let disk = File::open("/dev/null").unwrap();
        let work = |progress: &Progress| {
            while !progress.is_enough() {
                thread::yield_now();
            }
            Ok(())
        };
        let error = beside(&disk, PATTERN, 0, work).unwrap_err();
        assert_eq!(error.to_string(), "Linux' own I/O");
    }
}
