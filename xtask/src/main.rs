//! Runs the tests of this workspace: the steps and the guest runs that `tests/runs.toml` lists.
//!
//! `scripts/test` starts it. CONTRIBUTING.md describes the tiers and their durations.

mod command;
mod diagnosis;
mod outcome;
mod plan;
mod programs;
mod runner;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::{Parser, Subcommand};

use self::plan::{Plan, Selection};
use self::runner::Runner;

/// The seed of tests with random input, unless all tests run or a seed is given: that of
/// `.cargo/config.toml`.
const SEED: u64 = 1;

/// Tasks for developers of this workspace.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the gate, which each change must pass.
    #[command(
        after_help = "Examples:\n  scripts/test\n  scripts/test --full\n  scripts/test --only clippy demo"
    )]
    Test(Test),
}

#[derive(clap::Args)]
struct Test {
    /// Run everything, with a new seed. This takes hours.
    #[arg(long, conflicts_with = "only")]
    full: bool,
    /// Run these steps and guest runs, of any tier. Their requirements are built first.
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// List the steps and guest runs, and run nothing.
    #[arg(long)]
    list: bool,
    /// Number of guest runs at a time [default: one for each processor].
    #[arg(long, value_name = "N")]
    jobs: Option<std::num::NonZero<usize>>,
    /// Seed of tests with random input [default: a fixed one; with --full a new one].
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("scripts/test: {error:#}");
            ExitCode::from(69)
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    let Task::Test(options) = &cli.task;
    let root = root()?;
    env::set_current_dir(&root).with_context(|| format!("cannot enter {}", root.display()))?;
    let plan = Plan::read(Path::new("tests/runs.toml"))?;
    if options.list {
        print!("{}", plan.listed());
        return Ok(ExitCode::SUCCESS);
    }
    let selection = if options.full {
        Selection::Full
    } else if options.only.is_empty() {
        Selection::Gate
    } else {
        Selection::Only(&options.only)
    };
    let chosen = plan.chosen(&selection)?;
    let seed = match (options.seed, options.full) {
        (Some(seed), _) => seed,
        (None, true) => new_seed()?,
        (None, false) => SEED,
    };
    Runner::new(root, seed, options.jobs)?.run(&plan, &chosen)
}

/// Returns the root of the workspace for which cargo starts this program. Two workspaces that share
/// a target folder share the program.
fn root() -> anyhow::Result<PathBuf> {
    let own = std::env::var_os("CARGO_MANIFEST_DIR");
    let own = own.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let root = own.parent();
    let root = root.with_context(|| format!("{} has no parent folder", own.display()))?;
    Ok(root.to_owned())
}

/// Returns a seed that no earlier run had.
fn new_seed() -> anyhow::Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(now.context("the clock is before 1970")?.as_secs())
}
