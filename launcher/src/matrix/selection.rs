//! The selection of cells.

use anyhow::{bail, ensure};
use clap::ValueEnum;

use super::TestedDevices;
use super::cell::Spot;
use super::placement::{Flow, Pair, Placement};
use crate::cli;
use peerbar_lab::cpu;
use peerbar_lab::iommu::Iommu;

/// A CPU whose root complexes Linux trusts, and one with those of QEMU's machine, which it does not.
const CPUS: [&str; 2] = ["EPYC", "Haswell"];

/// The boots of `--quick`: each rule once.
const QUICK: [(&str, Iommu); 3] = [
    ("EPYC", Iommu::None),
    ("EPYC", Iommu::Intel),
    ("Haswell", Iommu::None),
];

/// One boot, and its cells.
#[derive(Debug)]
pub(super) struct Boot {
    pub(super) cpu: String,
    pub(super) iommu: Iommu,
    pub(super) cells: Vec<(Placement, Flow, Pair)>,
}

impl Boot {
    /// Returns the position of one of its cells in the matrix.
    pub(super) fn spot(&self, topology: Placement, flow: Flow) -> Spot {
        Spot {
            cpu: self.cpu.clone(),
            iommu: self.iommu,
            topology,
            flow,
        }
    }

    /// CPU and IOMMU, which no other boot of a matrix has.
    pub(super) fn title(&self) -> String {
        format!("{}, {}", self.cpu, self.iommu.word())
    }

    /// Returns its name as the `number`th of a matrix, suitable for the name of a file and of a
    /// scenario.
    pub(super) fn name(&self, number: usize) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let cpu: String = self.cpu.chars().map(plain).take(14).collect();
        format!("b{number}-{cpu}-{}", self.iommu.word())
    }
}

/// Returns the boots that `options` ask for, those of one CPU after those of another.
///
/// # Errors
/// A CPU model without a known family, or filters that leave no cell.
pub(super) fn boots(options: &cli::Matrix) -> anyhow::Result<Vec<Boot>> {
    if let Some(cpu) = options.cpu.iter().find(|cpu| cpu::of_model(cpu).is_none()) {
        bail!(
            "`--cpu {cpu}`: the processor family of this model is unknown, and the kernel's rule depends on it; \
             name another CPU model of QEMU"
        );
    }
    let cells = cells(options);
    ensure!(
        !cells.is_empty(),
        "these filters leave no cell: a GPU has no CMB of its own, and --device qemu-nvme has no GPUs; leave one out"
    );
    let machines = machines(options).into_iter();
    let boots = machines.map(|(cpu, iommu)| Boot {
        cpu,
        iommu,
        cells: cells.clone(),
    });
    Ok(boots.collect())
}

fn machines(options: &cli::Matrix) -> Vec<(String, Iommu)> {
    if options.quick {
        return QUICK.map(|(cpu, iommu)| (cpu.to_owned(), iommu)).into();
    }
    let cpus = if options.cpu.is_empty() {
        CPUS.map(str::to_owned).into()
    } else {
        options.cpu.clone()
    };
    let iommus = all_if_none(&options.iommu);
    let machines = cpus
        .iter()
        .flat_map(|cpu| iommus.iter().map(|iommu| (cpu.clone(), *iommu)));
    machines.collect()
}

fn cells(options: &cli::Matrix) -> Vec<(Placement, Flow, Pair)> {
    let device: TestedDevices = options.device;
    let flows = match options.flow.as_slice() {
        [] => Flow::USUAL.to_vec(),
        wanted => all_if_none(wanted),
    };
    let topologies = all_if_none(&options.topology).into_iter();
    let cells = topologies.flat_map(|topology| {
        let pair = move |flow: &Flow| Some((topology, *flow, topology.pair(*flow, device)?));
        flows.iter().filter_map(pair).collect::<Vec<_>>()
    });
    cells.collect()
}

fn all_if_none<T: ValueEnum>(wanted: &[T]) -> Vec<T> {
    if wanted.is_empty() {
        T::value_variants().to_vec()
    } else {
        wanted.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn chosen(words: &[&str]) -> anyhow::Result<Vec<Boot>> {
        let command = [&["peerbar", "matrix"], words].concat();
        let cli::Command::Matrix(options) = cli::Cli::parse_from(command).command else {
            panic!("{words:?}");
        };
        boots(&options)
    }

    fn selected(words: &[&str]) -> (Vec<String>, usize) {
        let boots = chosen(words).unwrap();
        let names = boots
            .iter()
            .enumerate()
            .map(|(index, boot)| boot.name(index));
        (
            names.collect(),
            boots.iter().map(|boot| boot.cells.len()).sum(),
        )
    }

    #[test]
    fn all_of_it_is_ten_boots() {
        let (names, cells) = selected(&[]);
        assert_eq!((names.len(), cells), (10, 130));
        assert_eq!(names[1], "b1-EPYC-intel");
        assert_eq!(selected(&["--quick"]).1, 39);
        assert_eq!(selected(&["--device", "qemu-nvme"]).1, 50);
    }

    #[test]
    fn filters_leave_the_rest_out() {
        let words = [
            "--iommu",
            "amd,virtio",
            "--cpu",
            "Skylake-Server,EPYC-v2",
            "--topology",
            "own-cmb",
        ];
        let (names, cells) = selected(&words);
        assert_eq!(names[0], "b0-Skylake-Server-amd");
        assert_eq!((names.len(), cells), (4, 4));
    }

    #[test]
    fn what_cannot_be_filled_is_refused() {
        let refused = |words: &[&str]| chosen(words).unwrap_err().to_string();
        let none = refused(&["--topology", "own-cmb", "--flow", "gpu-cmb"]);
        assert!(none.starts_with("these filters leave no cell"), "{none}");
        let none = refused(&["--device", "qemu-nvme", "--flow", "nvme-vram"]);
        assert!(none.starts_with("these filters leave no cell"), "{none}");
        let unknown = refused(&["--cpu", "EPYC,host"]);
        assert!(unknown.starts_with("`--cpu host`: "), "{unknown}");
    }
}
