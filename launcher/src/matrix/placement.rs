//! The positions of two devices relative to each other, and the flows between them.

use clap::ValueEnum;
use peerbar_report::ProbeDriver;
use serde::Serialize;

use super::TestedDevices;

/// Where provider and client are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Placement {
    /// Below one switch.
    OneSwitch,
    /// Below two switches, each below a root port of one host bridge.
    TwoSwitches,
    /// Below root ports of one host bridge.
    RootPorts,
    /// Below root ports of two host bridges.
    HostBridges,
    /// A disk and its own memory.
    OwnCmb,
}

/// The requester and the memory of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Flow {
    /// From disk to disk through the CMB of one of them, both ways.
    NvmeCmbNvme,
    /// A disk to the memory of a GPU and back.
    NvmeVram,
    /// The copy engine of a GPU to the CMB of a disk and back.
    GpuCmb,
    /// A disk to the memory of a GPU and back, both driven from user space. Only on request,
    /// because a kernel may lack VFIO.
    VfioNvmeVram,
    /// An RDMA adapter within the memory of a GPU, by writes and by reads. Only on request, because
    /// it needs packages in the guest.
    NicVram,
}

/// Provider and client, by their names in the [machine](super::machine).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) provider: &'static str,
    pub(super) client: &'static str,
    /// The driver that asks for the DMA.
    pub(super) by: ProbeDriver,
}

impl Placement {
    /// Returns its name in a table.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::OneSwitch => "one switch",
            Self::TwoSwitches => "two switches",
            Self::RootPorts => "root ports",
            Self::HostBridges => "host bridges",
            Self::OwnCmb => "own CMB",
        }
    }

    /// Returns the provider and client of `flow` here on a machine of `device`, or `None` if that
    /// makes no sense.
    pub(super) fn pair(self, flow: Flow, device: TestedDevices) -> Option<Pair> {
        let (disk, gpu, cmb) = match self {
            Self::OneSwitch => ("sw0-disk", "sw0-gpu", "sw0-cmb"),
            Self::TwoSwitches => ("sw1-cmb", "sw0-gpu", "sw1-cmb"),
            Self::RootPorts => ("root-disk", "root-gpu", "root-cmb"),
            Self::HostBridges => ("bridge-cmb", "root-gpu", "bridge-cmb"),
            Self::OwnCmb => ("root-cmb", "", "root-cmb"),
        };
        // The disk that is not the one with the CMB.
        let other_disk = match self {
            Self::OneSwitch | Self::TwoSwitches => "sw0-disk",
            Self::RootPorts | Self::HostBridges => "root-disk",
            Self::OwnCmb => "root-cmb",
        };
        let nic = match self {
            Self::OneSwitch => "sw0-nic",
            Self::TwoSwitches => "sw1-nic",
            Self::RootPorts => "root-nic",
            Self::HostBridges => "bridge-nic",
            Self::OwnCmb => "",
        };
        let (provider, client) = match flow {
            Flow::NvmeCmbNvme => (cmb, other_disk),
            Flow::NvmeVram | Flow::VfioNvmeVram => (gpu, disk),
            Flow::GpuCmb => (cmb, gpu),
            Flow::NicVram => (gpu, nic),
        };
        let has_gpus = device == TestedDevices::Peerbar && self != Self::OwnCmb;
        let by = match flow {
            Flow::VfioNvmeVram => ProbeDriver::Vfio,
            Flow::NicVram => ProbeDriver::Verbs,
            Flow::NvmeCmbNvme | Flow::NvmeVram | Flow::GpuCmb => ProbeDriver::Kernel,
        };
        (has_gpus || flow == Flow::NvmeCmbNvme).then_some(Pair {
            provider,
            client,
            by,
        })
    }
}

impl Flow {
    /// The default flows.
    pub(super) const USUAL: [Self; 3] = [Self::NvmeCmbNvme, Self::NvmeVram, Self::GpuCmb];

    /// Returns its name in a table.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::NvmeCmbNvme => "NVMe-CMB-NVMe",
            Self::NvmeVram => "NVMe-VRAM",
            Self::GpuCmb => "GPU-CMB",
            Self::VfioNvmeVram => "VFIO-NVMe-VRAM",
            Self::NicVram => "NIC-VRAM",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flow_is_tried_between_two_devices() {
        let count = |device| {
            let all = Placement::value_variants().iter().flat_map(|topology| {
                let flows = Flow::value_variants().iter();
                flows.filter_map(move |flow| topology.pair(*flow, device))
            });
            all.count()
        };
        assert_eq!(count(TestedDevices::Peerbar), 5 * 4 + 1);
        assert_eq!(count(TestedDevices::QemuNvme), 5);
    }

    #[test]
    fn provider_and_client_differ_except_own_memory() {
        for topology in Placement::value_variants() {
            for flow in Flow::value_variants() {
                let Some(pair) = topology.pair(*flow, TestedDevices::Peerbar) else {
                    continue;
                };
                let is_own = pair.provider == pair.client;
                assert_eq!(
                    is_own,
                    *topology == Placement::OwnCmb,
                    "{topology:?} {flow:?}"
                );
            }
        }
    }
}
