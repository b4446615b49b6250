//! Changes to a machine that let a pair do more. Each is tried on the rule before it is named.

use std::collections::BTreeSet;

use peerbar_rule::{AcsControl, PortType, Way};
use serde::Serialize;

use crate::address::Address;
use crate::gaps;
use crate::kernel::{KernelVerdict, verdict};
use crate::machine::{Acs, Function, Kind, Machine, Place};

/// A change, what it costs, and what it leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The command to type, or the device to move.
    pub change: String,
    /// Its cost, if that matters.
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
    if now.first.way == Way::BusAddress {
        return Vec::new();
    }
    let mut changes = without_redirection(machine, client, provider, now);
    changes.extend(below_one_switch(machine, client, provider, now));
    changes.extend(newer_kernel(machine, client, provider, now));
    changes
}

/// Returns the parts of `machine` on which a verdict on `ends` depends: a changed copy of a large
/// machine for each of its pairs would take long.
fn parts(machine: &Machine, ends: [Address; 2]) -> Machine {
    let ways = ends.iter().flat_map(|end| machine.bridges_above(*end).0);
    let devices = ends.iter().flat_map(|end| {
        let [first, last] = [0, u8::MAX].map(|function| Address { function, ..*end });
        machine
            .functions
            .range(first..=last)
            .map(|(address, _)| *address)
    });
    let buses = ends.iter().filter_map(|end| machine.root_bus(*end));
    let host_bridges = buses.flat_map(|bus| machine.on_root_bus(bus).take(1));
    let addresses: BTreeSet<Address> = ways
        .chain(devices)
        .chain(host_bridges.map(|(address, _)| *address))
        .collect();
    let functions = addresses.into_iter();
    let functions = functions.filter_map(|at| Some((at, machine.function(at)?.clone())));
    Machine {
        functions: functions.collect(),
        host: machine.host.clone(),
        is_complete: machine.is_complete,
        is_selection: machine.is_selection,
        ..Machine::default()
    }
}

/// Returns the way in the changed machine if it is more than now, and the condition for that.
fn tried(
    changed: &Machine,
    client: Address,
    provider: Address,
    now: &KernelVerdict,
) -> Option<(Way, Option<String>)> {
    let then = verdict(changed, client, provider)?;
    let condition = then.others.first().map(|other| {
        let facts: Vec<String> = other.assumptions.iter().map(ToString::to_string).collect();
        format!("unless {}", facts.join(" and "))
    });
    (then.first.way > now.first.way).then_some((then.first.way, condition))
}

/// Switches redirection off at the ports that redirect.
fn without_redirection(
    machine: &Machine,
    client: Address,
    provider: Address,
    now: &KernelVerdict,
) -> Vec<Change> {
    let ports = redirecting_ports(machine, now);
    if ports.is_empty() {
        return Vec::new();
    }
    let mut changed = parts(machine, [client, provider]);
    for (port, control) in &ports {
        if let Some(function) = changed.functions.get_mut(port) {
            function.acs = Acs::Control(*control);
        }
    }
    let Some((way, condition)) = tried(&changed, client, provider, now) else {
        return Vec::new();
    };
    let prices = |more: Option<&str>| {
        let more = more.map(str::to_owned);
        let all = condition
            .iter()
            .cloned()
            .chain([isolation(machine, &ports)])
            .chain(more);
        Some(all.collect::<Vec<_>>().join("; "))
    };
    let setpci = ports
        .iter()
        .map(|(port, control)| format!("sudo setpci -s {port} ECAP_ACS+6.w={:04x}", control.0));
    let mut changes = vec![Change {
        change: setpci.collect::<Vec<_>>().join("; "),
        price: prices(Some(CACHED)),
        way,
    }];
    // Some releases do less than the parameter says.
    let flaw = machine.release().may_keep_acs_redir().then_some(FLAW);
    changes.extend(boot_parameters(machine, &ports).map(|parameter| Change {
        change: format!("at boot: {parameter}"),
        price: prices(flaw),
        way,
    }));
    changes
}

