//! Our controller and QEMU's own, loaded with fio in turn in one guest.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use peerbar_lab::exit::Failure;
use peerbar_lab::scenario::Scenario;
use serde_json::json;
use tempfile::TempDir;

use super::context::{self, Done, Loaded, Pair};
use super::fio::Load;
use crate::suite::GuestContext;

/// The name of the baseline.
pub(crate) const THEIRS: &str = "QEMU's own NVMe";
/// Size of an image.
const DISK_MIB: usize = 256;
/// A file system in memory, if the host has it.
const SHARED_MEMORY: &str = "/dev/shm";

/// The storage of both disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// An image for each, in a file system in memory if the host has one.
    Images,
    /// None: what remains is the cost without storage.
    Null,
}

/// The loads of both disks.
pub(crate) struct Versus<'a> {
    pub(crate) backing: Backing,
    pub(crate) loads: &'a [Load],
    pub(crate) rounds: usize,
    /// Seconds of each load.
    pub(crate) seconds: u32,
}

impl Versus<'_> {
    /// Boots a guest and loads both controllers with each load, again and again. Returns the rounds
    /// of each load, ours and theirs.
    pub(crate) fn run(
        &self,
        context: &mut GuestContext<'_>,
    ) -> Result<Vec<Vec<[Loaded; 2]>>, Failure> {
        let images = match self.backing {
            Backing::Images => Some(images()?),
            Backing::Null => None,
        };
        let scenario = scenario(images.as_ref())?;
        let pair = |load: &Load, seconds| Pair {
            name: load.name(),
            beside: THEIRS,
            checks: ["{ours:disk}", "{theirs:disk}"]
                .map(|disk| context::command(load.line(disk, seconds))),
        };
        // The first use in a guest is slow, so the first pair only warms it up.
        let warm_up = self.loads.first().map(|load| pair(load, 1));
        let pairs = self.loads.iter().map(|load| pair(load, self.seconds));
        let pairs: Vec<Pair> = warm_up.into_iter().chain(pairs).collect();
        let done = context.in_turn(scenario, &pairs, self.rounds)?;
        let loads = |rounds: &Vec<[Done; 2]>| -> anyhow::Result<_> {
            let rounds = rounds.iter();
            let loads = rounds.map(|[ours, theirs]| Ok([ours.load()?, theirs.load()?]));
            loads.collect()
        };
        Ok(done
            .iter()
            .skip(1)
            .map(loads)
            .collect::<anyhow::Result<_>>()?)
    }
}

/// Returns our controller and QEMU's, each below its own root port, each with its own image or
/// without storage.
fn scenario(images: Option<&TempDir>) -> Result<Scenario, Failure> {
    let disk = |name: &str| match images {
        Some(images) => json!([{ "file": images.path().join(name).display().to_string() }]),
        None => json!([{ "null": "1G" }]),
    };
    let backing = images.map_or("null", |_| "images");
    let file = json!({
        "name": format!("versus-{backing}"),
        "timeout": "3m",
        "tools": true,
        "nvme": [
            { "name": "ours", "namespaces": disk("ours") },
            { "name": "theirs", "model": "qemu", "namespaces": disk("theirs") },
        ],
        "check": [{ "kind": "command", "run": "fio --version", "show": true }],
    });
    let text = toml::to_string(&file).context("cannot write a scenario")?;
    Ok(Scenario::parse(Path::new("bench-versus.toml"), text)?)
}

/// Makes two images of the same size, completely written, in memory if there is a file system for
/// it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use peerbar_lab::scenario::{Model, Namespace};

    #[test]
    fn the_scenario_makes_sense() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["ours", "theirs"] {
            std::fs::write(folder.path().join(name), [0; 4096]).unwrap();
        }
        let null = scenario(None).unwrap();
        assert_eq!(null.nvmes[1].namespaces, [Namespace::Null(1 << 30)]);
        let scenario = scenario(Some(&folder)).unwrap();
        let models: Vec<Model> = scenario.nvmes.iter().map(|nvme| nvme.model).collect();
        assert_eq!(models, [Model::Peerbar, Model::Qemu]);
    }
}
