//! `peerbar bench iommu`: what it costs that an IOMMU translates.

use peerbar_bench::Figure;

use super::fio::{Load, Pattern};
use super::lab::{Lab, Loaded};
use super::versus::{Backing, Versus};
use crate::exit::Failure;

/// What the others are measured by.
const NONE: &str = "none";
const MODES: [&str; 4] = ["intel-passthrough", "intel", "amd", "virtio"];

/// Boots a guest with each IOMMU, the first without any, and adds figures to the report.
pub(super) fn measure(lab: &mut Lab<'_>) -> Result<(), Failure> {
    let loads = loads(lab.extent.quick);
    let (rounds, seconds) = if lab.extent.quick { (1, 1) } else { (2, 3) };
    let only = &lab.extent.only;
    let wanted = |mode: &&str| loads.iter().any(|load| name(mode, load).contains(only));
    let modes: Vec<&str> = MODES.into_iter().filter(wanted).collect();
    if modes.is_empty() {
        return Ok(());
    }
    let boot = |lab: &mut Lab<'_>, iommu| {
        let versus = Versus {
            iommu,
            backing: Backing::Images,
            loads: &loads,
            rounds,
            seconds,
        };
        versus.run(lab)
    };
    let without = boot(lab, NONE)?;
    for mode in modes {
        let with = boot(lab, mode)?;
        for ((load, with), without) in loads.iter().zip(&with).zip(&without) {
            let figures = figures(&name(mode, load), with, without);
            lab.report.figures.extend(figures);
        }
    }
    Ok(())
}

fn loads(quick: bool) -> Vec<Load> {
    let shapes: &[(u32, u32)] = if quick {
        &[(4, 32)]
    } else {
        &[(4, 1), (4, 32), (128, 8)]
    };
    let load = |&(kib, depth): &(u32, u32)| Load {
        pattern: Pattern::RandomRead,
        kib,
        jobs: 1,
        depth,
    };
    shapes.iter().map(load).collect()
}

fn name(mode: &str, load: &Load) -> String {
    format!("iommu/{mode}/{}", load.name())
}

/// The rate with the IOMMU beside that without, ours and QEMU's; and who pays for it on the host.
fn figures(name: &str, with: &[[Loaded; 2]], without: &[[Loaded; 2]]) -> [Figure; 4] {
    let rounds = |of: &dyn Fn(&[Loaded; 2]) -> f64| {
        let both = with.iter().zip(without);
        both.map(|(with, without)| (of(with), of(without)))
            .collect::<Vec<_>>()
    };
    let figure = |what: &str, unit, more_is_better, of: &dyn Fn(&[Loaded; 2]) -> f64| {
        let name = format!("{name}{what}");
        Figure::of_rounds(name, unit, more_is_better, "without an IOMMU", &rounds(of))
    };
    [
        figure("", "IOPS", true, &|[ours, _]| ours.outcome.iops),
        figure("/of-qemu-s-own", "IOPS", true, &|[_, theirs]| {
            theirs.outcome.iops
        }),
        figure("/cpu-of-qemu", "ns", false, &|[ours, _]| {
            ours.outcome.share_ns(ours.cost.qemu)
        }),
        figure("/cpu-of-server", "ns", false, &|[ours, _]| {
            ours.outcome.share_ns(ours.cost.of_servers())
        }),
    ]
}
