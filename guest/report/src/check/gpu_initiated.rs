//! `gpu-initiated`: reads that the GPU starts.

use std::fmt;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{CheckKind, Keys, TableError, VfioBackend, check};

/// Commands in progress, if the table says nothing.
const DEPTH: u8 = 32;

check! {
    /// The GPU has a pair of queues of the disk in its memory and reads blocks by them: it writes the submission entries and the doorbells and
    /// polls the completions. A program of the guest has the disk by vfio-pci, makes the queues and puts commands on the GPU's
    /// channel. The counters must show that all NVMe commands came out of the GPU's memory, that the GPU wrote the doorbells of which it says so, and with bus
    /// addresses also that nothing went by way of the root. The check says how many reads a second there are, and how much processor time each
    /// costs the program, system calls included, beside the same reads by pread(2) and io_uring through Linux' drivers and by a driver in user space.
    "gpu-initiated": "{gpu} reads {disk} by itself, {depth} at a time{addresses}{driver}, {backend}{}" with (
        fault.map(|code| format!(", to fault {code}")).unwrap_or_default()
    )
    pub struct GpuInitiated {
        /// Name of a `[[gpu]]`. The contents of its memory are lost.
        pub gpu: String,
        /// Name of an `[[nvme]]`. Its data are lost.
        pub disk: String,
        /// The most commands in progress, 1 to 255.
        #[default = "`32`"]
        #[serde(default = "default_depth")]
        pub depth: u8,
        /// How disk and GPU find each other: `"io"`, by I/O addresses through the root, or `"bus"`, by bus addresses below the switch
        /// that they share.
        #[default = "`\"io\"`"]
        #[serde(default)]
        pub addresses: QueueAddresses,
        /// Who drives the GPU: `"vfio"`, the program too, or `"peerbar-gpu"`, its own driver, which imports the disk's registers as a
        /// dma-buf. That takes bus addresses.
        #[default = "`\"vfio\"`"]
        #[serde(default)]
        pub driver: GpuDriver,
        /// `"type1"`, a container with groups, or `"iommufd"`.
        #[default = "`\"type1\"`"]
        #[serde(default)]
        pub backend: VfioBackend,
        /// The fault with which the GPU must end its launch (`devices/gpu/INTERFACE.md`), where a rule breaks its order. Takes `driver = "vfio"`.
        #[default = "none"]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub fault: Option<u8>,
    }
}

/// By which addresses a disk and a GPU find each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueAddresses {
    /// Those of an I/O address space, which the root translates.
    #[default]
    Io,
    /// Those of the bus, by which a switch routes.
    Bus,
}

/// Who drives the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuDriver {
    /// A program, by vfio-pci.
    #[default]
    Vfio,
    /// `peerbar_gpu`.
    PeerbarGpu,
}

impl CheckKind for GpuInitiated {
    const ON_DEMAND: &'static [&'static str] = VfioBackend::DEBIAN_MODULES;

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let gpu = keys.gpu_with_p2pmem("gpu")?;
        let disk = keys.disk_name("disk")?;
        let depth = depth(keys, "depth")?;
        let addresses = keys.or_default("addresses")?;
        let driver: Option<Spanned<GpuDriver>> = keys.optional("driver")?;
        let at = driver.as_ref().map(Spanned::span).unwrap_or_default();
        let driver = driver.map_or_else(GpuDriver::default, Spanned::into_inner);
        if driver == GpuDriver::PeerbarGpu && addresses == QueueAddresses::Io {
            let message = "the memory of a GPU with its own driver has no I/O addresses for a disk of vfio-pci: \
                           write `addresses = \"bus\"`";
            return Err(TableError::new(at, message));
        }
        let backend = keys.or_default("backend")?;
        let fault: Option<Spanned<u8>> = keys.optional("fault")?;
        if let Some(fault) = fault.as_ref().filter(|_| driver != GpuDriver::Vfio) {
            let message = "`fault` is of a GPU that the check drives: leave `driver` out";
            return Err(TableError::new(fault.span(), message));
        }
        Ok(Self {
            gpu,
            disk,
            depth,
            addresses,
            driver,
            backend,
            fault: fault.map(Spanned::into_inner),
            seconds: keys.seconds,
        })
    }

    fn modules_on_demand(&self) -> &'static [&'static str] {
        self.backend.modules()
    }
}

impl fmt::Display for QueueAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Io => "",
            Self::Bus => ", by bus addresses",
        })
    }
}

impl fmt::Display for GpuDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vfio => "",
            Self::PeerbarGpu => ", with its own driver",
        })
    }
}

fn default_depth() -> u8 {
    DEPTH
}

fn depth(keys: &mut Keys<'_, '_>, key: &str) -> Result<u8, TableError> {
    let depth: Option<Spanned<u8>> = keys.optional(key)?;
    match depth {
        None => Ok(DEPTH),
        Some(depth) if *depth.get_ref() == 0 => {
            let message = "`depth` is 1 to 255: the most commands in progress";
            Err(TableError::new(depth.span(), message))
        }
        Some(depth) => Ok(depth.into_inner()),
    }
}
