//! Changes to a machine that let a pair do more. Each is tried on the rule before it is named.

use std::collections::BTreeSet;

use peerbar_rule::{AcsControl, Ascent, Hop, MapType, PortType, Reason, Redirect};
use serde::Serialize;

use crate::address::Address;
use crate::kernel::{KernelVerdict, Way, verdict};
use crate::machine::{Acs, Function, Iommu, Machine, Place};

/// A change, what it costs, and what it leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What to type or to move.
    pub change: String,
    /// What it costs, if that matters.
    pub price: Option<String>,
    /// The kernel's way after the change.
    pub way: Way,
}

/// Returns the changes that give the pair more than `now`.
pub(crate) fn of_pair(
    machine: &Machine,
    client: Address,
    provider: Address,
    now: &KernelVerdict,
) -> Vec<Change> {
    let mut changes = without_redirection(machine, client, provider, now);
    changes.extend(below_one_switch(machine, client, provider, now));
    changes.extend(newer_kernel(machine, client, provider, now));
    changes.extend(pass_through(machine, now));
    changes
}

/// Returns the way in the changed machine if it is certain and more than now.
fn tried(
    changed: &Machine,
    client: Address,
    provider: Address,
    now: &KernelVerdict,
) -> Option<Way> {
    let way = verdict(changed, client, provider)?.certain()?;
    (way > now.first.way).then_some(way)
}

/// Switches redirection off at the ports that redirect.
fn without_redirection(
    machine: &Machine,
    client: Address,
    provider: Address,
    now: &KernelVerdict,
) -> Vec<Change> {
    let ports = redirecting_ports(machine, now);
    let mut changed = machine.clone();
    for (port, control) in &ports {
        if let Some(function) = changed.functions.get_mut(port) {
            function.acs = Acs::Control(*control);
        }
    }
    let Some(way) = tried(&changed, client, provider, now) else {
        return Vec::new();
    };
    let isolation = isolation(machine, &ports);
    let setpci = ports
        .iter()
        .map(|(port, control)| format!("setpci -s {port} ECAP_ACS+6.w={:04x}", control.0));
    let mut changes = vec![Change {
        change: setpci.collect::<Vec<_>>().join("; "),
        price: isolation.clone(),
        way,
    }];
    // Some releases do less than the parameter says.
    let flaw = machine.release().may_keep_acs_redir().then(|| {
        "some releases from Linux 6.11 to 6.14 ignore part of it; 6.14.3 and 6.15 do not".to_owned()
    });
    let prices: Vec<String> = isolation.into_iter().chain(flaw).collect();
    let mut at_boot = |parameter: String| {
        changes.push(Change {
            change: format!("at boot: pci={parameter}"),
            price: (!prices.is_empty()).then(|| prices.join("; ")),
            way,
        });
    };
    let addresses: Vec<String> = ports.iter().map(|(port, _)| port.to_string()).collect();
    at_boot(format!("disable_acs_redir={}", addresses.join(";")));
    if machine.release().has_config_acs() {
        let flags = addresses.iter().map(|port| format!("x0x00xx@{port}"));
        at_boot(format!(
            "config_acs={}",
            flags.collect::<Vec<_>>().join(";")
        ));
    }
    changes
}

/// Returns the ports at which the kernel's decision found a redirection, and their control registers
/// without it.
fn redirecting_ports(machine: &Machine, now: &KernelVerdict) -> Vec<(Address, AcsControl)> {
    let Reason::RootComplex {
        ascent: Ascent::Redirected(redirects),
        ..
    } = &now.first.decision.reason
    else {
        return Vec::new();
    };
    let port = |redirect: &Redirect| {
        let port = now.tree.address(Hop::Function(redirect.at))?;
        match machine.function(port)?.acs {
            Acs::Control(control) => Some((port, control.without_redirection())),
            Acs::Absent | Acs::Unknown => None,
        }
    };
    redirects.iter().filter_map(port).collect()
}

/// Returns the isolation that ends if these ports do not redirect: that of the IOMMU groups below
/// them.
fn isolation(machine: &Machine, ports: &[(Address, AcsControl)]) -> Option<String> {
    let is_below = |address: &Address| {
        let (above, _) = machine.bridges_above(*address);
        ports.iter().any(|(port, _)| above.contains(port))
    };
    let below = machine
        .functions
        .iter()
        .filter(|(address, _)| is_below(address));
    let groups: BTreeSet<u32> = below
        .filter_map(|(_, function)| function.iommu_group)
        .collect();
    let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
    (!groups.is_empty()).then(|| {
        format!(
            "devices of the IOMMU groups {} can then reach each other without the IOMMU",
            groups.join(", ")
        )
    })
}

/// Moves one of the two below a switch that is above the other.
fn below_one_switch(
    machine: &Machine,
    client: Address,
    provider: Address,
    now: &KernelVerdict,
) -> Vec<Change> {
    let pairs = [(client, provider), (provider, client)];
    let change = |(moved, other): (Address, Address)| {
        let (above, _) = machine.bridges_above(other);
        let is_switch = |bridge: &&Address| {
            let port = machine
                .function(**bridge)
                .and_then(|bridge| bridge.port_type);
            port == Some(PortType::UpstreamPort)
        };
        let switch = above.iter().find(is_switch)?;
        let changed = moved_below(machine, moved, *switch, &above)?;
        let way = tried(&changed, client, provider, now)?;
        let change =
            format!("move {moved} to a slot of the switch at {switch}, which is above {other}");
        Some(Change {
            change,
            price: None,
            way,
        })
    };
    pairs.into_iter().filter_map(change).collect()
}

