//! The end of a lab: the guest powers off or is stopped, and the run is judged.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use peerbar_report::Request;

use super::{FinishedLab, Lab};
use crate::finished_run::{Concluded, FinishedRun, leave_not_run};
use crate::guest::CONSOLE_LOG;
use crate::lab_error::LabError;
use crate::run_file;
use crate::scenario::Scenario;
use crate::verdict::Ending;

/// Longest time until a guest has powered off.
const POWER_OFF: Duration = Duration::from_secs(30);
/// Time for a guest to end by itself after the run was ended, before it is stopped.
const DYING: Duration = Duration::from_secs(1);

impl Lab {
    /// Powers the guest off, ends the servers, and judges the run. The records of `sanitize = true`
    /// are not judged: see [`peerbar_flight::Sanitizer`] and `peerbar iommu --sanitize`.
    ///
    /// # Errors
    /// The reason why the run cannot be judged or stored.
    pub fn shut_down(self) -> Result<FinishedLab, LabError> {
        self.shut_down_after(None)
    }

    /// Does the work of [`Lab::shut_down`], for a run in which the work failed for the reason
    /// `flaw`: that run does not pass.
    ///
    /// # Errors
    /// Those of [`Lab::shut_down`].
    pub fn shut_down_after(mut self, flaw: Option<String>) -> Result<FinishedLab, LabError> {
        self.ask_to_power_off();
        let ending = self.wait_for_power_off()?;
        let folder = self.folder.path().to_owned();
        let Concluded { verdict, rows, .. } = self.conclude(ending, |_, _| Ok(flaw))?;
        let console = folder.join(CONSOLE_LOG);
        let console = run_file::read(&console)
            .with_context(|| format!("cannot read {}", console.display()))?;
        Ok(FinishedLab {
            verdict,
            checks: rows,
            console: String::from_utf8_lossy(&console).into_owned(),
            folder,
        })
    }

    /// Asks the guest to power off. A guest that has already ended is no error here.
    pub(crate) fn ask_to_power_off(&mut self) {
        if let Err(error) = self.guest.request(&Request::End) {
            log::debug!("{} takes no request: {error:#}", self.scenario.name);
        }
    }

    /// Waits until the guest has powered off.
    pub(crate) fn wait_for_power_off(&mut self) -> Result<Ending, LabError> {
        Ok(match self.guest.ending(POWER_OFF)? {
            Ending::TimedOut(seconds) => Ending::StayedOn(seconds),
            ending => ending,
        })
    }

    /// Returns its ending after something else has ended the run: by itself for the same reason, or
    /// stopped for `why`.
    pub(crate) fn stop_for(&mut self, why: &str) -> Result<Ending, LabError> {
        Ok(match self.guest.ending(DYING)? {
            Ending::TimedOut(_) => Ending::Stopped(why.to_owned()),
            ending => ending,
        })
    }

    /// Ends the servers after `ending`, and judges the run with the `complaint` about its records.
    pub(crate) fn conclude(
        self,
        ending: Ending,
        complaint: impl FnOnce(&Scenario, &Path) -> anyhow::Result<Option<String>>,
    ) -> Result<Concluded, LabError> {
        let mut run = FinishedRun::stop(self.guest, ending)?;
        if run.complaint.is_none() {
            run.complaint = complaint(&self.scenario, self.folder.path())?;
        }
        let concluded = run.conclude(&self.scenario, &self.folder)?;
        concluded.seal(&self.folder)?;
        Ok(concluded)
    }

    /// Ends the guest immediately, and leaves the verdict that it has not run, with the reason.
    pub(crate) fn leave(self, why: &str) {
        leave_not_run(&self.folder, why);
    }
}
