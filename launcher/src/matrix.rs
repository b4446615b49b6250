//! `peerbar matrix`: the route of data between two devices, for every topology, IOMMU, CPU and
//! flow, by the kernel's rule and as observed.
//!
//! One machine holds all topologies, so a boot fills a column. The expectations are not a table of
//! old results: they are computed from the rule ([`peerbar_rule`]), and compared with the devices'
//! records.

mod boots;
mod cell;
mod kernel;
mod machine;
mod placement;
mod selection;
mod table;
mod transfer_outcome;

use std::collections::BTreeSet;
use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::Context;
use clap::ValueEnum;
use peerbar_rule::Release;
use serde::Serialize;
use serde_json::json;

use self::boots::{Left, Order};
use self::cell::{Cell, Rule};
pub(crate) use self::placement::{Flow, Placement};
use self::selection::Boot;
use crate::cli;
use crate::report;
use crate::series::write_plan;
use peerbar_lab::artifacts::Artifacts;
use peerbar_lab::exit::{Failure, RunOutcome};
use peerbar_lab::finished_run::{VERDICT, leave_not_run};
use peerbar_lab::folder::Folder;
use peerbar_lab::guest_needs::GuestNeeds;
use peerbar_lab::programs::program;
use peerbar_lab::scenario::Scenario;
use peerbar_lab::signals::Signals;
use peerbar_lab::started::Versions;
use peerbar_lab::terminal::{colours, print};
use peerbar_results::{MATRIX, MATRIX_FORMAT, ShardItem, ShardedList, TransferOutcome};

/// Devices to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TestedDevices {
    /// Peerbar's own.
    Peerbar,
    /// QEMU's own NVMe controller, for comparison. It keeps no record of its DMA.
    QemuNvme,
}

