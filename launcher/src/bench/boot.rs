//! `peerbar bench boot`: how long our guest takes to be ready, against the least that the same kernel takes.

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, anyhow};
use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use peerbar_report::Line;
use serde_json::json;

use crate::accel::Accel;
use crate::artifacts::{Artifacts, beside};
use crate::cli::BenchBoot;
use crate::exit::Failure;
use crate::folder::Folder;
use crate::guest::{self, Guest, News};
use crate::inbox::{Event, Inbox, Voice};
use crate::progress::Progress;
use crate::qemu::{self, Boot, Sockets};
use crate::results::print;
use crate::scenario::Scenario;
use crate::signals::Signals;
use crate::socket_folder::SocketFolder;

/// How long one boot may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How many times the plain boot's time ours may take.
const GOAL: f64 = 2.0;

/// Measures both boots in turn, so that a load on the machine meets both, and compares the medians.
pub(crate) fn boot(options: &BenchBoot) -> Result<ExitCode, Failure> {
    let signals = Signals::new()?;
    let mut scenario = Scenario::demo()?;
    scenario.checks.clear();
    let modules = scenario.initramfs_modules();
    let prepare = |modules: &[String], init| {
        Artifacts::prepare(&options.own, modules, false, &beside(init)?, &signals)
    };
    let ours = prepare(&modules, "peerbar-agent")?;
    let plain = prepare(&[], "empty-init")?;
    let runs = Folder::create(&options.runs, "bench-boot", SystemTime::now())?;
    let mut progress = Progress::new();
    let mut times = Times {
        plain: Vec::new(),
        ours: Vec::new(),
    };
    for number in 1..=options.boots {
        progress.stage(&format!("boot {number} of {}", options.boots));
        let folder = |kind: &str| {
            Folder::create(
                &runs.path().join(kind),
                &number.to_string(),
                SystemTime::now(),
            )
        };
        times
            .plain
            .push(boot_plain(&plain, &scenario, &folder("plain")?, &signals)?);
        times
            .ours
            .push(boot_ours(&ours, &scenario, &folder("ours")?, &signals)?);
    }
    drop(progress);
    let figures = times.figures();
    runs.write_json(
        "results.json",
        &json!({ "versions": ours.versions(), "boot": figures }),
    )?;
    print(&format!("{}\n{figures}\n", times.table()))?;
    Ok(ExitCode::SUCCESS)
}

/// From QEMU's start to the first line of an empty init.
fn boot_plain(
    artifacts: &Artifacts,
    scenario: &Scenario,
    folder: &Folder,
    signals: &Signals,
) -> Result<Duration, Failure> {
    let mut command = artifacts.qemu.command();
    command.args(qemu::bare(&of(artifacts, scenario)));
    let mut inbox = Inbox::new(signals);
    let started = Instant::now();
    let mut qemu = guest::spawn(&command, folder)?;
    inbox.add_bytes(
        Voice::Console,
        qemu.take_stdout().context("QEMU has no standard output")?,
    );
    let mut said = Vec::new();
    loop {
        match inbox.next(started + LIMIT)? {
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

/// What the empty init prints.
const EMPTY_INIT: &str = "peerbar: empty init";

/// From QEMU's start to the agent's word that all devices are there.
fn boot_ours(
    artifacts: &Artifacts,
    scenario: &Scenario,
    folder: &Folder,
    signals: &Signals,
) -> Result<Duration, Failure> {
    let temporary = SocketFolder::create()?;
    let sockets = Sockets::in_folder(temporary.path());
    let mut guest = Guest::start(
        artifacts,
        &of(artifacts, scenario),
        scenario,
        &sockets,
        folder,
        signals,
    )?;
    let deadline = guest.started() + LIMIT;
    loop {
        match guest.news(deadline)? {
            News::Report(lines) if lines.iter().any(|line| matches!(line, Line::Ready(_))) => break,
            News::Report(_) | News::Console(_) => {}
            News::Signal(signal) => return Err(Failure::Interrupted(signal)),
            News::ServerDied(words) => return Err(anyhow!(words).into()),
            News::Ended(_) => return Err(gone("our guest ended", folder)),
            News::Late => return Err(gone("our guest is late", folder)),
        }
    }
    let time = guest.started().elapsed();
    guest.stop()?;
    Ok(time)
}

fn of<'a>(artifacts: &'a Artifacts, scenario: &'a Scenario) -> Boot<'a> {
    Boot {
        accel: Accel::detect(),
        machine: &scenario.machine,
        kernel: &artifacts.guest.kernel,
        initramfs: &artifacts.guest.initramfs,
    }
}

fn gone(what: &str, folder: &Folder) -> Failure {
    anyhow!(
        "{what} before it was ready; see {}",
        folder.path().display()
    )
    .into()
}

struct Times {
    plain: Vec<Duration>,
    ours: Vec<Duration>,
}

impl Times {
    fn ratio(&self) -> f64 {
        median(&self.ours) / median(&self.plain)
    }

    fn figures(&self) -> serde_json::Value {
        let seconds =
            |times: &[Duration]| times.iter().map(Duration::as_secs_f64).collect::<Vec<_>>();
        json!({
            "plain": { "seconds": seconds(&self.plain), "median": median(&self.plain) },
            "ours": { "seconds": seconds(&self.ours), "median": median(&self.ours) },
            "ratio": self.ratio(),
            "goal": GOAL,
        })
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header([
            "from QEMU's start to",
            "boots",
            "median",
            "fastest",
            "slowest",
        ]);
        for (name, times) in [
            ("an empty init, plain QEMU", &self.plain),
            ("the agent is ready", &self.ours),
        ] {
            let fastest = times.iter().min().map_or(0.0, Duration::as_secs_f64);
            let slowest = times.iter().max().map_or(0.0, Duration::as_secs_f64);
            let figures =
                [median(times), fastest, slowest].map(|seconds| format!("{seconds:.2} s"));
            table.add_row(
                [name.to_owned(), times.len().to_string()]
                    .into_iter()
                    .chain(figures),
            );
        }
        table.add_row([
            "ratio",
            "",
            &format!("{:.2}", self.ratio()),
            &format!("(goal: {GOAL:.1})"),
            "",
        ]);
        table
    }
}

/// The middle time in seconds; of two middle ones, their mean.
fn median(times: &[Duration]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort();
    let middle = |index: usize| sorted.get(index).map_or(f64::NAN, Duration::as_secs_f64);
    let last = sorted.len().saturating_sub(1);
    (middle(last / 2) + middle(last.div_ceil(2))) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let seconds = |list: &[u64]| {
            list.iter()
                .map(|&number| Duration::from_secs(number))
                .collect::<Vec<_>>()
        };
        assert_eq!(median(&seconds(&[9, 1, 2])), 2.0);
        assert_eq!(median(&seconds(&[4, 1, 9, 2])), 3.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn figures_compare_the_medians() {
        let times = Times {
            plain: vec![Duration::from_secs(2)],
            ours: vec![Duration::from_secs(3)],
        };
        assert_eq!(times.figures()["ratio"], 1.5);
        assert!(times.table().to_string().contains("1.50"));
    }
}
