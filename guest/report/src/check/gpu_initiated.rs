//! `gpu-initiated`: reads that the GPU starts.

use std::fmt;
use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{CheckKind, Keys, Pair, TableError, VfioBackend, check};

/// Default number of commands in progress of a queue, and the limits: queues have 512 entries.
const DEPTH: u16 = 32;
const DEPTHS: RangeInclusive<u16> = 1..=511;
/// Allowed numbers of queue pairs.
const QUEUES: RangeInclusive<u8> = 1..=4;

check! {
    /// Lets the GPU read blocks of the disk by itself: it has pairs of the disk's queues in its
    /// memory, writes submission entries and doorbells, and polls the completions. A program in the
    /// guest drives the disk by vfio-pci, makes the queues and puts commands on the GPU's channels.
    ///
    /// While the GPU reads, the devices' counters must show that
    /// - all NVMe commands come out of the GPU's memory, and no data goes elsewhere; with bus
    ///   addresses, nothing goes through the root;
    /// - the GPU writes as many doorbells as it reports, and QEMU writes none of the disk's except
    ///   those that it passes on from the GPU through the root;
    /// - the disk raises no interrupt.
    ///
    /// Doorbells and interrupts must both be counted before, while Linux' own driver uses the disk.
    /// A disk with `poll = "always"` has its doorbells in memory, where it cannot count who writes
    /// them; the check then says so. A GPU with its own driver raises an interrupt at the end of
    /// each launch of 1000 reads.
    ///
    /// The check reports the reads per second, and the time that the host's processors work for the
    /// guest for each read. It compares them with the same reads by pread(2) and io_uring through
    /// Linux' drivers, and by a driver in user space, whose queue takes at most 63 at a time. The
    /// processor time of the program is measured by the guest's clock, which runs on while the host
    /// makes the guest wait.
    "gpu-initiated": "{gpu} reads {disk} by itself, {depth} at a time{addresses}{driver}, {backend}{}{}{}" with (
        if *queues == 1 { String::new() } else { format!(", by {queues} queues at once") },
        fault.map(|code| format!(", to fault {code}")).unwrap_or_default(),
        if *reset { ", until the disk is reset" } else { "" }
    )
    pub struct GpuInitiated {
        /// Name of a `[[gpu]]`. The contents of its memory are lost.
        pub gpu: String,
        /// Name of an `[[nvme]]`. Its data is lost.
        pub disk: String,
        /// Maximum number of commands in progress of a queue, 1 to 511.
        #[default = "`32`"]
        #[serde(default = "default_depth")]
        pub depth: u16,
        /// Number of queue pairs that the GPU drives at once, 1 to 4. Each uses its own channel and
        /// 8 MiB of the GPU's memory.
        #[default = "`1`"]
        #[serde(default = "default_queues")]
        pub queues: u8,
        /// Addresses by which disk and GPU find each other: `"io"`, I/O addresses through the root,
        /// or `"bus"`, bus addresses below the switch that they share.
        #[default = "`\"io\"`"]
        #[serde(default)]
        pub addresses: QueueAddresses,
        /// The GPU's driver: `"vfio"`, the program itself, or `"peerbar-gpu"`, its own driver,
        /// which imports the disk's registers as a dma-buf and requires bus addresses.
        #[default = "`\"vfio\"`"]
        #[serde(default)]
        pub driver: GpuDriver,
        /// The kernel's interface: `"type1"`, a container with groups, or `"iommufd"`.
        #[default = "`\"type1\"`"]
        #[serde(default)]
        pub backend: VfioBackend,
        /// The fault with which the GPU must end its launch (`devices/gpu/INTERFACE.md`) because a
        /// rule breaks its order. A rule must have injected a fault by then. Requires
        /// `driver = "vfio"`.
        #[default = "none"]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub fault: Option<u8>,
        /// Measure each way to read in five rounds or more (fewer on a busy host), and the idle
        /// guest for a second. The median of the rounds counts. Otherwise there is one round of
        /// 1000 reads.
        #[default = "`false`"]
        #[serde(default)]
        pub figures: bool,
        /// Reset the disk in place of the measured reads, while the GPU waits for queues that the
        /// disk has deleted: the launch must end with fault 257, and new queues must work. Then the
        /// disk is reset, closed and disabled while the counters show that commands of a launch are
        /// in progress: the launch must end with fault 7 or, unless disabled, 257, queues and data
        /// must stay as they are, and new queues must work. Requires `driver = "peerbar-gpu"`, and
        /// a disk of 16 MiB or more with blocks of 512 bytes and these `faults`:
        /// `delay command read lba=16384..24576 by=10s`,
        /// `delay completion read lba=24576..32768 by=10s`.
        #[default = "`false`"]
        #[serde(default)]
        pub reset: bool,
    }
}

/// The addresses by which a disk and a GPU find each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueAddresses {
    /// I/O addresses, which the root translates.
    #[default]
    Io,
    /// Bus addresses, by which a switch routes.
    Bus,
}

/// The GPU's driver.
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
        let depth = number(keys, "depth", DEPTH, DEPTHS)?;
        let queues = number(keys, "queues", 1, QUEUES)?;
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
            let message = "`fault` is for a GPU that the check drives: leave `driver` out";
            return Err(TableError::new(fault.span(), message));
        }
        let reset: Option<Spanned<bool>> = keys.optional("reset")?;
        if let Some(reset) = reset.as_ref().filter(|_| driver != GpuDriver::PeerbarGpu) {
            let message =
                "`reset` is for a GPU with its own driver: write `driver = \"peerbar-gpu\"`";
            return Err(TableError::new(reset.span(), message));
        }
        Ok(Self {
            gpu,
            disk,
            depth,
            queues,
            addresses,
            driver,
            backend,
            fault: fault.map(Spanned::into_inner),
            figures: keys.or_default("figures")?,
            reset: reset.is_some_and(Spanned::into_inner),
            seconds: keys.seconds,
        })
    }

    fn modules_on_demand(&self) -> &'static [&'static str] {
        self.backend.modules()
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.gpu, &self.disk)]
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

fn default_depth() -> u16 {
    DEPTH
}

fn default_queues() -> u8 {
    1
}

/// Checks that a number is within these bounds.
fn number<N>(
    keys: &mut Keys<'_, '_>,
    key: &str,
    default: N,
    bounds: RangeInclusive<N>,
) -> Result<N, TableError>
where
    N: DeserializeOwned + PartialOrd + fmt::Display,
{
    let Some(number): Option<Spanned<N>> = keys.optional(key)? else {
        return Ok(default);
    };
    if !bounds.contains(number.get_ref()) {
        let message = format!("`{key}` is {} to {}", bounds.start(), bounds.end());
        return Err(TableError::new(number.span(), message));
    }
    Ok(number.into_inner())
}
