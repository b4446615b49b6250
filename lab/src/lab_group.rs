//! Several guests in one run: started together, joined by one fabric, checked, and concluded as
//! one.

mod conclusion;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use peerbar_rdma_end::two_ends;
use peerbar_report::{Check, DeviceCounters, HostFolder, Verdict};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::child::Killer;
use crate::counters::CounterFiles;
use crate::exit::{Failure, RunOutcome};
use crate::finished_run::{SCENARIO, VERDICT, leave_not_run};
use crate::folder::Folder;
use crate::group_check::{Conducted, Guests};
use crate::group_fabric::GroupFabric;
use crate::guest_access::GuestAccess;
use crate::lab::Lab;
use crate::lab_error::LabError;
use crate::lab_options::LabOptions;
use crate::report::Row;
use crate::run_file;
use crate::scenario::{GroupCheck, GroupGuest, GuestGroup};
use crate::started::{Started, Versions};
use crate::verdict::RunVerdict;

/// File in the folder of a run of several guests: their names, which are also those of their
/// folders in it.
pub const GUESTS: &str = "guests.json";
/// The folder in a guest's that the guest sees as `/host`. It is empty.
const HOST: &str = "host";

/// Returns the names of the guests of a run, which are none for a run of one guest.
///
/// # Errors
/// A list that cannot be read.
pub fn guests_of(run: &Path) -> anyhow::Result<Vec<String>> {
    let path = run.join(GUESTS);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = run_file::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not a list", path.display()))
}

/// Returns the folder of the run of several guests to which the guest in `folder` belongs, or
/// `None` if `folder` is not a guest's.
///
/// # Errors
/// A list of guests that cannot be read.
pub fn group_of(folder: &Path) -> anyhow::Result<Option<PathBuf>> {
    let folder = fs::canonicalize(folder).unwrap_or_default();
    let (Some(group), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Ok(None);
    };
    let is_guest = guests_of(group)?.iter().any(|guest| **guest == *name);
    Ok(is_guest.then(|| group.to_owned()))
}

/// Guests that run. If they are dropped without [`LabGroup::conclude`], they are ended immediately
/// and leave no verdict.
pub struct LabGroup {
    /// Before the fabric, which must outlive them.
    labs: Vec<Lab>,
    /// Number of ready ones. They become ready in order.
    ready: usize,
    fabric: Option<GroupFabric>,
    group: GuestGroup,
    /// Checks across guests that have a result.
    rows: Vec<(Check, Row)>,
    /// The error that has ended the run early.
    failure: Option<LabError>,
    folder: Folder,
    started: Instant,
}

/// Guests that have ended and are judged.
pub struct ConcludedGroup {
    /// The verdict on the run, with the reason.
    pub verdict: RunVerdict,
    /// The results of all checks. The name of a guest's check begins with the guest's name.
    pub rows: Vec<Row>,
    /// From the start to the end.
    pub seconds: f64,
    folder: Folder,
}

impl ConcludedGroup {
    /// Returns `true` if the verdict is a pass.
    pub fn is_passed(&self) -> bool {
        self.verdict.outcome == RunOutcome::Passed
    }

    /// Returns the run's folder, which has a folder for each guest.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes the verdict: the last file of the run's folder.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn seal(&self) -> anyhow::Result<()> {
        self.folder.write(VERDICT, &format!("{}\n", self.verdict))
    }
}

impl LabOptions {
    /// Starts the fabric and the guests of `group`, two at a time, and waits until all are ready
    /// and have run their checks. `progress` gets a line about each step. A guest that ends is no
    /// error here: see [`LabGroup::failure`].
    ///
    /// # Errors
    /// The reason why the guests cannot be started.
    pub fn start_group(
        self,
        group: GuestGroup,
        progress: &mut dyn FnMut(&str),
    ) -> Result<LabGroup, LabError> {
        let folder = self.runs.begin(&group.name)?;
        let mut started = LabGroup {
            labs: Vec::new(),
            ready: 0,
            fabric: None,
            group,
            rows: Vec::new(),
            failure: None,
            folder,
            started: Instant::now(),
        };
        started
            .start(&self, progress)
            .inspect_err(|error| leave_not_run(&started.folder, error))?;
        Ok(started)
    }
}

