//! Obstacles to peer-to-peer DMA other than its way, and reasons for a slow one.

use crate::address::Address;
use crate::machine::{Function, Iommu, Kind, Machine};
use crate::size::human;
use crate::wire::{Distance, Wire};

/// Returns warnings about the machine, independently of a pair.
pub(crate) fn of_machine(machine: &Machine) -> Vec<String> {
    let mut warnings = Vec::new();
    let host = &machine.host;
    if let Some(hypervisor) = &host.hypervisor {
        warnings.push(format!(
            "this is a virtual machine ({hypervisor}): its PCI topology is made up, and does not show how the hardware \
             routes"
        ));
    }
    if host.has_p2pdma == Some(false) {
        warnings.push(
            "the kernel was built without CONFIG_PCI_P2PDMA: it refuses every pair".to_owned(),
        );
    }
    warnings.extend(
        machine
            .release()
            .caveat()
            .filter(|_| host.release.is_some()),
    );
    warnings
}

/// Returns warnings about `client`'s transfers to and from memory of `provider`.
pub(crate) fn of_pair(
    machine: &Machine,
    client: Address,
    provider: Address,
    wire: &Wire,
) -> Vec<String> {
    let mut warnings = Vec::new();
    for (address, role) in [(client, Role::Client), (provider, Role::Provider)] {
        if let Some(function) = machine.function(address) {
            warnings.extend(of_function(address, function, role));
        }
    }
    warnings.extend(links(machine, client, provider));
    warnings.extend(payloads(machine, client, provider));
    if let (Some(of_client), Some(of_provider)) =
        (machine.function(client), machine.function(provider))
    {
        warnings.extend(out_of_reach((client, of_client), (provider, of_provider)));
        warnings.extend(relaxed_ordering(
            (client, of_client),
            (provider, of_provider),
        ));
        if machine.is_complete && of_provider.p2pmem.is_none() {
            warnings.push(unpublished(provider, of_provider));
        }
    }
    let at_host_bridge = matches!(
        wire.distance,
        Distance::Phb | Distance::Node | Distance::Sys
    );
    if machine.host.iommu == Some(Iommu::Translates)
        && (at_host_bridge || !wire.redirected_at.is_empty())
    {
        warnings.push(
            "the client gets an IOVA, because the IOMMU translates: a stack that gives devices physical addresses needs \
             iommu=pt at boot, with which the IOMMU no longer limits the DMA of the kernel's drivers"
                .to_owned(),
        );
    }
    if wire.distance == Distance::Sys {
        warnings.push("the pair is on two NUMA nodes: many processors forward peer-to-peer requests between them slowly, or not at all".to_owned());
    }
    warnings
}

/// The part of a function in a pair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Client,
    Provider,
}

fn of_function(address: Address, function: &Function, role: Role) -> Vec<String> {
    let mut warnings = Vec::new();
    if role == Role::Client && function.masters_bus == Some(false) {
        warnings.push(format!("{address} is not bus master (Control: BusMaster-): it cannot issue DMA until its driver enables it"));
    }
    if role == Role::Provider && function.decodes_memory == Some(false) {
        warnings.push(format!(
            "{address} does not decode memory (Control: Mem-): its BARs answer to nobody"
        ));
    }
    if role == Role::Provider {
        warnings.extend(small_bar(address, function));
    }
    if role == Role::Provider && function.driver.as_deref() == Some("vfio-pci") {
        warnings.push(format!(
            "{address} is bound to vfio-pci: no driver of the host publishes its memory"
        ));
    }
    warnings
}

/// Returns the warning that Linux itself knows no memory of a provider.
fn unpublished(address: Address, function: &Function) -> String {
    let driver = function.driver.as_deref().unwrap_or("no driver");
    format!(
        "{address} ({driver}) publishes no p2pmem: Linux' own users of peer memory, such as O_DIRECT, cannot name it; a \
         vendor's stack or a dma-buf may"
    )
}

