//! The end of a run of several guests: all are ended, then judged as one.

use std::path::Path;

use anyhow::anyhow;

use super::{ConcludedGroup, LabGroup};
use crate::exit::Failure;
use crate::finished_run::Concluded;
use crate::group_verdict::Judged;
use crate::lab::Lab;
use crate::lab_error::LabError;
use crate::scenario::{GroupGuest, Scenario};
use crate::verdict::Ending;

impl LabGroup {
    /// Powers the guests off, ends all servers and judges the run with the `complaint` about each
    /// guest's records. [`ConcludedGroup::seal`] must follow.
    ///
    /// # Errors
    /// The reason why the run cannot be judged or stored.
    pub fn conclude(
        mut self,
        complaint: impl Fn(&Scenario, &Path) -> anyhow::Result<Option<String>>,
    ) -> Result<ConcludedGroup, LabError> {
        let why = self.failure.as_ref().map(ToString::to_string);
        // The others are ended and judged even if one cannot be.
        self.leave_unbegun(why.as_deref());
        let stop = match self.failure {
            Some(LabError::Host(Failure::Interrupted(signal))) => Some(Ending::Signal(signal)),
            _ => why.map(Ending::Stopped),
        };
        let (concluded, mut errors) = conclude_all(&self.group.guests, self.labs, stop, complaint);
        let of_fabric = self.fabric.and_then(|fabric| {
            fabric.stop().unwrap_or_else(|error| {
                errors.push(error);
                None
            })
        });
        let error = errors.into_iter().next().map(LabError::from);
        let judged = Judged {
            group: &self.group,
            guests: concluded,
            across: self.rows,
            failure: self.failure.as_ref().or(error.as_ref()),
            of_fabric,
        };
        let seconds = self.started.elapsed().as_secs_f64();
        let verdict = judged.verdict();
        let rows = judged.rows();
        judged.write(&self.folder, &verdict, &rows, seconds)?;
        if let Some(error) = error {
            return Err(error);
        }
        Ok(ConcludedGroup {
            verdict,
            rows,
            seconds,
            folder: self.folder,
        })
    }

    /// Ends the guests that have not begun with their checks. They are not judged.
    fn leave_unbegun(&mut self, why: Option<&str>) {
        let begun = self.begun().min(self.labs.len());
        let why = why.unwrap_or("it was not waited for");
        self.labs.drain(begun..).for_each(|lab| lab.leave(why));
    }

    /// Returns the number of guests that have begun with their checks. This includes one that has
    /// failed, and one that became ready during the wait for it.
    fn begun(&self) -> usize {
        let waited_for = usize::from(self.failure.is_some());
        let begun = self.ready.saturating_add(waited_for);
        let next = self.labs.get(begun);
        begun.saturating_add(usize::from(next.is_some_and(Lab::is_ready)))
    }
}

/// Ends the guests and judges each. `stop` is the reason for the end of the run, if that was early:
/// busy guests are not waited for then. Returns the conclusions, and the errors of the others.
fn conclude_all(
    guests: &[GroupGuest],
    mut labs: Vec<Lab>,
    stop: Option<Ending>,
    complaint: impl Fn(&Scenario, &Path) -> anyhow::Result<Option<String>>,
) -> (Vec<(&GroupGuest, Concluded)>, Vec<anyhow::Error>) {
    if !matches!(stop, Some(Ending::Signal(_))) {
        let done = labs.iter_mut().filter(|lab| !lab.is_busy());
        done.for_each(Lab::ask_to_power_off);
    }
    let (mut concluded, mut errors) = (Vec::new(), Vec::new());
    for (guest, mut lab) in guests.iter().zip(labs) {
        let ending = match &stop {
            Some(Ending::Stopped(why)) if lab.is_busy() => lab.stop_for(why),
            Some(Ending::Signal(signal)) => Ok(Ending::Signal(*signal)),
            _ => lab.wait_for_power_off(),
        };
        match ending.and_then(|ending| lab.seal(ending, &complaint)) {
            Ok(judged) => concluded.push((guest, judged)),
            Err(error) => errors.push(anyhow!(error.of_guest(&guest.name))),
        }
    }
    (concluded, errors)
}
