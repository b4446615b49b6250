//! One run: from a scenario to a verdict.

use std::path::PathBuf;
use std::time::Duration;

use peerbar_report::{Check, Line};

use crate::cli;
use crate::dry_run;
use crate::iommu;
use crate::keep::{self, Keeping};
use crate::results::conclude;
use crate::runnable::Runnable;
use crate::table::word;
use peerbar_lab::artifacts::Artifacts;
use peerbar_lab::count::counted;
use peerbar_lab::debugger;
use peerbar_lab::exit::{Failure, RunOutcome};
use peerbar_lab::finished_run::leave_not_run;
use peerbar_lab::folder::Folder;
use peerbar_lab::guest::{Guest, GuestEvent, Next};
use peerbar_lab::guest_needs::GuestNeeds;
use peerbar_lab::programs::program;
use peerbar_lab::progress::Progress;
use peerbar_lab::qemu::{Boot, Sockets};
use peerbar_lab::scenario::{GroupGuest, HostProgram, Scenario};
use peerbar_lab::signals::Signals;
use peerbar_lab::terminal::print;
use peerbar_lab::verdict::{Ending, RunVerdict};
use peerbar_lab::{LabOptions, PreparedLab};

/// Longest time from a guest's last check to its power-off.
const POWER_OFF: Duration = Duration::from_secs(10);

/// A run that has ended.
pub(crate) struct EndedRun {
    /// Its outcome.
    pub outcome: RunOutcome,
    /// Its folder.
    pub folder: PathBuf,
}

/// Runs `scenario` and prints its results.
pub(crate) fn run(
    options: &cli::Run,
    scenario: &Scenario,
    signals: &'static Signals,
) -> Result<EndedRun, Failure> {
    let run = LabOptions::default()
        .own(options.own.or_kernel_tree_here()?)
        .runs_as(options.runs.clone())
        .signals(signals)
        .gdb(options.gdb)
        .prepare(scenario.clone())?;
    let folder = run.folder.clone();
    let (verdict, text) = boot_and_check(options, scenario, run, &folder)
        .inspect_err(|failure| leave_not_run(&folder, failure))?;
    print(&text)?;
    Ok(EndedRun {
        outcome: verdict.outcome,
        folder: folder.path().to_owned(),
    })
}

/// Prints the command lines of a run of `runnable`.
pub(crate) fn dry_run(
    options: &cli::Run,
    runnable: &Runnable,
    signals: &Signals,
) -> Result<(), Failure> {
    match runnable {
        Runnable::Single(scenario) => {
            let text = dry_text(options, scenario, &dry_run::sockets(), signals)?;
            print(&text)?;
        }
        Runnable::Group(group) => {
            print(&dry_run::text_before_guests(group)?)?;
            for GroupGuest { name, scenario } in &group.guests {
                let mut scenario = scenario.clone();
                scenario.interactive = true;
                keep::prepare(&mut scenario)?;
                let text = dry_text(options, &scenario, &dry_run::sockets_of(name), signals)?;
                print(&format!("# The guest {name}.\n{text}"))?;
            }
        }
    }
    Ok(())
}

/// Returns the command lines of a run of one guest.
fn dry_text(
    options: &cli::Run,
    scenario: &Scenario,
    sockets: &Sockets,
    signals: &Signals,
) -> Result<String, Failure> {
    let needs = GuestNeeds {
        is_dry_run: true,
        ..GuestNeeds::of(scenario)
    };
    // The program is possibly built later, so it may be missing now.
    let mut given = scenario
        .programs
        .iter()
        .filter(|program| program.build.is_none());
    given
        .try_for_each(HostProgram::is_runnable)
        .map_err(Failure::Usage)?;
    let artifacts = artifacts(options, needs, signals)?;
    let boot = Boot {
        gdb: options.gdb,
        ..artifacts.boot(&scenario.machine)
    };
    dry_run::text(&artifacts, &boot, scenario, sockets)
}

/// Finds or makes all that a guest with these needs boots from.
pub(crate) fn artifacts(
    options: &cli::Run,
    needs: GuestNeeds,
    signals: &Signals,
) -> Result<Artifacts, Failure> {
    let agent = program("peerbar-agent")?;
    let own = options.own.or_kernel_tree_here()?;
    Artifacts::prepare(&own, &needs, &agent, signals)
}