/// Returns the parameters that keep the kernel from switching redirection on at these ports, except
/// those that its command line has already.
fn boot_parameters(
    machine: &Machine,
    ports: &[(Address, AcsControl)],
) -> impl Iterator<Item = String> {
    let addresses: Vec<String> = ports.iter().map(|(port, _)| port.to_string()).collect();
    let flags: Vec<String> = addresses
        .iter()
        .map(|port| format!("x0x00xx@{port}"))
        .collect();
    let config_acs = format!("pci=config_acs={}", flags.join(";"));
    let parameters = [
        Some(format!("pci=disable_acs_redir={}", addresses.join(";"))),
        machine.release().has_config_acs().then_some(config_acs),
    ];
    let command_line = machine.host.command_line.as_deref().unwrap_or_default();
    let is_new = |parameter: &String| !command_line.split(' ').any(|word| word == parameter);
    parameters
        .into_iter()
        .flatten()
        .filter(move |parameter| is_new(parameter))
}

/// The limits of `setpci`.
const CACHED: &str = "until a reset, a suspend or the next boot; Linux decides a pair once, so reload the driver of the \
                      memory's owner";
/// A flaw of the boot parameters in some releases.
const FLAW: &str =
    "some releases from Linux 6.11 to 6.14 ignore part of it; 6.14.3 and 6.15 do not";

/// Returns the ports at which the kernel's decision found a redirection, and their control
/// registers without it.
fn redirecting_ports(machine: &Machine, now: &KernelVerdict) -> Vec<(Address, AcsControl)> {
    let port = |port: Address| match machine.function(port)?.acs {
        Acs::Control(control) => Some((port, control.without_redirection())),
        Acs::Absent | Acs::Unknown => None,
    };
    now.redirected_at().into_iter().filter_map(port).collect()
}

/// Returns the isolation that ends if these ports do not redirect: that between the devices that
/// they redirect and all that these then reach.
fn isolation(machine: &Machine, ports: &[(Address, AcsControl)]) -> String {
    let ports: Vec<Address> = ports.iter().map(|(port, _)| *port).collect();
    let is_reached = |address: &Address| ports.iter().any(|port| reaches(machine, *port, *address));
    let functions = machine.functions.iter();
    let reached = functions.filter(|(address, _)| is_reached(address));
    let groups: BTreeSet<u32> = reached
        .filter_map(|(_, function)| function.iommu_group)
        .collect();
    let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
    let whom = match groups.as_slice() {
        [] => {
            let is_bridge = |port: &Address| is_bridge(machine, *port);
            let place = if ports.iter().all(is_bridge) {
                "below"
            } else {
                "at"
            };
            let ports: Vec<String> = ports.iter().map(Address::to_string).collect();
            format!(
                "the devices {place} {} from their neighbours",
                ports.join(", ")
            )
        }
        [only] => format!("the devices of IOMMU group {only} from each other"),
        _ => format!("the IOMMU groups {} from each other", gaps::list(groups)),
    };
    format!("the IOMMU then no longer isolates {whom}")
}

/// Returns `true` if `address` is a device whose traffic with others `port` redirects: one below
/// it, or one that its requests then reach directly. These are all devices below the same switch or
/// on the same root bus, or the other functions of a device with several.
fn reaches(machine: &Machine, port: Address, address: Address) -> bool {
    if is_bridge(machine, address) {
        return false;
    }
    if !is_bridge(machine, port) {
        return machine.is_one_device(port, address);
    }
    match machine.function(port).map(|port| port.place) {
        Some(Place::Below(switch)) => machine.bridges_above(address).0.contains(&switch),
        Some(Place::RootBus) => machine.root_bus(address) == machine.root_bus(port),
        Some(Place::Unknown) | None => machine.bridges_above(address).0.contains(&port),
    }
}