/// Returns the machine with `moved` below a new port of `switch`, which is like the port through
/// which `way` reaches it.
fn moved_below(
    machine: &Machine,
    moved: Address,
    switch: Address,
    way: &[Address],
) -> Option<Machine> {
    let port_below = way
        .iter()
        .rev()
        .skip_while(|bridge| **bridge != switch)
        .nth(1)?;
    let mut changed = machine.clone();
    let new_port = Address {
        bus: 0xff,
        device: 0x1f,
        function: 7,
        ..switch
    };
    let like = machine.function(*port_below)?.clone();
    changed.functions.insert(
        new_port,
        Function {
            place: Place::Below(switch),
            ..like
        },
    );
    changed.functions.get_mut(&moved)?.place = Place::Below(new_port);
    Some(changed)
}

/// Finds the first later kernel that allows more.
fn newer_kernel(
    machine: &Machine,
    client: Address,
    provider: Address,
    now: &KernelVerdict,
) -> Option<Change> {
    machine.host.release.as_ref()?;
    machine.release().later().find_map(|release| {
        let mut changed = machine.clone();
        changed.host.release = Some(release.to_string());
        let way = tried(&changed, client, provider, now)?;
        let change = format!("use Linux {release} or later, whose list has the host bridge");
        Some(Change {
            change,
            price: None,
            way,
        })
    })
}

/// Takes the IOMMU's translation out of a way through the host bridge.
fn pass_through(machine: &Machine, now: &KernelVerdict) -> Option<Change> {
    let is_translated = now.first.decision.verdict == MapType::ThroughHostBridgeIova;
    (is_translated && machine.host.iommu == Some(Iommu::Translates)).then(|| Change {
        change: "at boot: iommu=pt, for stacks that give devices physical addresses".to_owned(),
        price: Some("the IOMMU no longer limits the DMA of the kernel's drivers".to_owned()),
        way: now.first.way,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{DIRECT, REDIRECTS, at, machine, two_sockets};

    fn of(text: &str, client: &str) -> Vec<Change> {
        let machine = machine(text);
        machine.pair(at(client), at("1a:00.0")).changes
    }

    #[test]
    fn redirecting_ports_are_changed_by_setpci_or_at_boot() {
        let text = format!(
            "Linux box 6.8.0 #1 SMP x86_64 GNU/Linux\n{}",
            two_sockets(REDIRECTS)
        );
        let changes = of(&text, "1b:00.0");
        let lines: Vec<&str> = changes
            .iter()
            .map(|change| change.change.as_str())
            .collect();
        assert_eq!(
            lines,
            [
                "setpci -s 0000:19:08.0 ECAP_ACS+6.w=0011; setpci -s 0000:19:09.0 ECAP_ACS+6.w=0011",
                "at boot: pci=disable_acs_redir=0000:19:08.0;0000:19:09.0",
            ]
        );
        assert!(changes.iter().all(|change| change.way == Way::BusAddress));
        let price =
            "devices of the IOMMU groups 31, 32 can then reach each other without the IOMMU";
        assert!(
            changes
                .iter()
                .all(|change| change.price.as_deref() == Some(price))
        );
        let newer = text.replace("6.8.0", "6.16.0");
        let last = "at boot: pci=config_acs=x0x00xx@0000:19:08.0;x0x00xx@0000:19:09.0";
        assert_eq!(
            of(&newer, "1b:00.0")
                .last()
                .map(|change| change.change.as_str()),
            Some(last)
        );
    }

    #[test]
    fn slot_of_the_switch_is_advised_only_if_its_ports_do_not_redirect() {
        let change = "move 0000:1c:00.0 to a slot of the switch at 0000:18:00.0, which is above 0000:1a:00.0";
        let has = |acs| {
            of(&two_sockets(acs), "1c:00.0")
                .iter()
                .any(|one| one.change == change)
        };
        assert!(has(DIRECT));
        assert!(!has(REDIRECTS));
    }

    #[test]
    fn direct_pair_needs_no_change() {
        assert_eq!(of(&two_sockets(DIRECT), "1b:00.0"), []);
    }

    #[test]
    fn kernel_that_lists_the_host_bridge_is_advised() {
        let text = two_sockets(DIRECT).replace(
            "Intel Corporation Sky Lake-E PCI Express Root Port A [8086:2030]",
            "NVIDIA Corporation Device [10de:2f95]",
        );
        let text =
            format!("vendor_id : GenuineIntel\nLinux box 7.1.0 #1 SMP x86_64 GNU/Linux\n{text}");
        let changes = of(&text, "1c:00.0");
        let change = "use Linux 7.3 or later, whose list has the host bridge";
        assert!(
            changes
                .iter()
                .any(|one| one.change == change && one.way == Way::ThroughHostBridge),
            "{changes:?}"
        );
    }

    #[test]
    fn pass_through_is_advised_behind_a_translating_iommu() {
        let text = format!(
            "iommu: Default domain type: Translated\n{}",
            two_sockets(DIRECT)
        );
        let is_pass_through = |change: &Change| change.change.starts_with("at boot: iommu=pt");
        assert!(of(&text, "1c:00.0").iter().any(is_pass_through));
        assert!(
            !of(&two_sockets(DIRECT), "1c:00.0")
                .iter()
                .any(is_pass_through)
        );
    }
}
