//! The devices and the guest of a scenario, for Rust tests: start them, run checks and commands,
//! read counters and records.

mod ending;
mod programs;
mod start;

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use peerbar_flight::{Flight, FlightFile};
use peerbar_report::{
    Check, DeviceCounters, Expectation, HostFolder, Line, Program, Request, Verdict,
};

use crate::child::Killer;
use crate::counters::CounterFiles;
use crate::exit::{Failure, RunOutcome};
use crate::finished_run::leave_not_run;
use crate::folder::{QEMU_LOG, flight_record};
use crate::guest::{CONSOLE_LOG, Guest, GuestEvent, Next};
use crate::guest_files;
use crate::lab_error::LabError;
use crate::program_builds;
use crate::report::{Report, Row};
use crate::scenario::{Scenario, program as host_program};
use crate::signals;
use crate::socket_folder::SocketFolder;
use crate::survivors::Survivors;
use crate::verdict::{Ending, RunVerdict, death};

pub use start::PreparedLab;

/// Longest time until a guest is ready: a loaded machine without KVM needs a while.
const READY: Duration = Duration::from_secs(180);

/// A running lab. If it is dropped without [`Lab::shut_down`], it is ended immediately and leaves
/// no verdict.
pub struct Lab {
    /// Its guest, for a program that follows it by itself.
    pub guest: Guest<'static>,
    run: PreparedLab,
    /// Programs of the host's that requests have run.
    programs: usize,
    temporary: SocketFolder,
}

/// The result of a command in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutput {
    /// Its exit status, as a shell counts them: 128 and the number of a signal that ended it.
    pub status: i32,
    /// Its standard output and standard error. Control characters are blanks.
    pub text: String,
}

/// The result of a program in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramOutput {
    /// Its exit status, as a shell counts them: 128 and the number of a signal that ended it.
    pub status: i32,
    /// Its standard output.
    pub output: Vec<u8>,
    /// Its standard error.
    pub errors: Vec<u8>,
}

/// A lab that has ended.
#[derive(Debug)]
pub struct FinishedLab {
    /// The verdict. A failed check, a complaint of the kernel or a server that died is a failure.
    pub verdict: RunVerdict,
    /// The results of all checks and commands.
    pub checks: Vec<Row>,
    /// The guest's console.
    pub console: String,
    /// The run's folder: logs, records, results.
    pub folder: PathBuf,
}

impl FinishedLab {
    /// Returns `true` if the verdict is a pass.
    pub fn is_passed(&self) -> bool {
        self.verdict.outcome == RunOutcome::Passed
    }
}

impl Lab {
    /// Returns the run's folder.
    pub fn folder(&self) -> &Path {
        self.run.folder.path()
    }

    /// Returns the process of QEMU.
    pub fn qemu(&self) -> u32 {
        self.guest.qemu()
    }

    /// Returns the processes of the servers, and their names in the scenario.
    pub fn servers(&self) -> impl Iterator<Item = (&str, u32)> {
        self.guest.servers()
    }

    /// Returns the switches and devices with running servers, for [`crate::LabOptions::survivors`]
    /// once QEMU has ended: the end of a guest does not end its devices. Switches no longer learn
    /// the windows of this guest's ports.
    ///
    /// # Errors
    /// A process with an unknown state.
    pub fn survivors(&mut self) -> Result<Survivors, LabError> {
        let serving = self.guest.serving()?;
        let scenario = &self.run.scenario;
        let switches = scenario.switches.iter().map(|switch| &*switch.name);
        let devices = scenario.devices().map(|device| device.name());
        let names = switches
            .chain(devices)
            .filter(|name| serving.contains(*name));
        let names = names.map(str::to_owned).collect();
        Ok(Survivors::new(
            names,
            self.temporary.path(),
            self.run.folder.path(),
            self.guest.hand_over_switches(),
        ))
    }

    /// Returns the scenario.
    pub fn scenario(&self) -> &Scenario {
        &self.run.scenario
    }

    /// Runs `check` in the guest. A check that fails is no error: see [`Row::verdict`]. A program
    /// is built first.
    ///
    /// # Errors
    /// The reason why the guest does not run it. A guest that may write in a folder with the run in
    /// it gets no program: it could lead the copy elsewhere.
    pub fn check(&mut self, check: &Check) -> Result<Row, LabError> {
        match check {
            Check::Program(program) => self.check_program(program.clone(), &check.name()),
            check => Ok(self.request(check)?.0),
        }
    }

    /// Runs the check of a `[[check]]` table, as in `kind = "provider"` and `device = "disk0"` on
    /// two lines.
    ///
    /// # Errors
    /// A mistake in the table, with its line; else as [`Lab::check`].
    pub fn check_table(&mut self, lines: &str) -> Result<Row, LabError> {
        let check = self.run.scenario.check(lines)?;
        self.check(&check)
    }

