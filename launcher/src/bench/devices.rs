//! `peerbar bench devices`: what a transfer of one controller costs when there are more of them in its machine.

use std::path::Path;

use anyhow::Context;
use peerbar_bench::{Figure, Goal};
use serde_json::json;

use super::fio::{Load, Pattern};
use super::lab::{self, Done, Lab};
use peerbar_lab::exit::Failure;
use peerbar_lab::scenario::Scenario;

/// How many controllers, the first of which the others are measured by.
const COUNTS: [usize; 3] = [1, 4, 16];
/// How much more a transfer may cost with the most than with the least.
const GOAL: f64 = 1.5;

/// What the names of figures of processor time have at their end.
const COST: &str = "/host-cpu";

/// What a load came to on one controller of several.
#[derive(Clone, Copy)]
struct Cost {
    /// Time from one transfer to the next, in ns.
    time: f64,
    /// Time that QEMU and all servers had of the processors for each, in ns.
    host: f64,
}

/// Boots a guest with each number in turn, again and again, and adds figures to the report.
pub(super) fn measure(lab: &mut Lab<'_>) -> Result<(), Failure> {
    let (rounds, seconds) = if lab.extent.quick { (1, 1) } else { (3, 3) };
    let only = &lab.extent.only;
    let wanted = |load: &Load| {
        let mut names = COUNTS.iter().map(|count| name(*count, load) + COST);
        names.any(|name| name.contains(only))
    };
    let loads: Vec<Load> = loads().into_iter().filter(wanted).collect();
    if loads.is_empty() {
        return Ok(());
    }
    let mut measured: Vec<Vec<Vec<Cost>>> = Vec::new();
    for _ in 0..rounds {
        let of_counts = COUNTS.map(|count| boot(lab, count, &loads, seconds));
        measured.push(of_counts.into_iter().collect::<Result<_, _>>()?);
    }
    for (index, load) in loads.iter().enumerate() {
        let of_count = |number: usize| -> Vec<Cost> {
            let rounds = measured.iter();
            let costs = rounds.filter_map(|counts| counts.get(number)?.get(index));
            costs.copied().collect()
        };
        let least = of_count(0);
        for (number, count) in COUNTS.iter().enumerate().skip(1) {
            let figures = figures(&name(*count, load), &of_count(number), &least);
            lab.report.figures.extend(figures);
        }
    }
    Ok(())
}

/// What each load costs on the first of `count` controllers.
fn boot(
    lab: &mut Lab<'_>,
    count: usize,
    loads: &[Load],
    seconds: u32,
) -> Result<Vec<Cost>, Failure> {
    let line = |load: &Load| lab::command(load.line("{disk0:disk}", seconds, None));
    let checks = loads.iter().map(|load| (name(count, load), line(load)));
    let done = lab.run(scenario(count)?, checks.collect())?;
    Ok(done.iter().map(cost).collect::<anyhow::Result<_>>()?)
}

fn loads() -> [Load; 2] {
    [1, 32].map(|depth| Load {
        pattern: Pattern::RandomRead,
        kib: 4,
        jobs: 1,
        depth,
    })
}

fn name(count: usize, load: &Load) -> String {
    format!("devices/{count}/{}", load.name())
}

/// So many controllers, each below a root port of its own.
fn scenario(count: usize) -> Result<Scenario, Failure> {
    let disk =
        |number| json!({ "name": format!("disk{number}"), "namespaces": [{ "ram": "64M" }] });
    let file = json!({
        "name": format!("devices-{count}"),
        "timeout": "3m",
        "tools": true,
        "nvme": (0..count).map(disk).collect::<Vec<_>>(),
        "check": [{ "kind": "command", "run": "fio --version", "show": true }],
    });
    let text = toml::to_string(&file).context("cannot write a scenario")?;
    Ok(Scenario::parse(Path::new("bench-devices.toml"), text)?)
}

fn cost(done: &Done) -> anyhow::Result<Cost> {
    let load = done.load()?;
    Ok(Cost {
        time: 1e9 / load.outcome.iops,
        host: load.host_ns(),
    })
}

/// Both costs of a load with more controllers, beside those with one.
fn figures(name: &str, more: &[Cost], least: &[Cost]) -> [Figure; 2] {
    let figure = |what: &str, of: &dyn Fn(&Cost) -> f64| {
        let rounds = more.iter().zip(least);
        let rounds: Vec<_> = rounds.map(|(more, least)| (of(more), of(least))).collect();
        Figure {
            goal: Some(Goal::RatioAtMost(GOAL)),
            ..Figure::of_rounds(format!("{name}{what}"), "ns", false, "1 device", &rounds)
        }
    };
    [
        figure("", &|cost| cost.time),
        figure(COST, &|cost| cost.host),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_controller_is_there() {
        for count in COUNTS {
            assert_eq!(scenario(count).unwrap().nvmes.len(), count);
        }
    }

    #[test]
    fn more_controllers_are_set_beside_one_of_the_same_round() {
        let cost = |time, host| Cost { time, host };
        let more = [cost(30.0, 8.0), cost(20.0, 9.0), cost(90.0, 30.0)];
        let least = [cost(10.0, 4.0), cost(10.0, 3.0), cost(30.0, 20.0)];
        let [time, host] = figures("x", &more, &least);
        assert_eq!((time.ratio, host.ratio), (3.0, 2.0));
        assert_eq!(
            (time.reaches_goal(), host.name.as_str()),
            (Some(false), "x/host-cpu")
        );
    }
}
