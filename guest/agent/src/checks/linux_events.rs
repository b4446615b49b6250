//! A positive control of the counts of a disk's interrupts and doorbells: Linux' own driver must
//! show in both.

use anyhow::ensure;

use crate::counters::{Traffic, TrafficWatch};
use crate::devices::Controller;
use crate::guest_context::GuestContext;

/// Calls `work`, in which Linux' driver uses the disk. The disk's interrupts must be counted, and
/// its doorbells if it counts any: otherwise a later count of 0 would mean nothing. Nobody counts
/// those of a disk with a server of another project.
pub fn counted<T>(
    guest: &GuestContext,
    disk: &Controller,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if !guest.counts_interrupts(disk.number) {
        return work();
    }
    let mut watch = TrafficWatch::new(guest);
    let value = watch.watch(work)?;
    judge(watch.traffic()?, disk.number)?;
    Ok(value)
}

fn judge(traffic: &Traffic, disk: u32) -> anyhow::Result<()> {
    ensure!(
        traffic.interrupts(disk) > 0,
        "the disk counts no interrupt while Linux' driver uses it: that it counts none for the GPU shows nothing"
    );
    let doorbells = traffic.doorbells(disk);
    ensure!(
        doorbells.is_none_or(|by_queue| !by_queue.is_empty()),
        "the disk counts no doorbell while Linux' driver uses it: that it counts none of a processor shows nothing"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::DeviceEvents;

    use super::*;

    fn judged(interrupts: u64, doorbells: Option<&[(u16, u64)]>) -> Result<(), String> {
        let mut traffic = Traffic::default();
        let events = DeviceEvents {
            interrupts,
            injected_faults: 0,
            doorbells: doorbells.map(|doorbells| doorbells.iter().copied().collect()),
        };
        traffic.count_events(0, &events);
        judge(&traffic, 0).map_err(|error| error.to_string())
    }

    #[test]
    fn disk_that_counts_nothing_of_linux_fails() {
        assert_eq!(judged(1, Some(&[(0, 3), (1, 1)])), Ok(()));
        let interrupts = judged(0, Some(&[(1, 1)])).unwrap_err();
        assert!(interrupts.contains("no interrupt"), "{interrupts}");
        for none in [&[] as &[_], &[(1, 0)]] {
            let doorbells = judged(1, Some(none)).unwrap_err();
            assert!(doorbells.contains("no doorbell"), "{doorbells}");
        }
    }

    #[test]
    fn disk_that_cannot_count_doorbells_is_judged_by_interrupts() {
        assert_eq!(judged(1, None), Ok(()));
        assert!(judged(0, None).is_err());
    }
}