fn is_bridge(machine: &Machine, address: Address) -> bool {
    let function = machine.function(address);
    function.is_some_and(|function| function.kind() == Kind::Bridge)
}

/// Moves one of the two below a switch that is above the other only.
fn below_one_switch(
    machine: &Machine,
    client: Address,
    provider: Address,
    now: &KernelVerdict,
) -> Vec<Change> {
    let pairs = [(client, provider), (provider, client)];
    let change = |(moved, other): (Address, Address)| {
        let (above, _) = machine.bridges_above(other);
        let switch = above
            .iter()
            .find(|bridge| has_slots(machine, **bridge, other))?;
        let is_there = machine.bridges_above(moved).0.contains(switch);
        if is_there {
            return None;
        }
        let changed = moved_below(machine, [moved, other], *switch)?;
        let (way, price) = tried(&changed, client, provider, now)?;
        let change =
            format!("move {moved} to a slot of the switch at {switch}, which is above {other}");
        Some(Change { change, price, way })
    };
    let is_movable = |(moved, _): &(Address, Address)| {
        let (above, _) = machine.bridges_above(*moved);
        let port = above.first().and_then(|port| machine.function(*port));
        port.is_some_and(|port| port.has_slot != Some(false))
    };
    pairs
        .into_iter()
        .filter(is_movable)
        .filter_map(change)
        .collect()
}

/// Returns `true` if `bridge` is a switch into which a device can be plugged: one of its ports has
/// a slot, and it is no part of the card with the function `other`, whose maker it would share.
fn has_slots(machine: &Machine, bridge: Address, other: Address) -> bool {
    let vendor = |at: Address| {
        machine
            .function(at)
            .and_then(|function| function.id)
            .map(|id| id.vendor)
    };
    let is_switch = machine.function(bridge).is_some_and(|function| {
        function.port_type == Some(PortType::UpstreamPort)
            && !function.description.contains("Thunderbolt")
    });
    let has_slot =
        |port: &Function| port.place == Place::Below(bridge) && port.has_slot == Some(true);
    let is_of_card = vendor(bridge).is_some() && vendor(bridge) == vendor(other);
    is_switch && !is_of_card && machine.functions.values().any(has_slot)
}

