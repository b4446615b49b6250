//! Names of devices, as people type them.

use std::collections::{BTreeMap, BTreeSet};

use crate::address::Address;
use crate::machine::{Function, Kind, Machine};

/// The names of a machine's devices.
///
/// A device has the kernel's name if it is known, such as `nvme0` or `mlx5_0`. Others are numbered
/// within their kind in the order of their addresses: `gpu0`, `nic1`.
#[derive(Clone, Debug)]
pub struct Labels {
    by_address: BTreeMap<Address, String>,
}

impl Labels {
    /// Names the devices of `machine`.
    pub fn of(machine: &Machine) -> Self {
        let functions = || machine.functions.iter();
        let known: BTreeSet<String> = functions()
            .filter_map(|(_, function)| kernel_name(function))
            .collect();
        let mut next: BTreeMap<&str, u32> = BTreeMap::new();
        let label = |(address, function): (&Address, &Function)| {
            let invented = |next: &mut BTreeMap<&'static str, u32>| loop {
                let kind = prefix(function.kind());
                let number = next.entry(kind).or_default();
                let label = format!("{kind}{number}");
                *number = number.saturating_add(1);
                // A name of the kernel stands for no other device.
                if !known.contains(&label) {
                    return label;
                }
            };
            (
                *address,
                kernel_name(function).unwrap_or_else(|| invented(&mut next)),
            )
        };
        Self {
            by_address: functions().map(label).collect(),
        }
    }

    /// Returns the name of the device at `address`.
    pub fn label(&self, address: Address) -> &str {
        self.by_address.get(&address).map_or("?", String::as_str)
    }
}

/// Returns the name that the kernel's subsystem gave to a disk or an adapter. A GPU's names, such
/// as `renderD128`, say nothing about the GPU, so GPUs are numbered.
fn kernel_name(function: &Function) -> Option<String> {
    let starts = |prefix: &'static str| move |name: &&String| name.starts_with(prefix);
    let names = &function.names;
    match function.kind() {
        Kind::Nvme => names.iter().find(starts("nvme")).cloned(),
        Kind::Nic => {
            let is_net = |name: &str| ["en", "eth", "ib"].iter().any(|net| name.starts_with(net));
            let rdma = names.iter().find(|name| !is_net(name));
            rdma.or(names.first()).cloned()
        }
        _ => None,
    }
}

fn prefix(kind: Kind) -> &'static str {
    match kind {
        Kind::Nvme => "nvme",
        Kind::Gpu => "gpu",
        Kind::Accelerator => "accel",
        Kind::Nic => "nic",
        Kind::Memory => "mem",
        Kind::Bridge => "bridge",
        Kind::Other => "dev",
    }
}

/// A word that names no device, or more than one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no device `{word}`: expected an address, or one of {known}")]
pub struct NoSuchDevice {
    word: String,
    known: String,
}

impl Machine {
    /// Finds a device by its address, its label or one of the kernel's names. `GPU0` and `NIC0`, the
    /// addresses of a source without addresses, may be in lower case.
    ///
    /// # Errors
    ///
    /// The machine has no such device.
    pub fn find(&self, word: &str) -> Result<Address, NoSuchDevice> {
        let labels = Labels::of(self);
        let by_address = |word: &str| {
            let address = word.parse().ok();
            address.filter(|address| self.function(*address).is_some())
        };
        let by_name = || {
            let named = self.functions.iter().find(|(address, function)| {
                labels.label(**address) == word || function.names.iter().any(|name| name == word)
            });
            named.map(|(address, _)| *address)
        };
        let found = by_address(word)
            .or_else(by_name)
            .or_else(|| by_address(&word.to_uppercase()));
        found.ok_or_else(|| {
            let of_interest = self
                .functions
                .iter()
                .filter(|(_, function)| function.is_of_interest());
            let known: Vec<&str> = of_interest
                .map(|(address, _)| labels.label(*address))
                .collect();
            NoSuchDevice {
                word: word.to_owned(),
                known: known.join(", "),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{DIRECT, at, machine, two_sockets};

    #[test]
    fn name_of_the_kernel_stands_for_no_other_device() {
        let mut machine = machine(&two_sockets(DIRECT));
        let second = machine.functions.get_mut(&at("1c:00.0")).unwrap();
        second.names = vec!["nvme0".to_owned()];
        let labels = Labels::of(&machine);
        assert_eq!(
            (labels.label(at("1b:00.0")), labels.label(at("1c:00.0"))),
            ("nvme1", "nvme0")
        );
        assert_eq!(machine.find("nvme0"), Ok(at("1c:00.0")));
        assert_eq!(machine.find("nvme1"), Ok(at("1b:00.0")));
        assert!(machine.find("nvme2").is_err());
    }
}
