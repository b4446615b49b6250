//! Reads the topology that NCCL and RCCL write to `NCCL_TOPO_DUMP_FILE`, and that clouds give them
//! as `NCCL_TOPO_FILE`.
//!
//! NCCL climbs two steps at a time in sysfs. So of the ports above a device, only the upstream
//! ports of switches have an element; it takes a root port above each `pci` in a `cpu`, and a
//! downstream port above each `pci` in another, for granted. The machine has these ports with
//! unknown ACS, see [`Address::port_above`]. Root buses are not shown; all devices of a domain and
//! a NUMA node count as on one, which NCCL calls `PHB`.

use peerbar_rule::{Cpu, DeviceId, Vendor};

use crate::address::Address;
use crate::machine::{Function, Host, Kind, Link, Machine};
use crate::names;
use crate::shape::Shown;
use crate::xml::{Document, Element};

/// The domain of switches that clouds make up for their virtual machines.
const MADE_UP_DOMAIN: u32 = 0xffff;

/// The surroundings of an element.
#[derive(Clone, Copy, Default)]
struct Around {
    numa_node: Option<u16>,
    device: Option<Address>,
}

/// Reads the elements of a document whose root is `system`.
pub(crate) fn read(document: &Document, machine: &mut Machine) {
    machine.is_selection = true;
    let mut around: Vec<Around> = Vec::with_capacity(document.elements.len());
    for element in &document.elements {
        let above = element.parent.and_then(|parent| around.get(parent));
        let above = above.copied().unwrap_or_default();
        around.push(take(machine, element, above));
    }
    machine.infer_port_types();
    machine.describe_by_id();
}

/// Reads an element and returns the surroundings of the elements in it.
fn take(machine: &mut Machine, element: &Element, above: Around) -> Around {
    let Around { numa_node, device } = above;
    let function = device.and_then(|device| machine.functions.get_mut(&device));
    match (element.name.as_str(), function) {
        ("cpu", _) => {
            cpu(&mut machine.host, element);
            let numa_node = element.get("numaid").and_then(|node| node.parse().ok());
            return Around { numa_node, device };
        }
        ("pci", _) => {
            let device = pci(machine, element, above).or(device);
            return Around { numa_node, device };
        }
        ("net", Some(function)) if function.kind() != Kind::Bridge => {
            let name = element.get("name").filter(|name| names::is_plain(name));
            function.names.extend(name.map(str::to_owned));
        }
        // Files that people write leave out classes.
        ("gpu", Some(function)) => function.class = function.class.or(Some(0x0302)),
        ("nic", Some(function)) => function.class = function.class.or(Some(0x0200)),
        _ => {}
    }
    above
}

/// Adds the function that `element` describes, and returns its address.
fn pci(machine: &mut Machine, element: &Element, above: Around) -> Option<Address> {
    let address: Address = element.get("busid")?.parse().ok()?;
    let function = function(element, above.numa_node);
    let shown = match above.device {
        None if address.bus == 0 => Shown::OnRootBus,
        bridge => Shown::BelowAPort(bridge),
    };
    // Device 0 of a real root bus is a host bridge or a root port.
    let is_first = shown == Shown::OnRootBus && address.devfn() == 0;
    if address.domain == MADE_UP_DOMAIN || is_first && function.is_of_interest() {
        machine.host.hypervisor = Some("with ports that a cloud made up or hides".to_owned());
    }
    machine.attach(address, function, shown);
    Some(address)
}

fn function(element: &Element, numa_node: Option<u16>) -> Function {
    let number = |name| u16::from_str_radix(element.get(name)?.strip_prefix("0x")?, 16).ok();
    let class = element.get("class").and_then(|class| class.get(2..6));
    let id = number("vendor")
        .zip(number("device"))
        .map(|(vendor, device)| DeviceId { vendor, device });
    let first_word = |name| element.get(name)?.split(' ').next();
    let link = Link {
        max_speed: first_word("link_speed").and_then(|speed| speed.parse().ok()),
        max_width: first_word("link_width").and_then(|width| width.parse().ok()),
        ..Link::default()
    };
    Function {
        // Clouds write 0x0000 or 0xffff for devices that they made up.
        id: id.filter(|id| ![0, u16::MAX].contains(&id.vendor)),
        class: class.and_then(|class| u16::from_str_radix(class, 16).ok()),
        link: Some(link),
        numa_node,
        ..Function::default()
    }
}

