//! `rdma`: transfers between memory of the one end and memory of the other.

use peerbar_report::Rdma;

use crate::conductor::{
    Counted, EndSpec, Results, Site, Step, TwoEnds, between, counted, length, memory_size,
};
use crate::ends::{Ends, Way};

impl TwoEnds for Rdma {
    fn ends(&self) -> [EndSpec<'_>; 2] {
        [
            EndSpec::new(&self.nic, &self.from),
            EndSpec::new(&self.peer, &self.to),
        ]
    }

    fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    fn conduct(&self, site: &mut dyn Site, results: &mut Results) -> Step<()> {
        between(site, self.ends(), memory_size(&self.sizes), |site, ends| {
            counted(site, |_| transfers(ends, &self.sizes, results))
        })
    }

    fn judge_payload(&self, counted: Counted<'_>, results: &Results) -> Step<()> {
        self.judge(counted.flows, results.payload)
    }
}

/// Transfers each of `sizes` in each possible way.
///
/// # Errors
/// An end is unusable.
pub fn transfers(ends: &mut Ends<'_>, sizes: &[u64], results: &mut Results) -> Step<()> {
    for &size in sizes {
        let size = length(size)?;
        for way in Way::ALL {
            if ends.takes(way, size) {
                let moved = ends.transfer(way, size, fastrand::u64(..));
                results.add(format!("{way} {size}"), size, moved)?;
            }
        }
    }
    Ok(())
}
