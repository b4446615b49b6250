//! The machine of a scenario.

use toml::Spanned;

use super::attach::AttachPoints;
use super::check::Endpoints;
use super::contents::Machine;
use super::error::Problem;
use super::file::MachineTable;
use super::file::Model;
use super::sanitize;
use crate::firmware::Firmware;
use crate::size::Size;

const DEFAULT_MEMORY: u64 = 512 << 20;
/// Smallest memory: less does not hold a distribution's kernel while it starts.
pub(super) const LEAST_MEMORY: u64 = 96 << 20;
pub(super) const MEMORY_UNIT: u64 = 2 << 20;
/// The default size of the kernel's huge pages, in bytes.
pub(super) const HUGE_PAGE: u64 = 2 << 20;

/// The machine around these devices.
pub(super) fn machine(
    table: MachineTable,
    attach_points: &AttachPoints,
    Endpoints {
        nvmes,
        gpus,
        nics,
        foreign,
    }: Endpoints<'_>,
) -> Result<Machine, Problem> {
    let own_disk = nvmes.iter().any(|nvme| nvme.model == Model::Peerbar);
    let recorded = own_disk || !gpus.is_empty() || !nics.is_empty() || !foreign.is_empty();
    let has_ats = nvmes.iter().map(|nvme| nvme.ats);
    let has_ats = has_ats.chain(gpus.iter().map(|gpu| gpu.ats));
    let mut has_ats = has_ats.chain(nics.iter().map(|nic| nic.ats));
    let cpus = match table.cpus {
        Some(cpus) if !(1..=64).contains(cpus.get_ref()) => {
            return Err(Problem::new(
                cpus.span(),
                format!("`cpus = {}`: a machine has 1 to 64", cpus.get_ref()),
            ));
        }
        cpus => cpus.map_or(2, Spanned::into_inner),
    };
    let memory = table.memory.map_or(Ok(DEFAULT_MEMORY), memory)?;
    let hugepages = table.hugepages.map(|size| hugepages(size, memory));
    Ok(Machine {
        cpu: table.cpu.unwrap_or_else(|| "EPYC".to_owned()),
        memory,
        cpus,
        hugepages: hugepages.transpose()?.unwrap_or_default(),
        firmware: firmware(table.firmware, &attach_points.host_bridges)?,
        iommu: table.iommu,
        kernel_parameters: table.kernel_parameters,
        sanitize: sanitize::beside(table.sanitize, table.iommu, recorded)?,
        ats: has_ats.any(|has_ats| has_ats),
        virtio_gpu: table.virtio_gpu,
        network: table.network,
        trace: false,
    })
}

fn memory(size: Spanned<Size>) -> Result<u64, Problem> {
    let bytes = size.get_ref().0;
    if bytes < LEAST_MEMORY || bytes % MEMORY_UNIT != 0 {
        let message = format!(
            "`memory = \"{}\"`: a guest requires {} or more, in multiples of {}",
            size.get_ref(),
            Size(LEAST_MEMORY),
            Size(MEMORY_UNIT)
        );
        return Err(Problem::new(size.span(), message));
    }
    Ok(bytes)
}

/// Returns the memory of this `size` in huge pages, which leaves a guest with `memory` enough of
/// it.
fn hugepages(size: Spanned<Size>, memory: u64) -> Result<u64, Problem> {
    let bytes = size.get_ref().0;
    let left = memory.checked_sub(bytes);
    if bytes % HUGE_PAGE == 0 && left.is_some_and(|left| left >= LEAST_MEMORY) {
        return Ok(bytes);
    }
    let message = format!(
        "`hugepages = \"{}\"`: must be a multiple of {}, and leave {} or more of `memory`, which is {}",
        size.get_ref(),
        Size(HUGE_PAGE),
        Size(LEAST_MEMORY),
        Size(memory)
    );
    Err(Problem::new(size.span(), message))
}

/// Returns the faster one, unless there is a host bridge in addition to the machine's own. Below
/// such a bridge QEMU tells the guest only of windows that the firmware has assigned (QEMU
/// hw/i386/acpi-build.c).
fn firmware(
    wanted: Option<Spanned<Firmware>>,
    host_bridges: &[String],
) -> Result<Firmware, Problem> {
    match (wanted, host_bridges.first()) {
        (Some(wanted), Some(bridge)) if *wanted.get_ref() == Firmware::Qboot => Err(Problem::new(
            wanted.span(),
            format!(
                "`firmware = \"qboot\"`: it assigns no addresses, so there would be none for devices below {bridge}: \
                 leave it out"
            ),
        )),
        (Some(wanted), _) => Ok(wanted.into_inner()),
        (None, Some(_)) => Ok(Firmware::Seabios),
        (None, None) => Ok(Firmware::Qboot),
    }
}
