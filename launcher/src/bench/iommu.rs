//! `peerbar bench iommu`: what it costs that an IOMMU translates.

use std::time::SystemTime;

use peerbar_bench::{Figure, Report};

use super::fio::{Load, Pattern};
use super::versus::{self, Extent, Side};
use crate::cli::{BenchExtent, Own};
use crate::exit::Failure;
use crate::folder::Folder;
use crate::signals::Signals;

/// What the others are measured by.
const NONE: &str = "none";
const MODES: [&str; 4] = ["intel-passthrough", "intel", "amd", "virtio"];

/// Boots a guest with each IOMMU, the first without any, and adds figures to `report`.
pub(super) fn measure(
    extent: &BenchExtent,
    own: &Own,
    report: &mut Report,
    folder: &Folder,
    signals: &Signals,
) -> Result<(), Failure> {
    let loads = loads(extent.quick);
    let (rounds, seconds) = if extent.quick { (1, 1) } else { (2, 3) };
    let times = Extent { rounds, seconds };
    let named = |mode: &str, load: &Load| name(mode, load).contains(&extent.only);
    let modes: Vec<&str> = MODES
        .into_iter()
        .filter(|mode| loads.iter().any(|load| named(mode, load)))
        .collect();
    if modes.is_empty() {
        return Ok(());
    }
    let mut boot = |mode: &str| {
        let own_folder = Folder::create(folder.path(), mode, SystemTime::now())?;
        versus::run(&loads, times, mode, own, report, &own_folder, signals)
    };
    let without = boot(NONE)?;
    let mut measured = Vec::new();
    for mode in modes {
        measured.push((mode, boot(mode)?));
    }
    for (mode, of_mode) in &measured {
        let sides = of_mode.iter().zip(&without);
        for (load, (with, without)) in loads.iter().zip(sides) {
            report
                .figures
                .extend(figures(&name(mode, load), with, without));
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
fn figures(name: &str, with: &[[Side; 2]], without: &[[Side; 2]]) -> [Figure; 4] {
    let rounds = |of: &dyn Fn(&[Side; 2]) -> f64| {
        let both = with.iter().zip(without);
        both.map(|(with, without)| (of(with), of(without)))
            .collect::<Vec<_>>()
    };
    let figure = |what: &str, unit, more_is_better, of: &dyn Fn(&[Side; 2]) -> f64| {
        let name = format!("{name}{what}");
        Figure::of_rounds(name, unit, more_is_better, "without an IOMMU", &rounds(of))
    };
    [
        figure("", "IOPS", true, &|[ours, _]| ours.outcome.iops),
        figure("/of-qemu-s-own", "IOPS", true, &|[_, theirs]| {
            theirs.outcome.iops
        }),
        figure("/cpu-of-qemu", "ns", false, &|[ours, _]| {
            ours.outcome.share_ns(ours.qemu)
        }),
        figure("/cpu-of-server", "ns", false, &|[ours, _]| {
            ours.outcome.share_ns(ours.servers)
        }),
    ]
}