impl LabGroup {
    /// Returns the error that has ended the run early, if there is one.
    pub fn failure(&self) -> Option<&LabError> {
        self.failure.as_ref()
    }

    /// Returns the guest of this name.
    pub fn guest(&mut self, name: &str) -> Option<&mut Lab> {
        let number = self
            .group
            .guests
            .iter()
            .position(|guest| guest.name == name)?;
        self.labs.get_mut(number)
    }

    /// Runs the scenario's checks across guests. `progress` gets a line about each result.
    ///
    /// # Errors
    /// The reason why one cannot be run.
    pub fn run_checks(&mut self, progress: &mut dyn FnMut(&str)) -> Result<(), LabError> {
        for GroupCheck { name, check } in self.group.checks.clone() {
            if self.failure.is_none() {
                let row = self.check(&name, &check)?;
                progress(&format!("{}: {name}", row.verdict.word()));
            }
        }
        Ok(())
    }

    /// Runs a check whose ends are in different guests, with the name `name` in the report.
    ///
    /// # Errors
    /// [`LabError::NoDevice`], or a kind of check that belongs to one guest. A guest that ends is
    /// no error: see [`LabGroup::failure`].
    pub fn check(&mut self, name: &str, check: &Check) -> Result<Row, LabError> {
        let ends = two_ends(check);
        let ends = ends.with_context(|| format!("`{}` belongs to one guest", check.kind()))?;
        let killer = self.expect_death(check)?;
        let [near_nic, far_nic] = ends.ends().map(|end| end.nic);
        let (near, far) = (self.guest_with(near_nic)?, self.guest_with(far_nic)?);
        let sockets = [(near_nic, near.socket()), (far_nic, far.socket())];
        let own_limit = near.scenario().check_seconds();
        let seconds = check.seconds().unwrap_or(own_limit);
        let deadline = Instant::now() + Duration::from_secs(seconds.into());
        let counters: Vec<Arc<CounterFiles>> = self.labs.iter().map(Lab::counter_files).collect();
        let work = |stops: Vec<UnixStream>| {
            let guests = Guests {
                sockets,
                counters: &counters,
                stops: stops.into(),
                deadline,
                killer,
            };
            (Conducted::of(ends, &guests), signal(&guests.stops))
        };
        let mut labs = named(&self.group, &mut self.labs);
        let done = match run_beside_group(self.fabric.as_mut(), &mut labs, Box::new(work)) {
            Ok((done, None)) => done,
            Ok((done, Some(signal))) => {
                self.failure = Some(Failure::Interrupted(signal).into());
                done
            }
            Err(error) => {
                let done = Conducted::failed(&error);
                self.failure = Some(error);
                done
            }
        };
        let nvmes = self.group.guests.iter();
        let nvmes = nvmes.flat_map(|guest| &guest.scenario.nvmes);
        let uncounted = nvmes.filter(|nvme| !nvme.counted);
        let uncounted: Vec<&str> = uncounted.map(|nvme| nvme.name.as_str()).collect();
        let guests = self.group.guests.iter();
        let mut devices = guests.flat_map(|guest| guest.scenario.devices());
        let has_faults = devices.any(|device| !device.faults().is_empty());
        let row = done.row(name, ends, &uncounted, has_faults);
        self.rows.push((check.clone(), row.clone()));
        Ok(row)
    }

    /// Returns the results so far. The name of a guest's check begins with the guest's name.
    pub fn rows(&self) -> Vec<Row> {
        let guests = self.group.guests.iter().zip(&self.labs);
        let own = guests.flat_map(|(guest, lab)| {
            lab.rows().iter().zip(1..).map(|(row, number)| {
                let name = guest.scenario.label(number).unwrap_or(&row.name);
                Row {
                    name: guest.name_of(name),
                    ..row.clone()
                }
            })
        });
        let across = self.rows.iter().map(|(_, row)| row.clone());
        own.chain(across).collect()
    }

    /// Returns `true` if a check has failed so far.
    pub fn has_failed_check(&self) -> bool {
        let rows = self.rows();
        rows.iter().any(|row| row.verdict == Verdict::Fail)
    }

