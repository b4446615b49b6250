//! `peerbar fetch`: gets what runs need from the network, before they need it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use peerbar_lab::artifacts::{Artifacts, Own};
use peerbar_lab::exit::Failure;
use peerbar_lab::guest_needs::GuestNeeds;
use peerbar_lab::programs::program;
use peerbar_lab::scenario::{Scenario, shipped};
use peerbar_lab::signals::Signals;
use peerbar_lab::terminal::say;

use crate::runnable::Runnable;

/// Gets and builds all that scenarios need: QEMU, kernel, packages, tools and modules. Their runs use no network then.
#[derive(Args)]
#[command(before_help = "Examples:\n  peerbar fetch\n  peerbar fetch my.toml gpu")]
pub(crate) struct Fetch {
    /// Scenario files, or names of shipped ones [default: all shipped ones].
    #[arg(value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// All shipped scenarios.
    #[arg(long, conflicts_with = "scenarios")]
    pub all: bool,
    /// The user's own pieces.
    #[command(flatten)]
    pub own: Own,
}

/// Gets what the scenarios need.
pub(crate) fn fetch(options: &Fetch) -> Result<ExitCode, Failure> {
    let paths = match options.scenarios.as_slice() {
        [] => shipped().into_iter().map(|file| file.path).collect(),
        named => named.to_vec(),
    };
    let signals = Signals::new()?;
    let agent = program("peerbar-agent")?;
    let own = options.own.or_kernel_tree_here()?;
    // All are read first: a mistake in the last one costs no download.
    let scenarios: Vec<Vec<Scenario>> = paths
        .iter()
        .map(|path| guests_of(path))
        .collect::<Result<_, _>>()?;
    for scenario in scenarios.iter().flatten() {
        let needs = GuestNeeds::of(scenario);
        Artifacts::prepare(&own, &needs, &agent, &signals).inspect_err(|_| {
            say(format_args!(
                "peerbar: {} does not have all that it needs:",
                scenario.name
            ));
        })?;
    }
    let count = match paths.len() {
        1 => "the scenario has".to_owned(),
        count => format!("{count} scenarios have"),
    };
    say(format_args!(
        "peerbar: {count} all that runs need; they use no network now"
    ));
    Ok(ExitCode::SUCCESS)
}

/// The guests of a scenario.
fn guests_of(path: &Path) -> Result<Vec<Scenario>, Failure> {
    Ok(match Runnable::load(path)? {
        Runnable::Single(scenario) => vec![*scenario],
        Runnable::Group(group) => group
            .guests
            .into_iter()
            .map(|guest| guest.scenario)
            .collect(),
    })
}