    /// Runs the line `run` by `sh -c` in the tools root, where `{disk0}` stands for the character
    /// device of the controller `disk0`, `{disk0:disk}` for its first namespace and
    /// `{disk0:p2pmem}` for its p2pmem file. A status other than 0 is no error.
    ///
    /// # Errors
    /// [`LabError::CommandFailed`] without a tools root (`tools = true`), if the command did not
    /// end in time, or if the kernel complained during it; else as [`Lab::check`].
    pub fn command(&mut self, run: &str) -> Result<CommandOutput, LabError> {
        let command = Check::Command(peerbar_report::Command {
            run: run.to_owned(),
            expected: Expectation {
                judged_by_caller: true,
                show: true,
                ..Expectation::default()
            },
            seconds: None,
        });
        let (row, lines) = self.request(&command)?;
        let reason = match (&row.verdict, row.measure.status) {
            (Verdict::Pass, Some(status)) => {
                return Ok(CommandOutput {
                    status,
                    text: lines.join("\n"),
                });
            }
            (Verdict::Skip(reason), _) => reason.clone(),
            _ => lines.join("\n"),
        };
        Err(LabError::CommandFailed {
            name: row.name,
            reason,
        })
    }

    /// Returns the error of a lab whose guest is no longer followed.
    fn ended(&self, ending: Ending) -> LabError {
        match ending {
            Ending::Ended(status) => self.guest_ended(status),
            Ending::Signal(signal) => Failure::Interrupted(signal).into(),
            Ending::TimedOut(_) => LabError::TimedOut(self.console_log()),
            ending => LabError::Ended(ending),
        }
    }

    fn guest_ended(&self, status: ExitStatus) -> LabError {
        let console = &self.guest.console;
        let qemu = crate::child::last_line(&self.run.folder.path().join(QEMU_LOG));
        LabError::GuestEnded {
            status,
            message: death(&Ending::Ended(status), console.trouble(), &qemu),
            console: console.tail(),
            folder: self.run.folder.path().to_owned(),
        }
    }

    /// Returns the DMA counters of each device at this moment, by its name. They are read on the
    /// host.
    pub fn counters(&self) -> BTreeMap<String, DeviceCounters> {
        self.guest.counters()
    }

    /// Returns the same counters, for another thread.
    pub(crate) fn counter_files(&self) -> Arc<CounterFiles> {
        self.guest.counter_files()
    }

    /// Returns the flight record of `device` as it is now: mappings, windows, resets and, with
    /// `sanitize = true`, each DMA.
    ///
    /// # Errors
    /// [`LabError::NoDevice`], or a record that cannot be read.
    pub fn flight_record(&self, device: &str) -> Result<Flight, LabError> {
        let mut devices = self.run.scenario.devices();
        let known = devices.find(|known| known.name() == device);
        if !known.is_some_and(|known| known.is_ours()) {
            return Err(LabError::NoDevice(device.to_owned()));
        }
        let file = FlightFile::open(&flight_record(self.run.folder.path(), device))?;
        Ok(file.read()?)
    }

    /// Returns an object that kills the server of `name`, for a check across guests that asks for
    /// its death.
    pub(crate) fn expect_death(&mut self, name: &str) -> anyhow::Result<Killer> {
        self.guest.expect_death(name)
    }

