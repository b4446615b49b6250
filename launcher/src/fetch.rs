//! `peerbar fetch`: downloads everything that runs need from the network in advance.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use peerbar_images::{KernelBuild, Root};
use peerbar_lab::artifacts::{Artifacts, Own, until_a_signal};
use peerbar_lab::exit::Failure;
use peerbar_lab::guest_needs::GuestNeeds;
use peerbar_lab::programs::program;
use peerbar_lab::scenario::{Scenario, shipped};
use peerbar_lab::signals::Signals;
use peerbar_lab::terminal::say;

use crate::completion;
use crate::runnable::Runnable;

/// Download and build everything that scenarios need from the network: QEMU, Linux, packages, tools
/// and modules. Their runs then use no network.
#[derive(Args)]
#[command(
    before_help = "Examples:\n  peerbar fetch\n  peerbar fetch my.toml gpu\n  peerbar fetch --all"
)]
pub(crate) struct Fetch {
    /// Scenario files, or names of shipped scenarios [default: the demo].
    #[arg(value_name = "SCENARIO", add = completion::scenarios())]
    pub scenarios: Vec<PathBuf>,
    /// Download for all shipped scenarios, and the tools and the source for `peerbar kernel build`.
    #[arg(long, conflicts_with = "scenarios")]
    pub all: bool,
    /// The user's own QEMU, kernel and the like.
    #[command(flatten)]
    pub own: Own,
}

/// Fetches everything that the scenarios need.
pub(crate) fn fetch(options: &Fetch) -> Result<ExitCode, Failure> {
    let signals = Signals::new()?;
    let agent = program("peerbar-agent")?;
    let own = options.own.or_kernel_tree_here()?;
    // All are read first: a mistake in the last one costs no download.
    let runnables = runnables(options)?;
    for scenario in runnables.iter().flat_map(Runnable::guests) {
        let needs = GuestNeeds::of(scenario);
        Artifacts::prepare(&own, &needs, &agent, &signals)
            .inspect_err(|failure| say_who_failed(&scenario.name, failure))?;
    }
    if options.all {
        until_a_signal(&signals, |cache| {
            Ok(KernelBuild::fetch(cache, &Root::get(cache)?)?)
        })
        .inspect_err(|failure| say_who_failed("peerbar kernel build", failure))?;
    }
    let who = match runnables.as_slice() {
        [one] => format!("{} has all that it needs: its runs use", one.name()),
        all => format!(
            "{} scenarios have all that they need: their runs use",
            all.len()
        ),
    };
    say(format_args!("peerbar: {who} no network"));
    Ok(ExitCode::SUCCESS)
}

fn runnables(options: &Fetch) -> Result<Vec<Runnable>, Failure> {
    if options.scenarios.is_empty() && !options.all {
        return Ok(vec![Runnable::of_one(Scenario::demo()?)]);
    }
    let all = options.all.then(shipped).unwrap_or_default();
    if options.all && all.is_empty() {
        return Err(
            anyhow!("no scenarios come with this peerbar: name the ones to fetch for").into(),
        );
    }
    let all = all.iter().map(|file| file.path.as_path());
    let named = options.scenarios.iter().map(PathBuf::as_path);
    let load = |path: &Path| Ok(Runnable::load_interactive(path)?);
    all.chain(named).map(load).collect()
}

/// Prints the name. The failure itself is printed last.
fn say_who_failed(name: &str, failure: &Failure) {
    if !matches!(failure, Failure::Interrupted(_)) {
        say(format_args!(
            "peerbar: {name} does not have all that it needs:"
        ));
    }
}
