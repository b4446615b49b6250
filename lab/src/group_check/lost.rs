//! A part that dies while an adapter of one guest asks that of another.

use std::io;
use std::time::Duration;

use peerbar_rdma_end::{Amid, GO_ON_BYTES, Loss, Part, Side, go_on};
use peerbar_report::{RdmaLoad, RdmaLost, RdmaMemory, RdmaPart};

use super::{Guests, Transfers, lines};
use crate::scenario::AcrossEnd;

impl Transfers {
    /// Sends requests from the first of `ends` to the second until the part that `check` loses has
    /// died, and then tries the remaining parts.
    pub(super) fn lose(
        &mut self,
        check: &RdmaLost,
        ends: [AcrossEnd<'_>; 2],
        guests: &Guests<'_>,
    ) -> Result<(), String> {
        let loss = loss(check)?;
        let nics = ends.clone().map(|end| end.nic);
        let mut kill = || match &guests.killer {
            Some(killer) => killer.kill(),
            None => Err(io::Error::other("no device has to die")),
        };
        guests.between(ends, Loss::bytes(), |[near, far]| {
            self.before = guests.count();
            let done =
                self.results(|report| loss.conduct(lines(near), lines(far), &mut kill, report));
            // Later requests are not judged.
            self.after = guests.count();
            self.payload = done?;
            Ok(())
        })?;
        let [asks, asked] = nics;
        for &pair in loss.part.left() {
            let nics = pair.map(|side| match side {
                Side::Near => asks,
                Side::Far => asked,
            });
            let ends = nics.map(|nic| AcrossEnd {
                nic,
                memory: RdmaMemory::GuestRam,
                disk: None,
            });
            guests.between(ends, GO_ON_BYTES, |[near, far]| {
                let went_on = go_on(lines(near), lines(far));
                let name = format!("{} and {} go on", nics[0], nics[1]);
                self.add(name, 0, went_on.map(|()| Duration::ZERO))
            })?;
        }
        Ok(())
    }
}

/// Returns the part that `check` loses, and the activity during the loss.
fn loss(check: &RdmaLost) -> Result<Loss, String> {
    let part = match check.part() {
        Some(RdmaPart::Peer) => Part::Peer,
        Some(RdmaPart::Source) => Part::Source,
        Some(RdmaPart::Target) => Part::Target,
        Some(RdmaPart::Fabric) => Part::Fabric,
        None => return Err(format!("{} is not part of the transfer", check.loses)),
    };
    let amid = match check.by {
        RdmaLoad::Writes => Amid::Writes,
        RdmaLoad::Reads => Amid::Reads,
        RdmaLoad::Sends => Amid::Sends,
    };
    Ok(Loss { part, amid })
}