    /// Accepts warnings of these functions of the guest's kernel from now on.
    pub(crate) fn expect_warnings(&mut self, functions: &[&'static str]) {
        self.guest.expect_warnings(functions);
    }

    /// Returns the results of the checks so far.
    pub fn rows(&self) -> &[Row] {
        self.guest.report.rows()
    }

    /// Returns the last lines of the guest's console.
    pub fn console(&self) -> Vec<String> {
        self.guest.console.tail()
    }

    /// Returns `true` if its agent is ready for checks.
    pub(crate) fn is_ready(&self) -> bool {
        self.guest.report.is_ready()
    }

    /// Returns `true` if checks of the scenario have no result yet.
    pub(crate) fn is_busy(&self) -> bool {
        self.guest.report.rows().len() < self.run.scenario.checks.len()
    }

    /// [`Lab::become_ready`], until a signal's number comes by one of `stops`.
    pub(crate) fn become_ready_until(&mut self, stops: &[UnixStream]) -> Result<(), LabError> {
        for stop in stops {
            let stop = stop.try_clone().context("cannot share a socket")?;
            self.guest.add_work(stop);
        }
        let ready = self.become_ready();
        self.guest.remove_work();
        ready
    }

    /// Waits for the agent, and for the checks of the scenario.
    ///
    /// # Errors
    /// The reason why the guest does not become ready, which is its verdict then.
    pub(crate) fn become_ready(&mut self) -> Result<(), LabError> {
        self.wait_until_ready()
            .inspect_err(|error| leave_not_run(&self.run.folder, error))
    }

    fn wait_until_ready(&mut self) -> Result<(), LabError> {
        let checks = self.run.scenario.checks.len();
        let limit = self.run.scenario.timeout.max(READY);
        let is_ready = |report: &Report| report.is_ready() && report.rows().len() >= checks;
        // The report may have continued during the wait for another guest.
        if is_ready(&self.guest.report) {
            return Ok(());
        }
        let console = self.console_log();
        let mut said = Vec::new();
        self.follow_report(READY, |report, lines| {
            let mut next = Next::Follow;
            for line in lines {
                match line {
                    Line::Ready(_) | Line::Result { .. } => next = Next::FollowFor(limit),
                    Line::Diagnostic(text) => said.push(text),
                    // The agent speaks of "the console", which is a file here.
                    Line::Plan(_) => {
                        return Err(LabError::NotReady {
                            said: said.join("\n"),
                            console: console.clone(),
                        });
                    }
                    _ => {}
                }
            }
            Ok(match is_ready(report) {
                true => Next::Done(()),
                false => next,
            })
        })
    }

    fn console_log(&self) -> PathBuf {
        self.run.folder.path().join(CONSOLE_LOG)
    }

    /// Runs a program of the host, at a separate path in the guest.
    fn check_program(&mut self, mut program: Program, name: &str) -> Result<Row, LabError> {
        self.programs = self.programs.saturating_add(1);
        let number = self.run.scenario.checks.len().saturating_add(self.programs);
        let folder = self.run.scenario.path.parent().unwrap_or(Path::new(""));
        let assigned = host_program::assign_path(&mut program, number, name, folder);
        let host = assigned.map_err(|error| Failure::Usage(error.into()))?;
        self.may_bring_files(name)?;
        let hosts = std::slice::from_ref(&host);
        program_builds::build(hosts, false, &self.run.folder, &signals::NONE)?;
        let files = std::slice::from_ref(&host.brought);
        guest_files::stage(files, &self.run.folder.anchored())?;
        Ok(self.request(&Check::Program(program))?.0)
    }

    /// Checks that the run's folder is not in a folder in which the guest may write: a link there
    /// could lead the copy of a program elsewhere.
    fn may_bring_files(&self, check: &str) -> Result<(), LabError> {
        let access = self.run.scenario.access.as_ref();
        let Some(access) = access.filter(|access| access.permission == HostFolder::ReadWrite)
        else {
            return Ok(());
        };
        let shared = access.folder.display();
        let is_below = self.run.folder.is_below(&access.folder);
        if is_below.with_context(|| format!("cannot tell whether the run is below {shared}"))? {
            let refused = anyhow!(
                "check `{check}`: the guest may write in {shared}, which holds the run's folder, so it could redirect a copy of \
                 the program: share the folder read-only, or keep runs elsewhere"
            );
            return Err(Failure::Usage(refused).into());
        }
        Ok(())
    }

    /// Returns the result of `check`, and all its diagnostics.
    fn request(&mut self, check: &Check) -> Result<(Row, Vec<String>), LabError> {
        self.guest.report.await_result(check);
        self.guest
            .request(&Request::Check(Box::new(check.clone())))?;
        let mut diagnostics = Vec::new();
        let before = self.guest.report.rows().len();
        let row = self.follow_report(self.run.scenario.timeout, |report, lines| {
            for line in lines {
                match line {
                    Line::Diagnostic(text) => diagnostics.push(text),
                    Line::Result { .. } => {
                        let row = report.rows().get(before);
                        let row = row.context("the guest has more results than are kept")?;
                        return Ok(Next::Done(row.clone()));
                    }
                    _ => {}
                }
            }
            Ok(Next::Follow)
        })?;
        Ok((row, diagnostics))
    }

    /// Follows the report for at most `limit`: `take` gets it, and its new lines.
    fn follow_report<T>(
        &mut self,
        limit: Duration,
        mut take: impl FnMut(&Report, Vec<Line>) -> Result<Next<T>, LabError>,
    ) -> Result<T, LabError> {
        let followed = self.guest.follow(limit, |guest, event| match event {
            GuestEvent::Report(lines) => take(&guest.report, lines),
            // Only the end of another guest or of the fabric closes the stream for signals: see
            // become_ready_until.
            GuestEvent::WorkDone => Err(anyhow!("something else has ended the run").into()),
            _ => Ok(Next::Follow),
        })?;
        followed.map_err(|ending| self.ended(ending))
    }
}
