//! The end of a lab: the guest powers off or is stopped, and the run is judged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use peerbar_images::GuestImage;
use peerbar_report::Request;

use super::{FinishedLab, Lab, PreparedLab};
use crate::child::last_line;
use crate::debugger;
use crate::finished_run::{Concluded, FinishedRun, leave_not_run};
use crate::folder::QEMU_LOG;
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
        let folder = self.run.folder.path().to_owned();
        let Concluded { verdict, rows, .. } = self.seal(ending, |_, _| Ok(flaw))?;
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
            log::debug!("{} takes no request: {error:#}", self.run.scenario.name);
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

    /// Returns the kernel's bzImage if the guest has ended without output and was booted from
    /// another image: not every kernel with a PVH entry point can be started there.
    ///
    /// # Errors
    /// QEMU does not start.
    pub fn other_kernel(&self, ending: &Ending) -> Result<Option<PathBuf>, LabError> {
        let Ending::Ended(status) = ending else {
            return Ok(None);
        };
        if !self.guest.is_silent() {
            return Ok(None);
        }
        if !status.success() {
            // Another guest may have taken the port since it was found free.
            self.run.options.gdb.map_or(Ok(()), debugger::check_port)?;
            let words = last_line(&self.run.folder.path().join(QEMU_LOG));
            return Err(anyhow!("QEMU does not start ({status}): {words}").into());
        }
        let GuestImage { kernel, packed, .. } = &self.run.artifacts.guest;
        Ok(packed.clone().filter(|packed| packed != kernel))
    }

    /// Ends the guest and the servers, and begins the run again with the image `kernel`.
    ///
    /// # Errors
    /// A process that cannot be ended, or a file that cannot be replaced.
    pub fn begin_again(mut self, kernel: PathBuf) -> Result<PreparedLab, LabError> {
        self.guest.stop()?;
        self.run.artifacts.guest.kernel = kernel;
        self.run.folder.clear()?;
        self.run.mark()?;
        Ok(self.run)
    }

    /// Does the work of [`Lab::conclude`], and writes the verdict.
    pub(crate) fn seal(
        self,
        ending: Ending,
        complaint: impl FnOnce(&Scenario, &Path) -> anyhow::Result<Option<String>>,
    ) -> Result<Concluded, LabError> {
        let folder = self.run.folder.clone();
        let concluded = self.conclude(ending, complaint)?;
        concluded.seal(&folder)?;
        Ok(concluded)
    }

    /// Ends the servers after `ending`, and judges the run with the `complaint` about its records.
    /// [`Concluded::seal`] must follow.
    ///
    /// # Errors
    /// The reason why the run cannot be judged or stored.
    pub fn conclude(
        self,
        ending: Ending,
        complaint: impl FnOnce(&Scenario, &Path) -> anyhow::Result<Option<String>>,
    ) -> Result<Concluded, LabError> {
        let mut run = FinishedRun::stop(self.guest, ending)?;
        if run.complaint.is_none() {
            run.complaint = complaint(&self.run.scenario, self.run.folder.path())?;
        }
        Ok(run.conclude(&self.run.scenario, &self.run.folder)?)
    }

    /// Ends the guest immediately, and leaves the verdict that it has not run, with the reason.
    pub(crate) fn leave(self, why: &str) {
        leave_not_run(&self.run.folder, why);
    }
}
