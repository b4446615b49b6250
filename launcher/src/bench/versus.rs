//! Our controller and QEMU's own, loaded with fio in turn in one guest.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use peerbar_bench::Report;
use serde_json::json;
use tempfile::TempDir;

use super::fio::{Load, Outcome};
use super::lab::{self, Done};
use crate::cli::Own;
use crate::exit::Failure;
use crate::folder::Folder;
use crate::scenario::Scenario;
use crate::signals::Signals;

/// What both disks hold.
const DISK_MIB: usize = 256;
/// Memory that is a file system, if the host has it.
const SHARED_MEMORY: &str = "/dev/shm";

/// How long, and how often.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) rounds: usize,
    /// Seconds of each load.
    pub(super) seconds: u32,
}

/// What a load came to, and what all transfers cost the host.
pub(super) struct Side {
    pub(super) outcome: Outcome,
    /// Time that QEMU had of the processors, its guest included.
    pub(super) qemu: Duration,
    /// Time that the servers had.
    pub(super) servers: Duration,
}

/// Boots a guest and loads both controllers with each of `loads`, again and again: for each load its rounds, ours and
/// theirs.
pub(super) fn run(
    loads: &[Load],
    extent: Extent,
    iommu: &str,
    own: &Own,
    report: &mut Report,
    folder: &Folder,
    signals: &Signals,
) -> Result<Vec<Vec<[Side; 2]>>, Failure> {
    let images = images()?;
    let mut scenario = scenario(&images, iommu)?;
    let mut names = vec!["fio starts".to_owned()];
    for load in std::iter::repeat_n(loads, extent.rounds).flatten() {
        for (whose, disk) in [("ours", "{ours:disk}"), ("QEMU's", "{theirs:disk}")] {
            names.push(format!("{}: {whose}", load.name()));
            let line = load.line(disk, extent.seconds, None);
            scenario.checks.push(lab::command(line));
        }
    }
    let artifacts = lab::prepare(&scenario, own, signals)?;
    let done = lab::run(&scenario, &artifacts, folder, signals, &names)?;
    super::add_versions(report, &artifacts);
    let (first, rest) = done.split_first().context("the guest did nothing")?;
    report.versions.insert("fio".to_owned(), first.output());
    let of_load = |index| {
        let pairs = rest.chunks(2).skip(index).step_by(loads.len());
        pairs.map(pair).collect::<anyhow::Result<Vec<_>>>()
    };
    Ok((0..loads.len())
        .map(of_load)
        .collect::<anyhow::Result<_>>()?)
}

/// Our controller and QEMU's, each below a root port of its own, each with an image of its own.
fn scenario(images: &TempDir, iommu: &str) -> Result<Scenario, Failure> {
    let disk = |name: &str| [json!({ "file": images.path().join(name).display().to_string() })];
    let file = json!({
        "name": "bench-versus",
        "timeout": "3m",
        "tools": true,
        "machine": { "iommu": iommu },
        "nvme": [
            { "name": "ours", "namespaces": disk("ours") },
            { "name": "theirs", "model": "qemu", "namespaces": disk("theirs") },
        ],
        "check": [{ "kind": "command", "run": "fio --version", "show": true }],
    });
    let text = toml::to_string(&file).context("cannot write a scenario")?;
    Ok(Scenario::parse(Path::new("bench-versus.toml"), text)?)
}

/// Two images of the same size, in memory where there is a file system for it, all of them written.
fn images() -> anyhow::Result<TempDir> {
    let folder = TempDir::new_in(SHARED_MEMORY)
        .or_else(|_| TempDir::new())
        .context("cannot make a folder for images")?;
    for name in ["ours", "theirs"] {
        let path = folder.path().join(name);
        let write = |mut file: File| {
            let piece = vec![0x5a; 1 << 20];
            (0..DISK_MIB).try_for_each(|_| file.write_all(&piece))
        };
        File::create_new(&path)
            .and_then(write)
            .with_context(|| format!("cannot write the image {}", path.display()))?;
    }
    Ok(folder)
}

fn pair(done: &[Done]) -> anyhow::Result<[Side; 2]> {
    let [ours, theirs] = done else {
        anyhow::bail!("a measurement without its counterpart");
    };
    let side = |done: &Done| {
        anyhow::Ok(Side {
            outcome: Outcome::parse(&done.output())?,
            qemu: done.qemu,
            servers: done.servers,
        })
    };
    Ok([side(ours)?, side(theirs)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iommu::Iommu;
    use crate::scenario::Model;

    #[test]
    fn the_scenario_makes_sense() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["ours", "theirs"] {
            std::fs::write(folder.path().join(name), [0; 4096]).unwrap();
        }
        let scenario = scenario(&folder, "amd").unwrap();
        assert_eq!(scenario.machine.iommu, Iommu::Amd);
        let models: Vec<Model> = scenario.nvmes.iter().map(|nvme| nvme.model).collect();
        assert_eq!(models, [Model::Peerbar, Model::Qemu]);
    }
}
