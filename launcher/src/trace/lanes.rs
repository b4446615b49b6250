//! Overlapping events, spread over lanes without overlaps. Perfetto shows the lanes of one name as
//! one track.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::io::{self, Write};

use super::file::{TimedEvent, TraceFile, Track};

/// Gives each interval the lowest lane that is free.
#[derive(Default)]
struct Lanes {
    free: BTreeSet<usize>,
    /// Time at which each used lane becomes free.
    busy: BinaryHeap<Reverse<(u64, usize)>>,
    count: usize,
}

impl Lanes {
    /// Returns the lane of an interval that begins no earlier than the one before.
    fn take(&mut self, from: u64, to: u64) -> usize {
        while let Some(Reverse((end, lane))) = self.busy.peek().copied() {
            if end > from {
                break;
            }
            self.busy.pop();
            self.free.insert(lane);
        }
        let lane = self.free.pop_first().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        });
        self.busy.push(Reverse((to, lane)));
        lane
    }
}

/// Adds all of `events` to tracks of this name, as many as are needed.
pub(super) fn add<W: Write>(
    file: &mut TraceFile<W>,
    name: &str,
    parent: Track,
    mut events: Vec<TimedEvent>,
) -> io::Result<()> {
    events.sort_by_key(|event| event.from);
    let mut lanes = Lanes::default();
    let mut tracks: Vec<Track> = Vec::new();
    for event in &events {
        let lane = lanes.take(event.from, event.to.unwrap_or(event.from));
        let track = match tracks.get(lane) {
            Some(track) => *track,
            None => {
                let track = file.track(name, Some(parent))?;
                tracks.push(track);
                track
            }
        };
        file.event(track, event)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lanes_are_used_again_once_they_are_free() {
        let mut lanes = Lanes::default();
        let taken =
            [(0, 10), (5, 7), (6, 20), (7, 8), (10, 11), (30, 31)].map(|(a, b)| lanes.take(a, b));
        assert_eq!(taken, [0, 1, 2, 1, 0, 0]);
    }

    proptest! {
        #[test]
        fn intervals_of_one_lane_never_overlap(mut spans in proptest::collection::vec((0..1000u64, 0..50u64), 1..200)) {
            spans.sort_unstable();
            let mut lanes = Lanes::default();
            let mut ends = std::collections::BTreeMap::new();
            for (from, len) in spans {
                let lane = lanes.take(from, from + len);
                let end: u64 = ends.insert(lane, from + len).unwrap_or(0);
                prop_assert!(end <= from);
            }
        }
    }
}
