//! Reads of a GPU that a disk holds back by its rules, so that they are in progress regardless of
//! the host's speed, and the effects that they must not have once the disk has lost them.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::counters::Traffic;

/// Bytes of a read.
pub const READ_BYTES: u64 = 4096;
/// Offsets on the disk, in bytes, of the reads that it holds back before they begin, and of those
/// whose completions it holds back.
pub const OFFSETS: [u64; 2] = [8 << 20, 12 << 20];
/// Number of consecutive reads there.
const READS: u64 = 256;
/// Longest time to the next completion, after which a launch ends. The disk holds its reads back
/// for longer.
pub const LIMIT: Duration = Duration::from_secs(4);
/// Interval of looks at the disk's counters.
pub const PAUSE: Duration = Duration::from_millis(10);
/// Number of times that the disk may have completed the reads before it loses them, for instance on
/// a host that has stopped the guest.
const TRIES: usize = 8;
/// A mark that nothing may change afterwards.
pub const MARK: u8 = 0x5a;

/// Returns the number of requests of a launch with so many commands in progress: twice as many.
pub fn requests(depth: u16) -> u16 {
    depth.saturating_mul(2)
}

/// Returns the first logical blocks, of `block` bytes, of the reads of a launch: one of each kind
/// in turn.
pub fn firsts(depth: u16, block: u64) -> Vec<u64> {
    let reads = 0..u64::from(depth);
    let offsets = reads
        .flat_map(|number| OFFSETS.map(|start| start.saturating_add(number % READS * READ_BYTES)));
    offsets.map(|byte| byte / block).collect()
}

/// Returns the number of commands of peers' queues that a disk has fetched and not completed.
pub fn in_progress(traffic: &Traffic, disk: u32) -> anyhow::Result<u64> {
    let (fetched, completed) = (
        traffic.commands_from_peers(disk),
        traffic.completions_to_peers(disk),
    );
    fetched.checked_sub(completed).with_context(|| {
        format!("the disk has completed {completed} commands, and fetched {fetched}")
    })
}

/// Returns `true` if the disk holds back more than half of the commands that may be in progress. It
/// need not get all of them, since the GPU submits them in groups. A launch that has `ended`
/// without any shows that the disk lacks the rules.
pub fn holds_most_back(
    traffic: &Traffic,
    (disk, depth): (u32, u16),
    ended: bool,
) -> anyhow::Result<bool> {
    let held_back = traffic.injected_faults(disk);
    ensure!(
        held_back > 0 || !ended,
        "the disk has held back no command: give it the rules that the check's reference names"
    );
    Ok(held_back > u64::from(depth / 2))
}

/// Makes a disk lose commands, by `loss`, until some were in progress at that moment. Returns their
/// number.
pub fn until_commands_are_met(
    loss: impl fmt::Display,
    mut lose: impl FnMut() -> anyhow::Result<u64>,
) -> anyhow::Result<u64> {
    for _ in 0..TRIES {
        let met = lose()?;
        if met > 0 {
            return Ok(met);
        }
    }
    bail!("{TRIES} times the disk had completed all commands before {loss}")
}

/// Checks that the memory has the mark everywhere.
pub fn is_marked(seen: &[u8]) -> anyhow::Result<()> {
    let first = seen.iter().position(|byte| *byte != MARK);
    ensure!(
        first.is_none(),
        "the disk has written to the GPU's memory after it was taken away, at byte {first:?}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Completer, DeviceEvents, Direction, DmaKind, Purpose, Route};

    use super::*;

    fn traffic(commands: u64, completions: u64, held_back: u64) -> Traffic {
        let kind = |purpose| DmaKind {
            purpose,
            completer: Completer::PeerBar,
            route: Route::Peer,
            direction: Direction::Write,
        };
        let mut traffic = Traffic::default();
        traffic.count(0, kind(Purpose::Command), commands * 64, 0);
        traffic.count(0, kind(Purpose::Completion), completions * 16, 0);
        let events = DeviceEvents {
            injected_faults: held_back,
            ..DeviceEvents::default()
        };
        traffic.count_events(0, &events);
        traffic
    }

    #[test]
    fn commands_without_a_completion_are_in_progress() {
        assert_eq!(in_progress(&traffic(96, 64, 0), 0).unwrap(), 32);
        assert_eq!(in_progress(&traffic(64, 64, 0), 0).unwrap(), 0);
        assert!(in_progress(&traffic(1, 2, 0), 0).is_err());
    }

    #[test]
    fn disk_that_holds_nothing_back_is_refused() {
        let holds = |held_back, ended| holds_most_back(&traffic(96, 64, held_back), (0, 32), ended);
        assert!(holds(17, false).unwrap());
        assert!(!holds(16, false).unwrap() && !holds(0, false).unwrap());
        assert!(holds(0, true).is_err());
    }

    #[test]
    fn launch_reads_of_both_kinds_twice_the_depth() {
        let firsts = firsts(32, 512);
        assert_eq!(firsts.len(), usize::from(requests(32)));
        assert_eq!(firsts[..3], [16384, 24576, 16392]);
        assert!(firsts.iter().all(|first| (16384..32768).contains(first)));
        let kind = |first: &u64| *first < 24576;
        assert_eq!(firsts.iter().filter(|first| kind(first)).count(), 32);
    }

    #[test]
    fn loss_without_commands_in_progress_is_tried_again() {
        let mut met = [0, 0, 3].into_iter();
        let lost = until_commands_are_met("it", || met.next().context("once more"));
        assert_eq!(lost.unwrap(), 3);
        let never = until_commands_are_met("a reset", || Ok(0));
        let error = never.unwrap_err().to_string();
        assert!(error.ends_with("before a reset"), "{error}");
    }

    #[test]
    fn one_byte_in_place_of_the_mark_is_found() {
        let mut seen = [MARK; 64];
        assert!(is_marked(&seen).is_ok());
        seen[63] = 0;
        let error = is_marked(&seen).unwrap_err().to_string();
        assert!(error.ends_with("Some(63)"), "{error}");
    }
}
