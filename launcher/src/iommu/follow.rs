//! Records as they come.

use std::time::Duration;

use super::line::{line, lost};
use super::recorded::Recorded;
use peerbar_lab::terminal::print;

/// Time between two polls for new records.
const INTERVAL: Duration = Duration::from_millis(100);

/// Prints every record from now on, until no device runs any more.
pub(super) fn follow(recorded: &Recorded) -> anyhow::Result<()> {
    let begun = |device: &super::recorded::RecordedDevice| device.flight.header.begun;
    let mut next: Vec<u64> = recorded.shown().map(begun).collect();
    loop {
        let mut live = false;
        let mut fresh = Vec::new();
        for (device, next) in recorded.shown().zip(&mut next) {
            // This comes before the records are read, so that those before the device's end are not
            // missed.
            live |= device.file.is_live()?;
            let tail = device.file.tail(*next)?;
            *next = tail.next;
            if tail.lost > 0 {
                print(&format!("{}\n", lost(&device.name, tail.lost)))?;
            }
            fresh.extend(tail.records.into_iter().map(|record| (device, record)));
        }
        fresh.sort_by_key(|(_, record)| record.nanos);
        let lines = fresh
            .iter()
            .map(|(device, record)| line(recorded, device, record) + "\n");
        print(&lines.collect::<String>())?;
        if !live {
            return Ok(());
        }
        std::thread::sleep(INTERVAL);
    }
}
