//! `peerbar-bench boot`: the time until our guest is ready, compared with the least that the same
//! kernel takes.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, anyhow};
use peerbar_lab::artifacts::Artifacts;
use peerbar_lab::events::{Event, EventSource, Events};
use peerbar_lab::exit::Failure;
use peerbar_lab::folder::{Folder, QEMU_LOG};
use peerbar_lab::guest::{self, Guest, GuestEvent, Next};
use peerbar_lab::guest_needs::GuestNeeds;
use peerbar_lab::programs::program;
use peerbar_lab::qemu::{self, Sockets};
use peerbar_lab::scenario::Scenario;
use peerbar_lab::signals::Signals;
use peerbar_lab::socket_folder::SocketFolder;
use peerbar_report::Line;

use super::context::{add_versions, ended};
use crate::cli::BootOptions;
use crate::figure::{Figure, Goal};
use crate::suite::SuiteContext;

/// Time limit of a boot.
const LIMIT: Duration = Duration::from_secs(60);
/// The greatest ratio of our boot's time to that of the plain boot.
const GOAL: f64 = 1.3;

/// Measures both boots in turn, so that a load on the machine affects both, and reports the figure.
pub(crate) fn measure(context: &mut SuiteContext<'_, BootOptions>) -> Result<(), Failure> {
    let mut scenario = Scenario::demo()?;
    scenario.checks.clear();
    let own = &context.options.guest.own;
    let prepare =
        |needs: &GuestNeeds, init| Artifacts::prepare(own, needs, &program(init)?, context.signals);
    let needs = GuestNeeds {
        tools: false,
        ..GuestNeeds::of(&scenario)
    };
    let ours = prepare(&needs, "peerbar-agent")?;
    let plain = prepare(&GuestNeeds::default(), "empty-init")?;
    add_versions(&mut context.report, &ours, &scenario.machine);
    let boots = if context.extent.quick {
        1
    } else {
        context.options.boots
    };
    let mut times = Vec::new();
    for number in 1..=boots {
        context.stage(&format!("boot {number} of {boots}"))?;
        let folder = |kind: &str| {
            let runs = context.folder.path().join(kind);
            Folder::create(&runs, &number.to_string(), SystemTime::now())
        };
        let signals = context.signals;
        let beside = boot_plain(&plain, &scenario, &folder("plain")?, signals)?;
        let ours = boot_ours(&ours, &scenario, &folder("ours")?, signals)?;
        times.push((ours.as_secs_f64(), beside.as_secs_f64()));
    }
    let beside = "an empty init in plain QEMU";
    context.report.figures.push(Figure {
        goal: Some(Goal::RatioAtMost(GOAL)),
        ..Figure::of_rounds("boot/ready", "s", false, beside, &times)
    });
    Ok(())
}

/// Returns the time from QEMU's start to the first line of an empty init.
fn boot_plain(
    artifacts: &Artifacts,
    scenario: &Scenario,
    folder: &Folder,
    signals: &Signals,
) -> Result<Duration, Failure> {
    let mut command = artifacts.qemu.command();
    command.args(qemu::bare(&artifacts.boot(&scenario.machine)));
    let mut events = Events::new(signals);
    let started = Instant::now();
    let mut qemu = guest::spawn(&command, folder.file(QEMU_LOG)?)?;
    events.add_bytes(
        EventSource::Console,
        qemu.take_stdout().context("QEMU has no standard output")?,
    );
    let mut said = Vec::new();
    loop {
        match events.next(started + LIMIT)? {
            Some(Event::Data(_, bytes)) => said.extend(bytes),
            Some(Event::Signal(signal)) => return Err(Failure::Interrupted(signal)),
            Some(_) => return Err(gone("the plain guest ended", folder)),
            None => return Err(gone("the plain guest is late", folder)),
        }
        if said
            .windows(EMPTY_INIT.len())
            .any(|window| window == EMPTY_INIT.as_bytes())
        {
            return Ok(started.elapsed());
        }
    }
}

/// Output of the empty init.
const EMPTY_INIT: &str = "peerbar: empty init";

/// Returns the time from the servers' start to the agent's message that all devices are there.
fn boot_ours(
    artifacts: &Artifacts,
    scenario: &Scenario,
    folder: &Folder,
    signals: &Signals,
) -> Result<Duration, Failure> {
    let temporary = SocketFolder::create()?;
    let sockets = Sockets::in_folder(temporary.path());
    let started = Instant::now();
    let mut guest = Guest::start(
        artifacts,
        &artifacts.boot(&scenario.machine),
        scenario,
        &sockets,
        folder,
        signals,
    )?;
    let ready = guest.follow(LIMIT, |_, event| {
        Ok::<_, Failure>(match event {
            GuestEvent::Report(lines) if lines.iter().any(|it| matches!(it, Line::Ready(_))) => {
                Next::Done(started.elapsed())
            }
            _ => Next::Follow,
        })
    })?;
    let time = ready.map_err(|ending| ended(&ending, "it was ready", folder))?;
    guest.stop()?;
    Ok(time)
}

fn gone(what: &str, folder: &Folder) -> Failure {
    anyhow!(
        "{what} before it was ready; see {}",
        folder.path().display()
    )
    .into()
}
