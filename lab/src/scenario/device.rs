//! What every device of a scenario has, whatever it is.

use peerbar_dma::LinkSpeed;
use peerbar_switch::LinkMode;

use super::{Gpu, Model, Nvme, Place, Scenario};

/// A device of a scenario, served by a process of its own.
#[derive(Clone, Copy, Debug)]
pub enum Device<'a> {
    /// An NVMe controller.
    Nvme(&'a Nvme),
    /// A GPU, and its number in the scenario, from 1.
    Gpu(&'a Gpu, u32),
}

impl<'a> Device<'a> {
    /// Name in the scenario, identifier in QEMU.
    pub fn name(self) -> &'a str {
        match self {
            Device::Nvme(nvme) => &nvme.name,
            Device::Gpu(gpu, _) => &gpu.name,
        }
    }

    /// Where it is.
    pub fn place(self) -> &'a Place {
        match self {
            Device::Nvme(nvme) => &nvme.place,
            Device::Gpu(gpu, _) => &gpu.place,
        }
    }

    /// What the switch does with its requests to peers.
    pub fn link(self) -> LinkMode {
        match self {
            Device::Nvme(nvme) => nvme.link,
            Device::Gpu(gpu, _) => gpu.link,
        }
    }

    /// How fast its link is.
    pub fn link_speed(self) -> LinkSpeed {
        match self {
            Device::Nvme(nvme) => nvme.link_speed,
            Device::Gpu(gpu, _) => gpu.link_speed,
        }
    }

    /// Whether it offers address translation services.
    pub fn ats(self) -> bool {
        match self {
            Device::Nvme(nvme) => nvme.ats,
            Device::Gpu(gpu, _) => gpu.ats,
        }
    }

    /// What kind it is, as files are named after.
    pub fn kind(self) -> &'static str {
        match self {
            Device::Nvme(_) => "nvme",
            Device::Gpu(..) => "gpu",
        }
    }

    /// Whether a program of ours serves it.
    pub fn is_ours(self) -> bool {
        !matches!(self, Device::Nvme(nvme) if nvme.model == Model::Qemu)
    }

    /// The program that serves it.
    pub fn program(self) -> &'static str {
        match self {
            Device::Nvme(_) => "peerbar-nvme",
            Device::Gpu(..) => "peerbar-gpu",
        }
    }
}

impl Scenario {
    /// All devices, the NVMe controllers first.
    pub fn devices(&self) -> impl Iterator<Item = Device<'_>> {
        let gpus = self.gpus.iter().zip(1..);
        let gpus = gpus.map(|(gpu, number)| Device::Gpu(gpu, number));
        self.nvmes.iter().map(Device::Nvme).chain(gpus)
    }
}