/// Warns of memory above the addresses that the client can issue.
fn out_of_reach(client: (Address, &Function), provider: (Address, &Function)) -> Option<String> {
    let bits = client.1.dma_bits.filter(|bits| *bits < u64::BITS)?;
    let bar = provider.1.provider_bar()?;
    let last = bar.address?.checked_add(bar.size?)?.checked_sub(1)?;
    (last >> bits != 0).then(|| {
        format!(
            "BAR {} of {} ends at {last:#x}, and the driver of {} uses {bits} bits for DMA: lower the BAR in the firmware \
             (MMIO base or size), or use an IOMMU",
            bar.index, provider.0, client.0
        )
    })
}

/// Warns if only one of the ends uses Relaxed Ordering.
fn relaxed_ordering(
    client: (Address, &Function),
    provider: (Address, &Function),
) -> Option<String> {
    let (of_client, of_provider) = (client.1.relaxed_ordering?, provider.1.relaxed_ordering?);
    let (on, off) = if of_client {
        (client.0, provider.0)
    } else {
        (provider.0, client.0)
    };
    (of_client != of_provider).then(|| {
        format!("Relaxed Ordering is on at {on} and off at {off}: the two directions may differ in speed")
    })
}

/// Warns of a GPU whose BAR shows only a part of its memory.
fn small_bar(address: Address, function: &Function) -> Option<String> {
    let bar = function.provider_bar()?;
    let size = bar.size?;
    if bar.address.is_none() {
        return Some(format!(
            "BAR {} of {address} has no address: nothing can reach it",
            bar.index
        ));
    }
    if let Some(largest) = bar.largest.filter(|largest| *largest > size) {
        return Some(format!(
            "BAR {} of {address} has {}, Resizable BAR offers {}: the rest of its memory has no bus address; enable \
             Above 4G Decoding and Resizable BAR in the firmware",
            bar.index,
            human(size),
            human(largest)
        ));
    }
    let is_small = function.kind() == Kind::Gpu && size <= 256 << 20;
    is_small.then(|| {
        format!(
            "BAR {} of {address} has {}: if the GPU has more memory, the rest has no bus address",
            bar.index,
            human(size)
        )
    })
}

/// Warns of links on the way that are slower than they could be.
fn links(machine: &Machine, client: Address, provider: Address) -> Vec<String> {
    let warning = |address: Address| {
        let link = machine.function(address)?.link?;
        // A slot's port may support more than the card in it; the card's own limit counts.
        let ((speed, width), (most, widest)) = (
            link.speed.zip(link.width)?,
            link.max_speed.zip(link.max_width)?,
        );
        (speed < most || width < widest).then(|| {
            format!(
                "the link of {address} runs at {speed} GT/s x{width}, and supports {most} GT/s x{widest}: an idle device \
                 may lower the speed, not the width"
            )
        })
    };
    [client, provider].into_iter().filter_map(warning).collect()
}

/// Warns of a Max Payload Size that differs along the way.
fn payloads(machine: &Machine, client: Address, provider: Address) -> Option<String> {
    let payload = |address: &Address| Some((*address, machine.function(*address)?.max_payload?));
    let way = [client, provider].into_iter().flat_map(|end| {
        let (bridges, _) = machine.bridges_above(end);
        [end].into_iter().chain(bridges)
    });
    let sizes: Vec<(Address, u16)> = way.filter_map(|address| payload(&address)).collect();
    let (at_least, at_most) = (
        sizes.iter().min_by_key(|(_, size)| *size)?,
        sizes.iter().max_by_key(|(_, size)| *size)?,
    );
    (at_least.1 < at_most.1).then(|| {
        format!(
            "Max Payload Size differs on the way: {} bytes at {}, {} bytes at {}: a larger packet than a port accepts is an \
             error",
            at_least.1, at_least.0, at_most.1, at_most.0
        )
    })
}

#[cfg(test)]
mod tests {
    use crate::samples::{DIRECT, at, machine, two_sockets};

    fn of(text: &str) -> Vec<String> {
        machine(text).pair(at("1b:00.0"), at("1a:00.0")).warnings
    }

    /// Asserts that `text` in place of `instead_of` gives exactly one warning, with these words.
    fn warns(instead_of: &str, text: &str, words: &str) {
        let sample = two_sockets(DIRECT);
        assert!(sample.contains(instead_of), "{instead_of}");
        let warnings = of(&sample.replace(instead_of, text));
        assert!(
            matches!(warnings.as_slice(), [one] if one.contains(words)),
            "{warnings:?}"
        );
    }

