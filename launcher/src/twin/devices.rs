//! The choice of the machine's devices.

use std::collections::BTreeSet;

use anyhow::bail;
use peerbar_p2p::{Address, Function, Kind, Labels, Machine, ranges};

use super::text;

/// The longest name of a device in a scenario.
const LONGEST: usize = 20;

/// A device of the machine that the twin has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) address: Address,
    /// Its name in the scenario.
    pub(super) name: String,
    pub(super) model: Model,
    /// It has memory for peers.
    pub(super) is_provider: bool,
}

/// The model of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Model {
    Nvme,
    Gpu,
    Nic,
}

impl Model {
    fn of(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Nvme => Some(Self::Nvme),
            Kind::Gpu | Kind::Accelerator => Some(Self::Gpu),
            Kind::Nic => Some(Self::Nic),
            Kind::Memory | Kind::Bridge | Kind::Other => None,
        }
    }

    /// Returns the name of its table in a scenario.
    pub(super) fn table(self) -> &'static str {
        match self {
            Self::Nvme => "nvme",
            Self::Gpu => "gpu",
            Self::Nic => "nic",
        }
    }
}

/// Returns the devices that `only` names, or all devices of interest that have a model, in the
/// order of their addresses; and sentences on those that the twin lacks.
pub(super) fn chosen(
    machine: &Machine,
    only: &[String],
) -> anyhow::Result<(Vec<Device>, Vec<String>)> {
    let labels = Labels::of(machine);
    let mut chosen = Chosen::default();
    for address in addresses(machine, only)? {
        if let Some(function) = machine.function(address) {
            chosen.add(machine, address, function, labels.label(address));
        }
    }
    let Chosen { devices, .. } = &chosen;
    if !devices.iter().any(|device| device.is_provider) || devices.len() == 1 {
        let reason = if chosen.no_place.is_empty() {
            "a pair requires a GPU or a disk that has memory for peers, and another disk, GPU or adapter"
        } else {
            "the source does not show the bridges above its devices: paste `sudo lspci -vvv` of all devices"
        };
        bail!("the machine has no twin: {reason}");
    }
    let notes = chosen.notes();
    Ok((chosen.devices, notes))
}

fn addresses(machine: &Machine, only: &[String]) -> anyhow::Result<BTreeSet<Address>> {
    if !only.is_empty() {
        let named = only.iter().map(|word| machine.find(word));
        return Ok(named.collect::<Result<_, _>>()?);
    }
    let functions = machine.functions.iter();
    let of_interest = functions.filter(|(_, function)| function.is_of_interest());
    Ok(of_interest.map(|(address, _)| *address).collect())
}

/// Devices of the twin, and names of those that it lacks, by the reason.
#[derive(Default)]
struct Chosen {
    devices: Vec<Device>,
    no_model: Vec<String>,
    no_place: Vec<String>,
    same_device: Vec<String>,
}

impl Chosen {
    fn add(&mut self, machine: &Machine, address: Address, function: &Function, label: &str) {
        let Some(model) = Model::of(function.kind()) else {
            self.no_model.push(label.to_owned());
            return;
        };
        let is_like = |device: &Device| {
            device.model == model && machine.is_one_device(device.address, address)
        };
        let (_, is_whole) = machine.bridges_above(address);
        if !is_whole {
            self.no_place.push(label.to_owned());
        } else if self.devices.iter().any(is_like) {
            self.same_device.push(label.to_owned());
        } else {
            let name = name(label, &self.devices);
            self.devices.push(device(address, function, model, name));
        }
    }

    /// Returns sentences on the devices that the twin lacks.
    fn notes(&self) -> Vec<String> {
        let reasons = [
            (&self.no_model, "as peerbar has no model of them"),
            (
                &self.no_place,
                "as the source does not show the bridges above them",
            ),
            (
                &self.same_device,
                "as another function of the device is there",
            ),
        ];
        let some = reasons.into_iter().filter(|(names, _)| !names.is_empty());
        let note = |(names, why): (&Vec<String>, &str)| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!("Left out, {why}: {}.", ranges(&names).join(", "))
        };
        some.map(note).collect()
    }
}

fn device(address: Address, function: &Function, model: Model, name: String) -> Device {
    Device {
        address,
        name,
        model,
        is_provider: match model {
            Model::Nvme | Model::Gpu => function.is_provider(),
            Model::Nic => false,
        },
    }
}

/// Returns a name like `label` that a scenario may have and no other of `devices` has.
fn name(label: &str, devices: &[Device]) -> String {
    let mut plain = text::in_name(label);
    if !plain.starts_with(|c: char| c.is_ascii_alphabetic()) {
        plain.insert(0, 'd');
    }
    let numbered = (1..).map(|number| match number {
        1 => plain.chars().take(LONGEST).collect(),
        number => {
            let suffix = format!("-{number}");
            let kept = LONGEST.saturating_sub(suffix.len());
            plain.chars().take(kept).collect::<String>() + &suffix
        }
    });
    let mut free =
        numbered.filter(|name: &String| devices.iter().all(|device| device.name != *name));
    free.next().unwrap_or_default()
}
