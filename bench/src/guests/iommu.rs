//! `peerbar-bench iommu`: what it costs that an IOMMU translates.

use peerbar_lab::exit::Failure;
use peerbar_lab::iommu::Iommu;

use super::context::Loaded;
use super::fio::{Load, Pattern};
use super::versus::{Backing, Versus};
use crate::figure::Figure;
use crate::spread::median;
use crate::suite::GuestContext;

/// What the others are measured by.
const NONE: &str = "none";
/// What the names of the figures of a load have at their end.
const PARTS: [&str; 2] = ["", "/of-qemu-s-own"];

/// What a load came to in each round, on our controller and on QEMU's.
type Rounds = Vec<[Loaded; 2]>;

/// Boots a guest with each IOMMU in turn, the first without any, again and again, and adds figures to the report.
pub(crate) fn measure(context: &mut GuestContext<'_>) -> Result<(), Failure> {
    let loads = loads(context.extent.quick);
    let (rounds, seconds) = if context.extent.quick { (1, 1) } else { (2, 3) };
    let names = |mode: &str, load: &Load| PARTS.map(|part| name(mode, load) + part);
    let wanted = |mode: &&str| {
        let mut names = loads.iter().flat_map(|load| names(mode, load));
        names.any(|name| context.wants(&name))
    };
    let modes: Vec<&str> = Iommu::present().map(Iommu::word).filter(wanted).collect();
    if modes.is_empty() {
        return Ok(());
    }
    let kinds: Vec<&str> = [NONE].into_iter().chain(modes).collect();
    let mut measured: Vec<Vec<Rounds>> = kinds
        .iter()
        .map(|_| vec![Vec::new(); loads.len()])
        .collect();
    for _ in 0..rounds {
        for (iommu, measured) in kinds.iter().zip(&mut measured) {
            let versus = Versus {
                iommu,
                backing: Backing::Images,
                loads: &loads,
                rounds: 1,
                seconds,
            };
            for (rounds, round) in measured.iter_mut().zip(versus.run(context)?) {
                rounds.extend(round);
            }
        }
    }
    let mut each = kinds.iter().zip(&measured);
    let Some((_, without)) = each.next() else {
        return Ok(());
    };
    for (mode, with) in each {
        for ((load, with), without) in loads.iter().zip(with).zip(without) {
            let figures = figures(&name(mode, load), with, without);
            context.report.figures.extend(figures);
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

/// The rates with the IOMMU beside those without, ours and QEMU's, each with the processor time of a transfer.
fn figures(name: &str, with: &[[Loaded; 2]], without: &[[Loaded; 2]]) -> [Figure; 2] {
    let figure = |part: &str, of: &dyn Fn(&[Loaded; 2]) -> &Loaded| {
        let both = with.iter().zip(without);
        let rates: Vec<_> = both
            .map(|(with, without)| (of(with).outcome.iops, of(without).outcome.iops))
            .collect();
        let cpu: Vec<f64> = with.iter().map(|both| of(both).host_ns()).collect();
        Figure {
            cpu_ns: Some(median(&cpu)),
            ..Figure::of_rounds(
                name.to_owned() + part,
                "IOPS",
                true,
                "without an IOMMU",
                &rates,
            )
        }
    };
    let [ours, theirs] = PARTS;
    [
        figure(ours, &|[ours, _]| ours),
        figure(theirs, &|[_, theirs]| theirs),
    ]
}
