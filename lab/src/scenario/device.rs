//! The common properties of all devices of a scenario.

use peerbar_dma::LinkSpeed;
use peerbar_fault::Rule;
use peerbar_switch::LinkMode;

use super::attach::AttachPoint;
use super::check::Endpoints;
use super::contents::{Nvme, Scenario};
use super::file::Model;
use super::foreign::Foreign;
use super::gpu::Gpu;
use super::nic::Nic;

/// A device of a scenario, served by a separate process.
#[derive(Clone, Copy, Debug)]
pub enum DeviceSpec<'a> {
    /// An NVMe controller.
    Nvme(&'a Nvme),
    /// A GPU, and its number in the scenario, from 1.
    Gpu(&'a Gpu, u32),
    /// An RDMA network adapter, and its number in the scenario, from 1.
    Nic(&'a Nic, u32),
    /// A device with a server of another project, behind our proxy.
    Foreign(&'a Foreign),
}

impl<'a> DeviceSpec<'a> {
    /// Name in the scenario, identifier in QEMU.
    pub fn name(self) -> &'a str {
        match self {
            DeviceSpec::Nvme(nvme) => &nvme.name,
            DeviceSpec::Gpu(gpu, _) => &gpu.name,
            DeviceSpec::Nic(nic, _) => &nic.name,
            DeviceSpec::Foreign(device) => &device.name,
        }
    }

    /// Returns its place.
    pub fn attach(self) -> &'a AttachPoint {
        match self {
            DeviceSpec::Nvme(nvme) => &nvme.attach,
            DeviceSpec::Gpu(gpu, _) => &gpu.attach,
            DeviceSpec::Nic(nic, _) => &nic.attach,
            DeviceSpec::Foreign(device) => &device.attach,
        }
    }

    /// Returns the switch's treatment of its requests to peers.
    pub fn link(self) -> LinkMode {
        match self {
            DeviceSpec::Nvme(nvme) => nvme.link,
            DeviceSpec::Gpu(gpu, _) => gpu.link,
            DeviceSpec::Nic(nic, _) => nic.link,
            DeviceSpec::Foreign(device) => device.link,
        }
    }

    /// Returns the speed of its link.
    pub fn link_speed(self) -> LinkSpeed {
        match self {
            DeviceSpec::Nvme(nvme) => nvme.link_speed,
            DeviceSpec::Gpu(gpu, _) => gpu.link_speed,
            DeviceSpec::Nic(nic, _) => nic.link_speed,
            DeviceSpec::Foreign(device) => device.link_speed,
        }
    }

    /// Returns `true` if the scenario gives it address translation services.
    pub fn ats(self) -> bool {
        match self {
            DeviceSpec::Nvme(nvme) => nvme.ats,
            DeviceSpec::Gpu(gpu, _) => gpu.ats,
            DeviceSpec::Nic(nic, _) => nic.ats,
            DeviceSpec::Foreign(_) => false,
        }
    }

    /// Returns the faults that are injected into its operations.
    pub fn faults(self) -> &'a [Rule] {
        match self {
            DeviceSpec::Nvme(nvme) => &nvme.faults,
            DeviceSpec::Gpu(gpu, _) => &gpu.faults,
            DeviceSpec::Nic(nic, _) => &nic.faults,
            DeviceSpec::Foreign(device) => &device.faults,
        }
    }

    /// Returns its kind, which is part of file names.
    pub fn kind(self) -> &'static str {
        match self {
            DeviceSpec::Nvme(_) => "nvme",
            DeviceSpec::Gpu(..) => "gpu",
            DeviceSpec::Nic(..) => "nic",
            DeviceSpec::Foreign(_) => "device",
        }
    }

    /// Returns `true` if a program of ours serves it.
    pub fn is_ours(self) -> bool {
        !matches!(self, DeviceSpec::Nvme(nvme) if nvme.model == Model::Qemu)
    }

    /// Returns the program that serves it.
    pub fn program(self) -> &'static str {
        match self {
            DeviceSpec::Nvme(_) => "peerbar-nvme",
            DeviceSpec::Gpu(..) => "peerbar-gpu",
            DeviceSpec::Nic(..) => "peerbar-efa",
            DeviceSpec::Foreign(_) => "peerbar-proxy",
        }
    }
}

impl<'a> Endpoints<'a> {
    /// Returns all devices, as [`Scenario::devices`] does.
    pub(super) fn devices(self) -> impl Iterator<Item = DeviceSpec<'a>> {
        let gpus = self.gpus.iter().zip(1..);
        let gpus = gpus.map(|(gpu, number)| DeviceSpec::Gpu(gpu, number));
        let nics = self.nics.iter().zip(1..);
        let nics = nics.map(|(nic, number)| DeviceSpec::Nic(nic, number));
        let nvmes = self.nvmes.iter().map(DeviceSpec::Nvme);
        let foreign = self.foreign.iter().map(DeviceSpec::Foreign);
        nvmes.chain(gpus).chain(nics).chain(foreign)
    }
}

impl Scenario {
    /// Returns all devices: the NVMe controllers, the GPUs, the adapters, those with servers of
    /// other projects.
    pub fn devices(&self) -> impl Iterator<Item = DeviceSpec<'_>> {
        self.endpoints().devices()
    }

    /// Returns the slot number of the port above each switch, and then of that above each device.
    pub fn slots(&self) -> impl Iterator<Item = (&str, u32)> {
        let switches = self.switches.iter().map(|switch| switch.name.as_str());
        let devices = self.devices().map(DeviceSpec::name);
        switches.chain(devices).zip(1..)
    }

    /// Returns `true` if the port of this switch above `device` has Access Control Services.
    pub(crate) fn has_acs(&self, switch: &str, device: &str) -> bool {
        let mut switches = self.switches.iter();
        switches.any(|known| known.name == switch && known.acs.has(device))
    }

    /// Returns `true` if all devices are below one switch, which routes between them.
    pub fn is_one_switch(&self) -> bool {
        let first = self.devices().next();
        first
            .and_then(|device| device.attach().switch())
            .is_some_and(|switch| {
                self.devices().all(|device| {
                    device.attach().switch() == Some(switch)
                        && device.link() == LinkMode::Route
                        && !self.has_acs(switch, device.name())
                })
            })
    }
}