/// Returns the machine with the first of `ends` below a new port of `switch`, which is like one of
/// its ports: like one that redirects, if any does.
fn moved_below(machine: &Machine, ends: [Address; 2], switch: Address) -> Option<Machine> {
    let ports = machine
        .functions
        .values()
        .filter(|function| function.place == Place::Below(switch));
    let redirects = |port: &&Function| match port.acs {
        Acs::Control(control) => !control.redirecting().is_empty(),
        Acs::Absent | Acs::Unknown => false,
    };
    let like = ports.max_by_key(redirects)?.clone();
    let mut changed = parts(machine, ends);
    let new_port = Address {
        bus: 0xff,
        device: 0x1f,
        function: 7,
        ..switch
    };
    changed.functions.insert(new_port, like);
    changed.functions.get_mut(&ends[0])?.place = Place::Below(new_port);
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
    let mut changed = parts(machine, [client, provider]);
    machine.release().later().find_map(|release| {
        changed.host.release = Some(release.to_string());
        let (way, price) = tried(&changed, client, provider, now)?;
        let change = format!("use Linux {release} or later, whose list has the host bridge");
        Some(Change { change, price, way })
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
                "sudo setpci -s 0000:19:08.0 ECAP_ACS+6.w=0011; sudo setpci -s 0000:19:09.0 ECAP_ACS+6.w=0011",
                "at boot: pci=disable_acs_redir=0000:19:08.0;0000:19:09.0",
            ]
        );
        assert!(changes.iter().all(|change| change.way == Way::BusAddress));
        let price = "the IOMMU then no longer isolates the IOMMU groups 31, 32 from each other";
        let prices: Vec<&str> = changes
            .iter()
            .filter_map(|change| change.price.as_deref())
            .collect();
        assert_eq!(prices, [format!("{price}; {CACHED}").as_str(), price]);
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
    fn device_is_moved_neither_within_a_switch_nor_to_one_with_a_port_that_redirects() {
        // The GPU's port redirects, the disk's does not; or the other way round.
        let direct = two_sockets(DIRECT);
        let [first, second] = ["\n19:08.0", "\n19:09.0"].map(|port| {
            let (before, rest) = direct.split_once(port).unwrap();
            format!("{before}{port}{}", rest.replacen(DIRECT, REDIRECTS, 1))
        });
        for (text, client) in [
            (&first, "1b:00.0"),
            (&first, "1c:00.0"),
            (&second, "1c:00.0"),
        ] {
            let changes = of(text, client);
            let moves = |one: &Change| one.change.starts_with("move");
            assert!(!changes.iter().any(moves), "{client}: {changes:?}");
        }
    }

    #[test]
    fn price_is_named_without_groups_too() {
        let text = two_sockets(REDIRECTS).replace("IOMMU group", "Group");
        let changes = of(&text, "1b:00.0");
        let names_it = |change: &Change| {
            let price = change.price.as_deref().unwrap_or_default();
            let devices = "the devices below 0000:19:08.0, 0000:19:09.0 from their neighbours";
            price.starts_with(&format!("the IOMMU then no longer isolates {devices}"))
        };
        assert!(
            !changes.is_empty() && changes.iter().all(names_it),
            "{changes:?}"
        );
    }

    #[test]
    fn price_names_the_groups_on_both_sides_of_one_port() {
        let text = two_sockets(DIRECT).replacen(DIRECT, REDIRECTS, 1);
        let changes = of(&text, "1b:00.0");
        let price = changes.first().and_then(|change| change.price.as_deref());
        let groups = "the IOMMU then no longer isolates the IOMMU groups 31, 32 from each other";
        assert!(
            price.is_some_and(|price| price.starts_with(groups)),
            "{changes:?}"
        );
    }

    #[test]
    fn price_of_an_endpoint_names_its_device() {
        let mut machine = machine(&two_sockets(DIRECT));
        let (client, provider) = (at("1a:00.1"), at("1a:00.0"));
        let gpu = machine.functions.get_mut(&provider).unwrap();
        gpu.acs = Acs::Control(AcsControl::REQUEST_REDIRECT);
        let second = gpu.clone();
        machine.functions.insert(client, second);
        let changes = machine.pair(client, provider).changes;
        let price = changes.first().and_then(|change| change.price.as_deref());
        let group =
            "the IOMMU then no longer isolates the devices of IOMMU group 31 from each other";
        assert!(
            price.is_some_and(|price| price.starts_with(group)),
            "{changes:?}"
        );
    }

    #[test]
    fn parameter_that_is_set_already_is_not_advised() {
        let parameter = "pci=disable_acs_redir=0000:19:08.0;0000:19:09.0";
        let text = format!("Command line: {parameter}\n{}", two_sockets(REDIRECTS));
        let changes = of(&text, "1b:00.0");
        assert!(!changes.is_empty() && changes.iter().all(|one| !one.change.contains(parameter)));
    }

    #[test]
    fn known_ports_are_changed_even_if_another_is_unknown() {
        let text = two_sockets(REDIRECTS).replace(
            "Capabilities: [100 v1] Device Serial Number",
            "Capabilities: [100 v1] Access Control Services",
        );
        let changes = of(&text, "1b:00.0");
        let price = changes.first().and_then(|change| change.price.as_deref());
        assert!(
            price.is_some_and(|price| price.starts_with("unless ACS redirects at 0000:18:00.0")),
            "{changes:?}"
        );
    }

    #[test]
    fn card_with_a_switch_of_its_own_has_no_slot() {
        let text = two_sockets(DIRECT).replace("10b5:8747", "10de:8747");
        assert!(
            of(&text, "1c:00.0")
                .iter()
                .all(|one| !one.change.starts_with("move"))
        );
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
}
