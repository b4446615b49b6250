//! The facts that a source lacks for a certain verdict, and the commands that show them.

use std::collections::BTreeSet;

use crate::address::{Address, domain_not_shown};
use crate::labels::Labels;
use crate::machine::{Acs, Function, Host, Kind, Machine};
use crate::tree::{host_bridge_name, is_host_bridge_known, root_bus_name};

/// Names after which a list is shortened.
const MOST_NAMES: usize = 3;

/// Returns what the paste lacks from which `machine` was read.
pub(crate) fn of_paste(machine: &Machine) -> Vec<String> {
    let labels = Labels::of(machine);
    let which = |lacks: &dyn Fn(&Address, &Function) -> bool| {
        let functions = machine.functions.iter();
        functions
            .filter(|(address, function)| lacks(address, function))
            .map(|(address, _)| *address)
            .collect::<Vec<Address>>()
    };
    let ports =
        which(&|_, function| function.class == Some(0x0604) && function.acs == Acs::Unknown);
    let unplaced =
        which(&|address, function| function.is_of_interest() && !machine.bridges_above(*address).1);
    let devices = which(&|_, function| function.kind() != Kind::Bridge);
    let without_kind = which(&|_, function| function.class.is_none());
    let mut gaps = Vec::new();
    if !devices.is_empty() && without_kind.len() == devices.len() {
        gaps.push(
            "the kinds of devices: `lspci -nn` shows them; name two addresses for a verdict"
                .to_owned(),
        );
    }
    if !ports.is_empty() {
        let names = list(ports.iter().map(Address::to_string).collect());
        gaps.push(format!("ACS of {names}: `sudo lspci -vvv` shows it"));
    }
    if !unplaced.is_empty() {
        let names = unplaced
            .iter()
            .map(|address| labels.label(*address).to_owned());
        let names = list(names.collect());
        gaps.push(format!("the bridges above {names}: `lspci -tv` shows them"));
    }
    gaps.extend(of_host_bridges(machine));
    gaps.extend(of_host(&machine.host));
    gaps
}

/// Returns the host bridges above devices of interest that may or may not be in the kernel's list.
/// On a processor whose root complexes Linux trusts, that does not matter.
pub(crate) fn of_host_bridges(machine: &Machine) -> Vec<String> {
    let is_trusted = machine.host.cpu.is_some_and(|cpu| cpu.is_trusted());
    let devices = machine.functions.iter();
    let devices = devices.filter(|(_, function)| function.is_of_interest() && !is_trusted);
    let buses: BTreeSet<(u32, u8)> = devices
        .filter_map(|(address, _)| machine.root_bus(*address))
        .filter(|bus| domain_not_shown(bus.0).is_none() && !is_host_bridge_known(machine, *bus))
        .collect();
    // Its ID is missing, or the function that has it.
    let (unnumbered, unseen): (Vec<_>, Vec<_>) = buses
        .into_iter()
        .partition(|bus| host_bridge_name(machine, *bus).is_some());
    let ways = [
        (unnumbered, "`lspci -nn` shows its ID"),
        (
            unseen,
            "`peerbar p2p` on that machine knows its first device",
        ),
    ];
    let known = ways.into_iter().filter(|(buses, _)| !buses.is_empty());
    known
        .map(|(buses, way)| {
            let buses = list(buses.into_iter().map(root_bus_name).collect());
            format!("the host bridge of {buses}: {way}")
        })
        .collect()
}

/// Returns what is not known of processor and kernel.
pub(crate) fn of_host(host: &Host) -> Vec<String> {
    let cpu = host
        .cpu
        .is_none()
        .then_some("the processor: `lscpu` shows it");
    let kernel = host
        .release
        .is_none()
        .then_some("the kernel: `uname -a` shows it");
    let gaps = [cpu, kernel].into_iter().flatten();
    gaps.map(str::to_owned).collect()
}

/// Returns the names with commas, or the first and the number of the others.
pub(crate) fn list(names: Vec<String>) -> String {
    match names.as_slice() {
        [first, others @ ..] if others.len() >= MOST_NAMES => {
            format!("{first} and {} others", others.len())
        }
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(text: &str) -> Vec<String> {
        Machine::read(text).unwrap().gaps
    }

    #[test]
    fn each_gap_has_the_command_that_fills_it() {
        let tree = "-[0000:00]-+-00.0\n           \\-01.0-[01]----00.0\n";
        assert_eq!(
            gaps(tree),
            [
                "the kinds of devices: `lspci -nn` shows them; name two addresses for a verdict",
                "ACS of 0000:00:01.0: `sudo lspci -vvv` shows it",
                "the processor: `lscpu` shows it",
                "the kernel: `uname -a` shows it",
            ]
        );
        let list = "00:00.0 Host bridge: Intel Corporation Device 09a2\n01:00.0 Ethernet controller: Intel Corporation I210\n";
        assert_eq!(
            gaps(list),
            [
                "the bridges above nic0: `lspci -tv` shows them",
                "the kernel: `uname -a` shows it",
            ]
        );
    }

    #[test]
    fn host_bridge_that_decides_is_a_gap() {
        let disk = |domain: &str, id: &str| {
            format!(
                "$ lscpu\nVendor ID: GenuineIntel\n$ uname -a\nLinux srv 6.8.0 #1 SMP x86_64 GNU/Linux\n$ lspci\n\
                 {domain}:00:00.0 Host bridge: Intel Corporation {id}\n\
                 {domain}:00:02.0 PCI bridge: Intel Corporation Device 347a\n\tCapabilities: [40] Express (v2) Root Port\n\t\tACSCtl:\tReqRedir- EgressCtrl-\n\
                 {domain}:00:03.0 3D controller: NVIDIA Corporation\n"
            )
        };
        let known = disk("0000", "Device 09a2");
        assert_eq!(gaps(&known), Vec::<String>::new());
        let unnumbered = disk("0000", "Emerald Ports");
        assert_eq!(
            gaps(&unnumbered),
            ["the host bridge of pci0000:00: `lspci -nn` shows its ID"]
        );
        let unseen: Vec<&str> = known
            .lines()
            .filter(|line| !line.contains("Host bridge"))
            .collect();
        assert_eq!(
            gaps(&unseen.join("\n")),
            ["the host bridge of pci0000:00: `peerbar p2p` on that machine knows its first device"]
        );
        assert_eq!(
            gaps(
                &unseen
                    .join("\n")
                    .replace("GenuineIntel", "AuthenticAMD\nCPU family: 25")
            ),
            Vec::<String>::new()
        );
    }

    #[test]
    fn long_lists_are_counted() {
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        assert_eq!(list(names[..3].to_vec()), "a, b, c");
        assert_eq!(list(names.to_vec()), "a and 3 others");
    }
}
