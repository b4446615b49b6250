//! One boot whose checks are measurements.

use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use peerbar_bench::cpu_time;
use peerbar_report::{Check, Command, Line, Verdict};

use crate::accel::Accel;
use crate::artifacts::{Artifacts, beside};
use crate::cli::Own;
use crate::exit::Failure;
use crate::folder::Folder;
use crate::guest::{Guest, News};
use crate::progress::Progress;
use crate::qemu::{Boot, Sockets};
use crate::report::Row;
use crate::scenario::Scenario;
use crate::signals::Signals;
use crate::socket_folder::SocketFolder;

/// How long a guest may take until it is ready.
const START: Duration = Duration::from_secs(60);

/// A check, and what it cost the host.
pub(super) struct Done {
    /// What the agent says.
    pub(super) row: Row,
    /// What QEMU, its guest included, had of the processors.
    pub(super) qemu: Duration,
    /// What the servers had of them.
    pub(super) servers: Duration,
}

impl Done {
    /// What its command printed.
    pub(super) fn output(&self) -> String {
        self.row.diagnostics.join("\n")
    }
}

/// A command of the tools root as a check; what it prints is told.
pub(super) fn command(run: String) -> Check {
    Check::Command(Command {
        run,
        status: 0,
        expect: Vec::new(),
        kernel: Vec::new(),
        through: None,
        show: true,
    })
}

/// What a guest of a scenario boots from.
pub(super) fn prepare(
    scenario: &Scenario,
    own: &Own,
    signals: &Signals,
) -> Result<Artifacts, Failure> {
    let agent = beside("peerbar-agent")?;
    let modules = scenario.initramfs_modules();
    Artifacts::prepare(own, &modules, scenario.tools, &agent, signals)
}

/// Boots a guest and runs all checks, named by `names` in what the user sees. All of them must pass.
pub(super) fn run(
    scenario: &Scenario,
    artifacts: &Artifacts,
    folder: &Folder,
    signals: &Signals,
    names: &[String],
) -> Result<Vec<Done>, Failure> {
    let temporary = SocketFolder::create()?;
    let sockets = Sockets::in_folder(temporary.path());
    let boot = Boot {
        accel: Accel::detect(),
        machine: &scenario.machine,
        kernel: &artifacts.guest.kernel,
        initramfs: &artifacts.guest.initramfs,
    };
    let mut progress = Progress::new();
    progress.stage(&format!("{}: a guest boots", scenario.name));
    let mut guest = Guest::start(artifacts, &boot, scenario, &sockets, folder, signals)?;
    let costs = follow(&mut guest, scenario, names, &mut progress)?;
    let (_, report, complaint) = guest.stop()?;
    if let Some(complaint) = complaint {
        return Err(anyhow!(complaint).into());
    }
    let (rows, ..) = report.finish();
    let done = rows
        .into_iter()
        .zip(costs)
        .map(|(row, (qemu, servers))| Done { row, qemu, servers });
    Ok(done.map(passed).collect::<anyhow::Result<_>>()?)
}

fn passed(done: Done) -> anyhow::Result<Done> {
    match &done.row.verdict {
        Verdict::Pass => Ok(done),
        _ => bail!("{} did not work: {}", done.row.name, done.output()),
    }
}

/// What each check costs QEMU and the servers, as its results come in.
fn follow(
    guest: &mut Guest<'_>,
    scenario: &Scenario,
    names: &[String],
    progress: &mut Progress,
) -> Result<Vec<(Duration, Duration)>, Failure> {
    let mut last = (Duration::ZERO, Duration::ZERO);
    let mut costs = Vec::new();
    let mut deadline = guest.started() + START;
    while costs.len() < scenario.checks.len() {
        let lines = match guest.news(deadline)? {
            News::Report(lines) => lines,
            News::Console(_) => continue,
            News::Signal(signal) => return Err(Failure::Interrupted(signal)),
            News::ServerDied(words) => return Err(anyhow!(words).into()),
            News::Ended(status) => return Err(anyhow!("the guest ended early ({status})").into()),
            News::Late => return Err(anyhow!("the guest does not get on").into()),
        };
        for line in lines {
            match line {
                Line::Ready(_) => last = cost(guest)?,
                Line::Result { .. } => {
                    let now = cost(guest)?;
                    costs.push((now.0.saturating_sub(last.0), now.1.saturating_sub(last.1)));
                    last = now;
                }
                _ => continue,
            }
            deadline = Instant::now() + scenario.timeout;
            if let Some(name) = names.get(costs.len()) {
                progress.stage(name);
            }
        }
    }
    Ok(costs)
}

fn cost(guest: &Guest<'_>) -> anyhow::Result<(Duration, Duration)> {
    let (qemu, servers) = guest.processes();
    let mut of_servers = Duration::ZERO;
    for server in servers {
        of_servers += cpu_time(server)?;
    }
    Ok((cpu_time(qemu)?, of_servers))
}
