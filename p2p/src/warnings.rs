//! What else keeps peer-to-peer DMA from working, or makes it slow.

use crate::address::Address;
use crate::machine::{Function, Kind, Machine};
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
    if wire.distance == Distance::Sys {
        warnings.push("the pair is on two NUMA nodes: many processors forward peer-to-peer requests between them slowly, or not at all".to_owned());
    }
    warnings
}

/// What a function does in a pair.
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

/// Warns of a GPU whose BAR shows only a part of its memory.
fn small_bar(address: Address, function: &Function) -> Option<String> {
    let bar = function.provider_bar()?;
    let size = bar.size?;
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
