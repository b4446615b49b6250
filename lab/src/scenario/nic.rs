//! Checks a `[[nic]]` table.

use peerbar_dma::LinkSpeed;
use peerbar_fault::{Faults, Rule};
use peerbar_switch::LinkMode;
use toml::Spanned;

use super::attach::{AttachPoint, AttachPoints};
use super::error::Problem;
use super::fault::faults;
use super::file::NicTable;
use super::link::{link, speed};

/// An RDMA network adapter, an Elastic Fabric Adapter.
#[derive(Clone, Debug)]
pub struct Nic {
    /// Name in the scenario, identifier in QEMU.
    pub name: String,
    /// The low bits of its address at the fabric, which is in `fe80::/64`, unique among the
    /// adapters of a file.
    pub gid: u32,
    /// Its place.
    pub attach: AttachPoint,
    /// The switch's treatment of its requests to peers.
    pub link: LinkMode,
    /// Speed of its PCIe link.
    pub link_speed: LinkSpeed,
    /// Set if it offers address translation services.
    pub ats: bool,
    /// The number that determines the order of a queue pair's requests. Without it they are
    /// executed in their original order.
    pub seed: Option<u64>,
    /// The faults that are injected into its operations.
    pub faults: Vec<Rule>,
}

/// Checks one adapter, whose name is known to fit.
pub(super) fn nic(table: NicTable, attach_points: &AttachPoints) -> Result<Nic, Problem> {
    let name = table.name.into_inner();
    let attach = attach_points.of_device(table.below)?;
    let link = link(table.link, &name, &attach)?;
    Ok(Nic {
        name,
        // All adapters are numbered together: see `number`.
        gid: 0,
        attach,
        link,
        link_speed: speed(table.link_latency, table.link_bandwidth)?,
        ats: table.ats.is_some_and(Spanned::into_inner),
        seed: table.seed,
        // It has only the subjects that every device has.
        faults: faults(&table.faults, &Faults::default())?,
    })
}

/// Gives each adapter a unique address.
pub(super) fn number<'a>(nics: impl Iterator<Item = &'a mut Nic>) {
    for (nic, number) in nics.zip(1..) {
        nic.gid = number;
    }
}
