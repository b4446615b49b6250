//! The twin of a real machine: a scenario of the same shape, in which the guest's kernel decides on
//! the same pairs of devices.

mod devices;
mod pairs;
mod shape;
mod text;

use std::path::Path;

use anyhow::{anyhow, bail};
use peerbar_lab::iommu::Iommu;
use peerbar_lab::scenario::Scenario;
use peerbar_p2p::{Iommu as IommuMode, Machine};
use peerbar_rule::Vendor;

use devices::Device;
use pairs::TwinPair;
use shape::Shape;

/// The most devices: each is a process of the host, and takes a port of QEMU's.
const MOST_DEVICES: usize = 60;
/// A processor whose root complexes Linux trusts, and one whose root complexes it does not.
const TRUSTED: &str = "EPYC";
const NOT_TRUSTED: &str = "Haswell";

/// A twin, before it is written down.
struct Twin<'a> {
    machine: &'a Machine,
    /// The source of the machine.
    of: &'a str,
    shape: Shape,
    cpu: &'static str,
    iommu: Iommu,
    pairs: Vec<TwinPair>,
    /// Differences between machine and twin, as sentences.
    differences: Vec<String>,
}

/// Returns the scenario that imitates `machine`, which was read from `of`, with the devices `only`,
/// or with all devices of interest.
///
/// # Errors
///
/// `only` names an unknown device, the machine has no device that can be imitated, or QEMU has no
/// room for all of them.
pub(crate) fn scenario(machine: &Machine, of: &str, only: &[String]) -> anyhow::Result<String> {
    let (devices, notes) = devices::chosen(machine, only)?;
    let whole = text_of(machine, of, devices.clone(), notes.clone());
    let Err(too_large) = whole else {
        return whole;
    };
    if !only.is_empty() {
        bail!("{too_large}: choose fewer devices with --only");
    }
    // Two of a kind at a place are a pair, too.
    let fewer = smaller(machine, of, &devices, &notes, 2);
    let fewer = fewer.or_else(|_| smaller(machine, of, &devices, &notes, 1));
    fewer.map_err(|too_large| anyhow!("{too_large}: choose devices with --only"))
}

/// Returns the scenario with `count` devices of each kind at each place.
fn smaller(
    machine: &Machine,
    of: &str,
    devices: &[Device],
    notes: &[String],
    count: usize,
) -> anyhow::Result<String> {
    let (kept, left_out) = shape::some_of_each_kind(machine, devices.to_vec(), count);
    let mut notes = notes.to_vec();
    if !left_out.is_empty() {
        notes.push(format!(
            "Left out, as QEMU has no room for them, and others of their kind have the same place: {left_out}."
        ));
    }
    text_of(machine, of, kept, notes)
}

fn text_of(
    machine: &Machine,
    of: &str,
    devices: Vec<Device>,
    mut differences: Vec<String>,
) -> anyhow::Result<String> {
    if devices.len() > MOST_DEVICES {
        bail!(
            "{} devices are more than the {MOST_DEVICES} that a twin may have",
            devices.len()
        );
    }
    let shape = Shape::of(machine, devices);
    let iommu = iommu(machine, &shape);
    differences.extend(shape.differences(machine));
    differences.extend(iommu_differences(machine, iommu));
    let mut twin = Twin {
        machine,
        of,
        shape,
        cpu: TRUSTED,
        iommu,
        pairs: Vec::new(),
        differences,
    };
    twin.choose_cpu()?;
    let text = text::text(&twin);
    Scenario::parse(Path::new("twin.toml"), text.clone())?;
    Ok(text)
}

impl Twin<'_> {
    /// Takes the processor with which most pairs have the machine's verdict, best one of the
    /// machine's family, and decides on the pairs.
    fn choose_cpu(&mut self) -> anyhow::Result<()> {
        let is_trusted = self.machine.host.cpu.is_some_and(|cpu| cpu.is_trusted());
        let own = if is_trusted { TRUSTED } else { NOT_TRUSTED };
        let other = if is_trusted { NOT_TRUSTED } else { TRUSTED };
        let mut decided = |cpu| {
            self.cpu = cpu;
            pairs::decided(self)
        };
        let (of_own, of_other) = (decided(own)?, decided(other)?);
        let different = |pairs: &[TwinPair]| pairs.iter().filter(|pair| !pair.agrees()).count();
        if different(&of_other) < different(&of_own) {
            self.pairs = of_other;
            self.differences.push(format!(
                "The guest's processor is no model of the machine's family: Linux decides on `{other}` as on the machine's \
                 host bridges, which QEMU lacks."
            ));
        } else {
            (self.cpu, self.pairs) = (own, of_own);
            self.differences.extend(cpu_difference(self.machine, own));
        }
        self.differences.extend(pairs::differences(&self.pairs));
        Ok(())
    }
}

/// Returns a sentence on a processor that the guest's does not stand for.
fn cpu_difference(machine: &Machine, own: &str) -> Option<String> {
    match machine.host.cpu.map(|cpu| cpu.vendor) {
        None => Some(format!(
            "The source does not show the machine's processor; the guest's is `{own}`."
        )),
        Some(Vendor::Other) => Some(format!(
            "The machine's processor is neither Intel's nor AMD's; the guest's is `{own}`."
        )),
        Some(Vendor::Intel | Vendor::Amd) => None,
    }
}

/// Returns the guest's IOMMU. Without one, Linux leaves ACS off.
fn iommu(machine: &Machine, shape: &Shape) -> Iommu {
    let is_amd = machine
        .host
        .cpu
        .is_some_and(|cpu| cpu.vendor == Vendor::Amd);
    match machine.host.iommu {
        Some(IommuMode::Translates) if is_amd => Iommu::Amd,
        Some(IommuMode::Translates) => Iommu::Intel,
        Some(IommuMode::PassThrough) => Iommu::IntelPassthrough,
        Some(IommuMode::Off) | None if shape.redirects() => Iommu::IntelPassthrough,
        Some(IommuMode::Off) | None => Iommu::None,
    }
}

fn iommu_differences(machine: &Machine, iommu: Iommu) -> Option<String> {
    match (machine.host.iommu, iommu) {
        (Some(IommuMode::Off), Iommu::IntelPassthrough) => Some(
            "The machine's IOMMU is off; the guest has one that passes addresses on, because Linux enables ACS only with an \
             IOMMU."
                .to_owned(),
        ),
        (None, iommu) => Some(format!(
            "The source does not show the mode of the machine's IOMMU; the guest's is `{}`.",
            iommu.word()
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