/// Reads the processor, which is the same for each `cpu`.
fn cpu(host: &mut Host, element: &Element) {
    let Some(arch) = element.get("arch").filter(|_| host.cpu.is_none()) else {
        return;
    };
    let family = element
        .get("familyid")
        .and_then(|family| family.parse().ok());
    let vendor = match (arch, element.get("vendor")) {
        ("x86_64", Some(vendor)) => Vendor::from_id(vendor),
        ("x86_64", None) => return,
        _ => Vendor::Other,
    };
    if vendor == Vendor::Other {
        host.cpu_name = Some(format!("{arch} processor"));
    }
    host.cpu = Some(Cpu {
        vendor,
        family: cpuid_family(family.unwrap_or_default()),
    });
}

/// Returns the family of a processor from NCCL's number, which has the extended family in its upper
/// bits rather than added: 143 for 0xf and 8, which is 0x17. Files that people write have the
/// family itself.
fn cpuid_family(number: u32) -> u32 {
    match (number & 0xf, number >> 4) {
        (0xf, extended) => extended.saturating_add(0xf),
        _ => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Conflict, Place};
    use crate::wire::Distance;
    use peerbar_rule::Way;

    /// Two GPUs and an adapter below a switch, and a GPU below a root port of the same node.
    fn text(cpu: &str) -> String {
        format!(
            r#"<!-- by hand -->
<system version="1">
  <cpu numaid="1" affinity="ff" arch="x86_64" {cpu}>
    <pci busid="0000:41:00.0" class="0x060400" vendor="0x1000" device="0xc010" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:46:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32 GT/s" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:47:00.0" count="12" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:47:00.0"><gpu dev="1"/></pci>
      <pci busid="0000:48:00.0" class="0x020700" link_speed="" link_width="0">
        <nic><net name="mlx5_0" dev="0" port="1"/></nic>
      </pci>
    </pci>
    <pci busid="0000:61:00.0" class="0x030200"/>
  </cpu>
</system>"#
        )
    }

    const AMD: &str = r#"vendor="AuthenticAMD" familyid="175" modelid="1""#;
    const INTEL: &str = r#"vendor="GenuineIntel" familyid="6" modelid="143""#;

    fn machine(cpu: &str) -> Machine {
        Machine::read(&text(cpu)).unwrap()
    }

    fn verdict(machine: &Machine, client: &str, provider: &str) -> (Way, Vec<Way>, Distance) {
        let find = |name| machine.find(name).unwrap();
        let pair = machine.pair(find(client), find(provider));
        let kernel = pair.kernel.unwrap();
        let others = kernel.conditions.iter().map(|other| other.way);
        (kernel.way, others.collect(), pair.wire.unwrap().distance)
    }

    #[test]
    fn elements_become_functions() {
        let machine = machine(INTEL);
        let gpu = machine.function("46:00.0".parse().unwrap()).unwrap();
        assert_eq!((gpu.class, gpu.numa_node), (Some(0x0302), Some(1)));
        assert_eq!(gpu.id.unwrap().to_string(), "10de:2330");
        let link = gpu.link.unwrap();
        assert_eq!((link.max_speed, link.max_width), (Some(32.0), Some(16)));
        let unclassed = machine.function("47:00.0".parse().unwrap()).unwrap();
        assert_eq!(unclassed.kind(), Kind::Gpu);
        assert_eq!(machine.find("mlx5_0"), Ok("48:00.0".parse().unwrap()));
    }

    #[test]
    fn verdicts_below_a_switch_depend_on_acs_of_ports_that_are_not_shown() {
        use Way::{BusAddress, NotSupported, ThroughHostBridge};
        let (amd, intel) = (machine(AMD), machine(INTEL));
        assert_eq!(
            verdict(&amd, "mlx5_0", "gpu0"),
            (BusAddress, vec![ThroughHostBridge], Distance::Pix)
        );
        assert_eq!(
            verdict(&intel, "mlx5_0", "gpu0"),
            (
                BusAddress,
                vec![NotSupported, ThroughHostBridge],
                Distance::Pix
            )
        );
        let find = |name| amd.find(name).unwrap();
        let kernel = amd.pair(find("mlx5_0"), find("gpu0")).kernel.unwrap();
        assert_eq!(
            kernel.conditions[0].when,
            [
                "ACS redirects at 0000:41:00.0 or the port above 0000:46:00.0 or the port above 0000:48:00.0"
            ]
        );
    }

    #[test]
    fn verdicts_between_root_ports_depend_on_host_bridges_unless_the_processor_is_zen() {
        use Way::{NotSupported, ThroughHostBridge};
        assert_eq!(
            verdict(&machine(AMD), "mlx5_0", "gpu2"),
            (ThroughHostBridge, vec![], Distance::Phb)
        );
        let intel = machine(INTEL);
        assert_eq!(
            verdict(&intel, "mlx5_0", "gpu2"),
            (NotSupported, vec![ThroughHostBridge], Distance::Phb)
        );
        let find = |name| intel.find(name).unwrap();
        let kernel = intel.pair(find("mlx5_0"), find("gpu2")).kernel.unwrap();
        assert_eq!(
            kernel.conditions[0].when,
            ["the kernel's list has the host bridge of NUMA node 1"]
        );
        assert!(
            kernel
                .why
                .contains("does not show whether the kernel's list")
        );
    }

    #[test]
    fn family_is_decoded_from_nccl_s_number() {
        let families = [
            (143, 0x17),
            (175, 0x19),
            (191, 0x1a),
            (23, 0x17),
            (15, 15),
            (6, 6),
        ];
        for (number, family) in families {
            assert_eq!(cpuid_family(number), family, "{number}");
        }
        let arm = machine("").host.cpu;
        assert_eq!(arm, None, "x86 without a vendor");
        let text = text(INTEL).replace("x86_64", "arm64");
        let arm = Machine::read(&text).unwrap().host;
        assert_eq!(arm.cpu.map(|cpu| cpu.vendor), Some(Vendor::Other));
    }

    #[test]
    fn source_tells_what_it_lacks() {
        let gaps = machine(AMD).gaps.join("\n");
        for gap in [
            "`sudo lspci -vvv` does",
            "PHB may be NODE",
            "shows no sizes of BARs",
            "`uname -a`",
        ] {
            assert!(gaps.contains(gap), "{gap}: {gaps}");
        }
        let text = text(AMD);
        let cut = Machine::read(&text[..text.find("<pci busid=\"0000:61").unwrap()]).unwrap();
        assert!(cut.gaps[0].contains("line 13"), "{:?}", cut.gaps);
        assert!(cut.find("mlx5_0").is_ok());
        let error = Machine::read("<system version=\"1\"></system>").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("NCCL's topology file shows no PCI device")
        );
    }

    #[test]
    fn address_at_two_places_counts_once() {
        let text = text(AMD).replace("0000:61:00.0", "0000:46:00.0");
        let machine = Machine::read(&text).unwrap();
        let gpu = "46:00.0".parse().unwrap();
        assert_eq!(machine.conflicts, [Conflict::Place(gpu)]);
        let switch = "41:00.0".parse::<Address>().unwrap();
        let (above, is_whole) = machine.bridges_above(gpu);
        assert!(above.contains(&switch) && is_whole);
    }

    #[test]
    fn topology_of_a_cloud_is_called_made_up() {
        let text = text(AMD).replace("0000:41:00.0", "ffff:ff:01.0");
        assert!(Machine::read(&text).unwrap().host.hypervisor.is_some());
        let text = text.replace("ffff:ff:01.0", "0000:41:00.0");
        assert!(Machine::read(&text).unwrap().host.hypervisor.is_none());
        let alone = r#"<system><cpu numaid="0"><pci busid="0001:00:00.0" class="0x030200"/></cpu></system>"#;
        let machine = Machine::read(alone).unwrap();
        assert!(machine.host.hypervisor.is_some());
        let gpu = machine.function("0001:00:00.0".parse().unwrap()).unwrap();
        assert_eq!(gpu.place, Place::RootBus);
    }

    #[test]
    fn machine_is_saved_and_read_again() {
        let machine = machine(INTEL);
        let saved = serde_json::to_string(&machine).unwrap();
        assert_eq!(Machine::read(&saved).unwrap(), machine);
    }
}
