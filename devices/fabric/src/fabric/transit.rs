//! Packets that are delayed.

use std::collections::BTreeMap;
use std::time::Instant;

use super::port::Parcel;
use crate::gid::Gid;

/// The delayed packets, by the time of their arrival. Packets with the same time arrive in the
/// order in which they were sent.
#[derive(Debug, Default)]
pub(super) struct Transit {
    parcels: BTreeMap<(Instant, u64), Parcel>,
    last: u64,
}

impl Transit {
    pub(super) fn push(&mut self, at: Instant, parcel: Parcel) {
        self.last += 1;
        self.parcels.insert((at, self.last), parcel);
    }

    /// Returns the time at which the next packet arrives.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let ((at, _), _) = self.parcels.first_key_value()?;
        Some(*at)
    }

    /// Takes out the next packet whose time has come.
    pub(super) fn due(&mut self, now: Instant) -> Option<Parcel> {
        self.deadline().filter(|at| *at <= now)?;
        self.parcels.pop_first().map(|(_, parcel)| parcel)
    }

    /// Takes out all packets of an adapter.
    pub(super) fn take_out(&mut self, gid: Gid) -> Vec<Parcel> {
        let parcels = std::mem::take(&mut self.parcels).into_iter();
        let (of_it, others): (Vec<_>, Vec<_>) =
            parcels.partition(|(_, parcel)| parcel.sender.gid == gid);
        self.parcels = others.into_iter().collect();
        of_it.into_iter().map(|(_, parcel)| parcel).collect()
    }
}