fn boot_and_check(
    options: &cli::Run,
    scenario: &Scenario,
    run: PreparedLab,
    folder: &Folder,
) -> Result<(RunVerdict, String), Failure> {
    let mut progress = Progress::default();
    let devices = counted(scenario.devices().count(), "device");
    let artifacts = &run.artifacts;
    progress.stage(&format!(
        "{}: QEMU {} ({}), Linux {}, {devices}",
        scenario.name,
        artifacts.qemu.version,
        artifacts.accel.argument(),
        artifacts.guest.release,
    ));
    let symbols = artifacts.guest.symbols.clone();
    let mut lab = run.boot()?;
    if let Some(port) = options.gdb {
        let lines = debugger::instructions(port, symbols.as_deref());
        lines.iter().for_each(|line| progress.lasting(line));
    }
    let mut keeping = Keeping::new(options.keep);
    let ending = watch(
        &mut lab.guest,
        scenario,
        folder,
        &mut progress,
        options,
        &mut keeping,
    )?;
    if let Some(kernel) = lab.other_kernel(&ending)? {
        let run = lab.begin_again(kernel)?;
        progress.lasting("the kernel ended without output: its bzImage is started instead");
        return boot_and_check(options, scenario, run, folder);
    }
    let complaint = |scenario: &_, folder: &_| iommu::complaint(folder, scenario);
    let run = lab.conclude(ending, complaint)?;
    drop(progress);
    Ok(conclude(run, keeping.shown(), scenario, folder)?)
}

/// Follows the guest to its end.
fn watch(
    guest: &mut Guest<'_>,
    scenario: &Scenario,
    folder: &Folder,
    progress: &mut Progress,
    options: &cli::Run,
    keeping: &mut Keeping,
) -> anyhow::Result<Ending> {
    let verbose = options.verbose;
    let power_off = match options.gdb {
        Some(_) => debugger::NO_LIMIT,
        None => POWER_OFF,
    };
    let (mut done, mut running) = (false, Running::default());
    let followed = guest.follow(scenario.timeout, |guest, event| {
        match event {
            GuestEvent::Console(lines) => {
                lines.iter().for_each(|line| show(progress, verbose, line))
            }
            GuestEvent::Report(lines) => {
                for line in &lines {
                    tell(progress, verbose, line, scenario, &mut running);
                }
                keeping.take(&lines, guest, scenario, folder.path(), progress)?;
                if guest.report.complete() && !done {
                    done = true;
                    return Ok(Next::FollowFor(power_off));
                }
            }
            GuestEvent::Signal(_) if keeping.is_kept() => {
                keeping.end(guest)?;
                return Ok(Next::FollowFor(power_off));
            }
            GuestEvent::Late if keeping.is_kept() => return Ok(Next::FollowFor(scenario.timeout)),
            GuestEvent::Late if done || keeping.is_ending() => {
                return Ok(Next::Done(Ending::StayedOn(power_off.as_secs())));
            }
            GuestEvent::Signal(_) | GuestEvent::Late | GuestEvent::WorkDone => {}
        }
        Ok::<_, anyhow::Error>(Next::Follow)
    })?;
    Ok(followed.unwrap_or_else(|ending| ending))
}

/// Number of completed checks, which is the index of the current one.
#[derive(Default)]
struct Running(u32);

impl Running {
    /// Returns the current check.
    fn check<'a>(&self, scenario: &'a Scenario) -> Option<&'a Check> {
        let index = usize::try_from(self.0).ok()?;
        scenario.checks.get(index)
    }

    /// Returns the name of the current check, short enough for the start of a line.
    fn name(&self, scenario: &Scenario) -> String {
        const LONGEST: usize = 24;
        let label = scenario.label(self.0.saturating_add(1));
        let name = match label {
            Some(label) => label.to_owned(),
            None => self.check(scenario).map_or_else(String::new, Check::name),
        };
        match name.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}…", name.get(..end).unwrap_or(&name)),
            None => name,
        }
    }
}

fn tell(
    progress: &mut Progress,
    verbose: bool,
    line: &Line,
    scenario: &Scenario,
    running: &mut Running,
) {
    match line {
        Line::Ready(uptime) => {
            progress.stage(&format!("the guest is ready, {uptime} ms after its start"))
        }
        Line::Result {
            number,
            name,
            verdict,
        } => {
            let word = word(verdict);
            let name = scenario.label(*number).unwrap_or(name);
            running.0 = *number;
            progress.stage(&format!(
                "{number} of {}: {word}: {name}",
                scenario.checks.len()
            ));
        }
        Line::Kill(name) => progress.stage(&format!("a check has the server of {name} killed")),
        Line::Output(text) => {
            let name = running.name(scenario);
            let is_shown = running.check(scenario).is_some_and(Check::is_shown);
            show(progress, verbose || is_shown, &format!("{name}: {text}"));
        }
        // A program's subtests were shown as its output.
        Line::Nested(_) | Line::Measure(_) | Line::Evidence(_) | Line::Counters(_) => {}
        other => show(progress, verbose, &other.to_string()),
    }
}

fn show(progress: &mut Progress, verbose: bool, line: &str) {
    if verbose {
        progress.lasting(line);
    } else {
        progress.passing(line);
    }
}