    /// Returns the run's folder, which has a folder for each guest.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Keeps the guests running until a signal comes. A guest that ends before ends the run: see
    /// [`LabGroup::failure`].
    pub fn stay(&mut self) {
        let mut labs = named(&self.group, &mut self.labs);
        let work = Box::new(|stops: Vec<UnixStream>| wait_for(&stops));
        let waited = run_beside_group(self.fabric.as_mut(), &mut labs, work);
        let ended = match waited {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(anyhow!(error).into()),
            Err(error) => Some(error),
        };
        self.failure = ended;
    }

    /// Returns an object that kills the server that `check` loses, if it loses one. The kernel of
    /// its guest may warn of that.
    fn expect_death(&mut self, check: &Check) -> Result<Option<Killer>, LabError> {
        let Some(name) = check.kills() else {
            return Ok(None);
        };
        let lab = self
            .group
            .guest_of(name)
            .and_then(|number| self.labs.get_mut(number));
        let killer = match (lab, &mut self.fabric) {
            (Some(lab), _) => {
                lab.expect_warnings(check.warnings());
                lab.expect_death(name)?
            }
            (None, Some(fabric)) => fabric.expect_death()?,
            (None, None) => return Err(LabError::NoDevice(name.to_owned())),
        };
        Ok(Some(killer))
    }

    /// Returns the guest that has the adapter `nic`.
    fn guest_with(&self, nic: &str) -> Result<&Lab, LabError> {
        let number = self.group.guest_of(nic);
        let lab = number.and_then(|number| self.labs.get(number));
        lab.ok_or_else(|| LabError::NoDevice(nic.to_owned()))
    }

    /// Returns the DMA counters of each device of each guest at this moment, by its name.
    pub fn counters(&self) -> BTreeMap<String, DeviceCounters> {
        self.labs.iter().flat_map(Lab::counters).collect()
    }