    #[test]
    fn sound_pair_has_no_warning() {
        assert_eq!(of(&two_sockets(DIRECT)), Vec::<String>::new());
    }

    #[test]
    fn each_obstacle_has_its_warning() {
        let gpu = "Region 1: Memory at 383800000000 (64-bit, prefetchable) [size=32G]";
        let small = gpu.replace("32G", "256M");
        let unassigned = gpu.replace("383800000000", "<unassigned>");
        warns(gpu, &unassigned, "BAR 1 of 0000:1a:00.0 has no address");
        warns(gpu, &small, "has 256 MiB: if the GPU has more memory");
        let resizable = format!("{small}\n\tBAR 1: current size: 256MB, supported: 256MB 32GB");
        warns(gpu, &resizable, "Resizable BAR offers 32 GiB");
        warns(
            "Kernel driver in use: nvidia",
            "Kernel driver in use: vfio-pci",
            "is bound to vfio-pci",
        );
        let disk = "Region 0: Memory at b8600000 (64-bit, non-prefetchable) [size=16K]";
        warns(disk, "Control: I/O- Mem+ BusMaster-", "is not bus master");
        let link = "LnkCap: Port #0, Speed 8GT/s, Width x4\n\tLnkSta: Speed 2.5GT/s (downgraded), Width x4 (ok)";
        warns(disk, link, "runs at 2.5 GT/s x4, and supports 8 GT/s x4");
        warns(
            gpu,
            &format!("{gpu}\n\tControl: I/O- Mem- BusMaster+"),
            "does not decode memory",
        );
        warns(
            gpu,
            &format!(
                "{gpu}\n\tMaxPayload 256 bytes\n1b:00.0 Non-Volatile memory controller: x\n\tMaxPayload 128 bytes"
            ),
            "Max Payload Size differs",
        );
    }

    #[test]
    fn translation_is_named_on_a_way_through_the_host_bridge() {
        let text = format!(
            "iommu: Default domain type: Translated\n{}",
            two_sockets(DIRECT)
        );
        let machine = machine(&text);
        let warnings = |client| machine.pair(at(client), at("1a:00.0")).warnings;
        assert!(
            warnings("1c:00.0")
                .iter()
                .any(|warning| warning.contains("needs iommu=pt at boot"))
        );
        assert!(warnings("1b:00.0").is_empty());
    }

    #[test]
    fn memory_above_the_client_s_addresses_is_named() {
        let mut machine = machine(&two_sockets(DIRECT));
        let warnings =
            |machine: &crate::machine::Machine| machine.pair(at("1b:00.0"), at("1a:00.0")).warnings;
        for (bits, expected) in [(64, 0), (46, 0), (45, 1)] {
            machine.functions.get_mut(&at("1b:00.0")).unwrap().dma_bits = Some(bits);
            assert_eq!(warnings(&machine).len(), expected, "{bits}");
        }
    }

    #[test]
    fn provider_without_p2pmem_is_named_where_sysfs_shows_it() {
        let mut machine = machine(&two_sockets(DIRECT));
        machine.is_complete = true;
        let warnings = machine.pair(at("1b:00.0"), at("1a:00.0")).warnings;
        assert!(
            matches!(warnings.as_slice(), [one] if one.contains("(nvidia) publishes no p2pmem")),
            "{warnings:?}"
        );
    }

    #[test]
    fn virtual_machine_is_recognised() {
        let text = "00:00.0 Host bridge: Intel Corporation 82G33/G31/P35/P31 Express DRAM Controller\n00:01.0 Unclassified device: Red Hat, Inc. Virtio console\n";
        let warnings = machine(text).matrix(false).warnings;
        assert!(
            warnings
                .iter()
                .any(|warning| warning.contains("virtual machine (QEMU)")),
            "{warnings:?}"
        );
    }

    #[test]
    fn kernel_without_the_option_is_named() {
        let text = format!("# CONFIG_PCI_P2PDMA is not set\n{}", two_sockets(DIRECT));
        let warnings = machine(&text).matrix(false).warnings;
        assert!(
            warnings
                .iter()
                .any(|warning| warning.contains("CONFIG_PCI_P2PDMA")),
            "{warnings:?}"
        );
    }
}