/// Fills the matrix.
pub(crate) fn run(options: &cli::Matrix) -> Result<ExitCode, Failure> {
    let signals = Signals::new()?;
    let started = Instant::now();
    let all = selection::boots(options).map_err(Failure::Usage)?;
    let orders = all.iter().enumerate();
    let orders = orders.map(|(number, boot)| order(boot, number, options.device));
    let orders: Vec<Order> = orders.collect();
    let (boots, orders): (Vec<Boot>, Vec<Order>) = match options.shard {
        Some(shard) => {
            let item = |boot: &Boot| ShardItem {
                name: boot.title(),
                results: boot.cells.len(),
            };
            let items = all.iter().map(item).collect();
            write_plan(ShardedList::Matrix, shard, items, &options.runs)?;
            shard.part(all.into_iter().zip(orders)).into_iter().unzip()
        }
        None => (all, orders),
    };
    if let (Some(shard), true) = (options.shard, boots.is_empty()) {
        print(&format!("shard {shard} has no boot of the matrix\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    options.runs.check()?;
    // Downloads and builds happen once, before several runs ask for them.
    let artifacts = artifacts(options, &orders, &signals)?;
    let kernel = kernel(&artifacts.guest.release)?;
    let rules = rules(&boots, &orders, kernel)?;
    let folder = options.runs.begin("matrix")?;
    folder.begin(None, artifacts.versions())?;
    boots::run(
        &orders,
        &options.own.words(),
        jobs(options),
        &folder,
        &signals,
    )
    .inspect_err(|failure| leave_not_run(&folder, failure))?;
    let mut filled = Filled::empty(options.device, artifacts.versions());
    filled.caveat = kernel.caveat();
    for ((boot, order), rules) in boots.iter().zip(&orders).zip(rules) {
        filled.take(boot, &order.name, rules, folder.path());
    }
    filled.seconds = started.elapsed().as_secs_f64();
    filled.conclude(options.json, &folder)
}

fn order(boot: &Boot, number: usize, device: TestedDevices) -> Order {
    let name = boot.name(number);
    let pairs: Vec<_> = boot.cells.iter().map(|(.., pair)| *pair).collect();
    let scenario = machine::scenario(&name, device, boot.iommu, &boot.cpu, &pairs);
    Order { name, scenario }
}

fn parsed(order: &Order) -> Result<Scenario, Failure> {
    let path = format!("{}.toml", order.name);
    Ok(Scenario::parse(path.as_ref(), order.scenario.clone())?)
}

fn artifacts(
    options: &cli::Matrix,
    orders: &[Order],
    signals: &Signals,
) -> Result<Artifacts, Failure> {
    let scenario = parsed(orders.first().context("no boot")?)?;
    let agent = program("peerbar-agent")?;
    let own = options.own.or_kernel_tree_here()?;
    Artifacts::prepare(&own, &GuestNeeds::of(&scenario), &agent, signals)
}

fn kernel(release: &str) -> Result<Release, Failure> {
    Ok(Release::parse(release)
        .with_context(|| format!("the kernel's release `{release}` has no number"))?)
}

/// Returns the kernel's rule for each cell of each boot.
fn rules(boots: &[Boot], orders: &[Order], kernel: Release) -> Result<Vec<Vec<Rule>>, Failure> {
    let of_boot = |(boot, order): (&Boot, &Order)| {
        let scenario = parsed(order)?;
        let rules = boot
            .cells
            .iter()
            .map(|(.., pair)| Rule::of(&scenario, kernel, *pair));
        Ok(rules.collect::<Result<_, _>>()?)
    };
    boots.iter().zip(orders).map(of_boot).collect()
}

/// Returns the number of concurrent boots: one for each processor by default, because each guest
/// has one.
fn jobs(options: &cli::Matrix) -> usize {
    let given = options.jobs.map(NonZero::get);
    given.unwrap_or_else(|| available_parallelism().map_or(1, NonZero::get))
}

/// A matrix that is filled.
#[derive(Serialize)]
struct Filled {
    device: TestedDevices,
    versions: Versions,
    seconds: f64,
    /// A warning if the rule may not be that of this kernel.
    caveat: Option<String>,
    /// Problems of boots outside of their cells.
    flaws: Vec<String>,
    cells: Vec<Cell>,
}

impl Filled {
    fn empty(device: TestedDevices, versions: Versions) -> Self {
        Self {
            device,
            versions,
            seconds: 0.0,
            caveat: None,
            flaws: Vec::new(),
            cells: Vec::new(),
        }
    }

    /// Adds the results of the boot `name`.
    fn take(&mut self, boot: &Boot, name: &str, rules: Vec<Rule>, folder: &Path) {
        let left = boots::left(name, folder).map_err(|error| error.to_string());
        if let Ok(Left {
            flaw: Some(flaw), ..
        }) = &left
        {
            self.flaws.push(format!("{name}: {flaw}"));
        }
        for (index, ((topology, flow, pair), rule)) in boot.cells.iter().zip(rules).enumerate() {
            let tried = match &left {
                Ok(left) => left
                    .of(index, *pair)
                    .ok_or("the boot ended before it".to_owned()),
                Err(reason) => Err(reason.clone()),
            };
            let spot = boot.spot(*topology, *flow);
            let run = boots::folder_of(name, folder);
            self.cells
                .push(Cell::judged(spot, *pair, self.device, rule, run, tried));
        }
    }

    /// Returns the outcome. Of our devices every cell must agree with the rule. Of QEMU's every
    /// cell must have been tried, with any result.
    fn outcome(&self) -> RunOutcome {
        let is_bad = |cell: &Cell| match self.device {
            TestedDevices::Peerbar => cell.disagreement.is_some(),
            TestedDevices::QemuNvme => cell.seen.way == TransferOutcome::NotRun,
        };
        if self.cells.iter().any(is_bad) || !self.flaws.is_empty() {
            RunOutcome::Failed
        } else {
            RunOutcome::Passed
        }
    }

    /// Keeps the matrix in `folder` and prints it.
    fn conclude(&self, as_json: bool, folder: &Folder) -> Result<ExitCode, Failure> {
        let outcome = self.outcome();
        let value = json!({
            "format": MATRIX_FORMAT,
            "exit_code": outcome.code(),
            "series": folder.series(),
            "matrix": self,
        });
        folder.write_json(MATRIX, &value)?;
        let summary = self.summary(folder.path());
        folder.write(
            "matrix.txt",
            &(table::tables(&self.cells, false) + &summary),
        )?;
        report::write(folder.path(), || {
            folder.write(VERDICT, &format!("{outcome}\n"))
        })?;
        if as_json {
            let text = serde_json::to_string_pretty(&value).context("cannot write the matrix")?;
            print(&(text + "\n"))?;
        } else {
            print(&(table::tables(&self.cells, colours()) + &summary))?;
        }
        Ok(ExitCode::from(outcome.code()))
    }

    /// Returns the disagreements, and the number of agreeing cells.
    fn summary(&self, folder: &Path) -> String {
        let mut text = "\n".to_owned();
        let disagreements = self
            .cells
            .iter()
            .filter_map(|cell| cell.disagreement.as_ref());
        for disagreement in disagreements.collect::<BTreeSet<_>>() {
            text += &format!("{disagreement}\n");
            let cells = self.cells.iter();
            let alike = cells.filter(|cell| cell.disagreement.as_ref() == Some(disagreement));
            text.extend(alike.map(|cell| format!("  {}\n", cell.title())));
        }
        for flaw in self.flaws.iter().chain(&self.caveat) {
            text += &format!("{flaw}\n");
        }
        let all = self.cells.len();
        let agreeing = self
            .cells
            .iter()
            .filter(|cell| cell.disagreement.is_none())
            .count();
        let wrong = self
            .cells
            .iter()
            .filter(|cell| cell.seen.way == TransferOutcome::Wrong)
            .count();
        text + &format!(
            "{agreeing} of {all} cells agree with the kernel's rule; success with wrong data in {wrong} ({:.1} s; all of it is \
             in {})\n",
            self.seconds,
            folder.display()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::cell::tests::{at, upstream};
    use super::*;

    fn filled(device: TestedDevices, cells: Vec<Cell>) -> Filled {
        Filled {
            cells,
            seconds: 1.0,
            ..Filled::empty(device, Versions::default())
        }
    }

    #[test]
    fn disagreement_fails_ours_and_untried_cell_fails_qemu() {
        let right = upstream();
        let cell = |cpu| at(cpu, Placement::RootPorts, Ok(&right));
        let late = at("EPYC", Placement::RootPorts, Err("late"));
        let outcome = |device, cells| filled(device, cells).outcome();
        assert_eq!(
            outcome(TestedDevices::Peerbar, vec![cell("EPYC")]),
            RunOutcome::Passed
        );
        let mixed = vec![cell("EPYC"), cell("Haswell")];
        assert_eq!(
            outcome(TestedDevices::Peerbar, mixed.clone()),
            RunOutcome::Failed
        );
        assert_eq!(outcome(TestedDevices::QemuNvme, mixed), RunOutcome::Passed);
        assert_eq!(
            outcome(TestedDevices::QemuNvme, vec![late]),
            RunOutcome::Failed
        );
        let mut flawed = filled(TestedDevices::Peerbar, vec![cell("EPYC")]);
        flawed.flaws.push("b0: the console says: BUG".to_owned());
        assert_eq!(flawed.outcome(), RunOutcome::Failed);
    }

    #[test]
    fn kernel_newer_than_the_rule_is_named_and_fails_nothing() {
        let right = upstream();
        let cells = vec![at("EPYC", Placement::RootPorts, Ok(&right))];
        let mut filled = filled(TestedDevices::Peerbar, cells);
        filled.caveat = kernel("99.0.1-next").unwrap().caveat();
        let summary = filled.summary("m".as_ref());
        assert!(
            summary.starts_with("\nLinux 99.0 is newer than"),
            "{summary}"
        );
        assert_eq!(filled.outcome(), RunOutcome::Passed);
    }

    #[test]
    fn cells_that_disagree_alike_are_printed_once() {
        let late = |cpu| at(cpu, Placement::RootPorts, Err("late"));
        let summary = filled(TestedDevices::Peerbar, vec![late("EPYC"), late("Haswell")])
            .summary("m".as_ref());
        let expected = "
late
  EPYC, none, root ports, NVMe-CMB-NVMe (root-disk to root-cmb)
  Haswell, none, root ports, NVMe-CMB-NVMe (root-disk to root-cmb)
0 of 2 cells agree with the kernel's rule; success with wrong data in 0 (1.0 s; all of it is in m)
";
        assert_eq!(summary, expected);
    }
}
