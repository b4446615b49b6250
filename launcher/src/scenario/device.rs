//! What every device of a scenario has, whatever it is.

use peerbar_switch::LinkMode;

use super::{Gpu, Nvme, Scenario};

/// A device of a scenario, served by a process of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Device<'a> {
    /// An NVMe controller.
    Nvme(&'a Nvme),
    /// A GPU, and its number in the scenario, from 1.
    Gpu(&'a Gpu, u32),
}

impl<'a> Device<'a> {
    /// Name in the scenario, identifier in QEMU.
    pub(crate) fn name(self) -> &'a str {
        match self {
            Device::Nvme(nvme) => &nvme.name,
            Device::Gpu(gpu, _) => &gpu.name,
        }
    }

    /// The switch that it is below; a root port of its own if none.
    pub(crate) fn below(self) -> Option<&'a str> {
        match self {
            Device::Nvme(nvme) => nvme.below.as_deref(),
            Device::Gpu(gpu, _) => gpu.below.as_deref(),
        }
    }

    /// What the switch does with its requests to peers.
    pub(crate) fn link(self) -> LinkMode {
        match self {
            Device::Nvme(nvme) => nvme.link,
            Device::Gpu(gpu, _) => gpu.link,
        }
    }

    /// What kind it is, as files are named after.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Device::Nvme(_) => "nvme",
            Device::Gpu(..) => "gpu",
        }
    }

    /// The program that serves it.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Device::Nvme(_) => "peerbar-nvme",
            Device::Gpu(..) => "peerbar-gpu",
        }
    }
}

impl Scenario {
    /// All devices, the NVMe controllers first.
    pub(crate) fn devices(&self) -> impl Iterator<Item = Device<'_>> {
        let gpus = self.gpus.iter().zip(1..);
        let gpus = gpus.map(|(gpu, number)| Device::Gpu(gpu, number));
        self.nvmes.iter().map(Device::Nvme).chain(gpus)
    }
}