    fn start(
        &mut self,
        options: &LabOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), LabError> {
        self.begin(Versions::default())?;
        let names: Vec<&str> = self
            .group
            .guests
            .iter()
            .map(|guest| guest.name.as_str())
            .collect();
        self.folder.write_json(GUESTS, &names)?;
        self.folder.write(SCENARIO, &self.group.text)?;
        if let Some(fabric) = &self.group.fabric {
            let started = GroupFabric::start(fabric, &self.folder, options.own_signals())?;
            self.fabric = Some(started);
        }
        for guest in self.group.guests.clone() {
            progress(&format!("{}: booting", guest.name));
            let lab = self.boot(options, &guest);
            self.labs
                .push(lab.map_err(|error| error.of_guest(&guest.name))?);
            if let [only] = self.labs.as_slice() {
                self.begin(Started::read(only.folder())?.versions)?;
            }
            // Two boots at a time.
            if self.labs.len().saturating_sub(self.ready) > 1 && !self.wait_for_next(progress)? {
                return Ok(());
            }
        }
        while self.ready < self.labs.len() {
            if !self.wait_for_next(progress)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Writes the marker of the run.
    fn begin(&self, versions: Versions) -> anyhow::Result<()> {
        self.folder.begin(Some(&self.group.path), versions)
    }

    /// Boots one guest.
    fn boot(&self, options: &LabOptions, guest: &GroupGuest) -> Result<Lab, LabError> {
        let folder = self.folder.of_guest(&guest.name)?;
        let mut options = options.clone();
        if options.access.is_none() {
            let host = folder.path().join(HOST);
            fs::create_dir(&host).with_context(|| format!("cannot make {}", host.display()))?;
            options = options.access(GuestAccess {
                folder: host,
                permission: HostFolder::ReadOnly,
            });
        }
        options.fabric = self.fabric.as_ref().map(GroupFabric::socket);
        let run = options.prepare_interactive(guest.scenario.clone(), Some(folder))?;
        run.boot()
    }

    /// Waits until the next guest is ready. Returns `false` if the run has ended.
    fn wait_for_next(&mut self, progress: &mut dyn FnMut(&str)) -> Result<bool, LabError> {
        let guest = self.group.guests.get(self.ready);
        let guest = guest.context("no guest to wait for")?;
        let mut labs = named(&self.group, &mut self.labs);
        let (_, lab) = labs.remove(self.ready);
        let work = |stops: Vec<UnixStream>| lab.become_ready_until(&stops);
        let ready = run_beside_group(self.fabric.as_mut(), &mut labs, Box::new(work))
            .and_then(|ready| ready.map_err(|error| error.of_guest(&guest.name)));
        match ready {
            Ok(()) => {}
            Err(error) if error.is_of_run() => {
                self.failure = Some(error);
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        let checks = guest.scenario.checks.len();
        progress(&format!(
            "{}: ready, and its checks have ended: {checks}",
            guest.name
        ));
        self.ready = self.ready.saturating_add(1);
        Ok(true)
    }
}

/// Work that takes streams, which become readable when it must stop.
type Work<'w, T> = Box<dyn FnOnce(Vec<UnixStream>) -> T + Send + 'w>;

/// Returns the guests that have been booted, by their names.
fn named<'a>(group: &'a GuestGroup, labs: &'a mut [Lab]) -> Vec<(&'a str, &'a mut Lab)> {
    let names = group.guests.iter().map(|guest| guest.name.as_str());
    names.zip(labs).collect()
}

/// Serves the fabric and all guests during `work`.
fn run_beside_group<T: Send>(
    fabric: Option<&mut GroupFabric>,
    labs: &mut [(&str, &mut Lab)],
    work: Work<'_, T>,
) -> Result<T, LabError> {
    match fabric {
        Some(fabric) => fabric.run_beside(|stop| run_beside_all(labs, vec![stop], work))?,
        None => run_beside_all(labs, Vec::new(), work),
    }
}

/// Serves all guests during `work`.
fn run_beside_all<T: Send>(
    labs: &mut [(&str, &mut Lab)],
    mut stops: Vec<UnixStream>,
    work: Work<'_, T>,
) -> Result<T, LabError> {
    let Some(((name, lab), others)) = labs.split_first_mut() else {
        return Ok(work(stops));
    };
    let done = lab.run_beside(|_, stop| {
        stops.push(stop);
        run_beside_all(others, stops, work)
    });
    done.map_err(|error| error.of_guest(name))?
}

/// Waits until one of `stops` is readable.
fn wait_for(stops: &[UnixStream]) -> io::Result<()> {
    let mut polled: Vec<PollFd<'_>> = stops
        .iter()
        .map(|stop| PollFd::new(stop, PollFlags::IN))
        .collect();
    loop {
        match poll(&mut polled, None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the number of the signal that has come by one of `stops`, or `None`.
fn signal(stops: &[UnixStream]) -> Option<i32> {
    stops.iter().find_map(|mut stop| {
        stop.set_nonblocking(true).ok()?;
        let mut number = [0];
        let is_there = stop.read(&mut number).ok()? > 0;
        is_there.then(|| i32::from(number[0]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_of_a_run_are_listed() {
        let run = tempfile::tempdir().unwrap();
        assert!(guests_of(run.path()).unwrap().is_empty());
        fs::write(run.path().join(GUESTS), r#"["left", "right"]"#).unwrap();
        assert_eq!(guests_of(run.path()).unwrap(), ["left", "right"]);
        let left = run.path().join("left");
        fs::create_dir(&left).unwrap();
        let group = run.path().canonicalize().unwrap();
        assert_eq!(group_of(&left).unwrap(), Some(group));
        for other in [run.path().to_owned(), run.path().join("right")] {
            assert_eq!(group_of(&other).unwrap(), None);
        }
        fs::write(run.path().join(GUESTS), "{}").unwrap();
        assert!(guests_of(run.path()).is_err() && group_of(&left).is_err());
    }

    #[test]
    fn signal_that_has_come_by_a_stream_is_found() {
        use std::io::Write;

        let pairs = [(); 2].map(|()| UnixStream::pair().unwrap());
        let [(first, _first), (second, mut sender)] = pairs;
        let stops = [first, second];
        assert_eq!(signal(&stops), None);
        sender.write_all(&[15]).unwrap();
        assert_eq!(signal(&stops), Some(15));
    }
}
