//! `rdma-completions`: completion queues in an end's buffer.

use peerbar_report::{RdmaCompletions, RdmaMemory};

use crate::conductor::{Counted, EndSpec, Results, Site, Step, TwoEnds, between, counted};
use crate::ends::{MARGIN, Side};
use crate::error::in_one_line;
use crate::lost::go_on;
use crate::message::{Command, OwnTests};

impl TwoEnds for RdmaCompletions {
    /// Returns the end with the queues, and another one of the same adapter, which does nothing.
    fn ends(&self) -> [EndSpec<'_>; 2] {
        [&self.memory, &RdmaMemory::GuestRam].map(|memory| EndSpec::new(&self.nic, memory))
    }

    fn conduct(&self, site: &mut dyn Site, results: &mut Results) -> Step<()> {
        between(site, self.ends(), MARGIN, |site, ends| {
            if !self.loses {
                return counted(site, |_| {
                    results.add_own(ends.own_tests(Side::Near, OwnTests::Completions))
                });
            }
            let begun = ends.done(Side::Near, &Command::CompleteWrites);
            begun.map_err(|error| in_one_line(&error))?;
            site.kill().map_err(|error| in_one_line(&error))?;
            results.add_own(ends.own_tests(Side::Near, OwnTests::LostCompletions))
        })?;
        match self.loses {
            true => go_on(
                site,
                [&self.nic; 2],
                format!("{} goes on", self.nic),
                results,
            ),
            false => Ok(()),
        }
    }

    /// Accepts any payload. The check is judged by its completions.
    fn judge_payload(&self, _counted: Counted<'_>, _results: &Results) -> Step<()> {
        Ok(())
    }
}
