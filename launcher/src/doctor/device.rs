//! `peerbar doctor --device`: what a vfio-user server of another project serves, and what
//! `peerbar-proxy` can do with it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use peerbar_lab::count::counted;
use peerbar_lab::size::Size;
use peerbar_pci::Iova;
use peerbar_pci::find_capability;
use peerbar_vfio_user::CONFIG_REGION;
use peerbar_vfio_user::remote::{
    ConnectError, RemoteDevice, RemoteEnd, RemoteHandler, RemoteMapping, RemoteRegion,
};
use rustix::io::Errno;

use super::finding::Finding;

/// Longest wait for each of the server's answers.
const PATIENCE: Duration = Duration::from_secs(5);
/// VFIO_PCI_ROM_REGION_INDEX (Linux include/uapi/linux/vfio.h).
const ROM: u32 = 6;
/// The indexes of interrupts, by the same file.
const INTERRUPTS: [&str; 3] = ["INTx", "MSI", "MSI-X"];
/// Bytes of the header and the capabilities that are read.
const CONFIG_BYTES: usize = 256;
/// The PCI Express capability (PCI Code and ID Assignment 1.11, 2).
const EXPRESS: u8 = 0x10;
/// The class of NVMe controllers, without the programming interface.
const NVME: u16 = 0x0108;
/// Names of base classes (PCI Code and ID Assignment 1.11, 1).
const CLASSES: [(u8, &str); 7] = [
    (0x01, "mass storage"),
    (0x02, "network"),
    (0x03, "display"),
    (0x05, "memory"),
    (0x08, "system peripheral"),
    (0x0c, "serial bus"),
    (0x12, "processing accelerator"),
];

/// Lends nothing, so it refuses all requests.
struct Refusing;

impl RemoteHandler for Refusing {
    fn dma_read(&self, _: Iova, _: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::NODEV)
    }

    fn dma_write(&self, _: Iova, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::NODEV)
    }

    fn ended(&self, _: RemoteEnd) {}
}

/// Connects to the server at `socket`, and describes it. It reads configuration space, and no
/// other region.
pub(super) fn findings(socket: &Path) -> Vec<Finding> {
    let device = match RemoteDevice::connect(socket, Arc::new(Refusing), PATIENCE) {
        Ok(device) => device,
        Err(error) => return vec![unusable(error)],
    };
    let mut config = [0; CONFIG_BYTES];
    if let Err(error) = device.region_read(CONFIG_REGION, 0, &mut config) {
        let found = format!("its configuration space cannot be read: {error}");
        let mend = "the server must answer REGION_READ of region 7";
        return vec![server(&device), Finding::failed("device", found, mend)];
    }
    let config = Config(config);
    let mut findings = vec![server(&device), identity(&config), capabilities(&config)];
    findings.extend((0..ROM).filter_map(|index| bar(&device, &config, index)));
    findings.extend([interrupts(&device), reset(&device, &config), dma()]);
    findings
}

fn unusable(error: ConnectError) -> Finding {
    let mend = match &error {
        ConnectError::NotThere(_) => "correct the path if one runs",
        ConnectError::Socket { .. } => "peerbar must run as the user who may connect to it",
        ConnectError::Server { .. } => {
            "if another client is connected, end that one: many servers take only one. \
             `peerbar vfio-user trace` shows the messages"
        }
    };
    Finding::failed("server", format!("{:#}", anyhow::Error::new(error)), mend)
}

/// The configuration space.
struct Config([u8; CONFIG_BYTES]);

impl Config {
    fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or_default()
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.byte(at), self.byte(at.saturating_add(1))])
    }

    fn capability(&self, id: u8) -> Option<usize> {
        let read = |at: u64| {
            let at = usize::try_from(at).unwrap_or(CONFIG_BYTES);
            self.word(at).to_le_bytes()
        };
        usize::try_from(find_capability(id, read)?).ok()
    }
}

fn server(device: &RemoteDevice) -> Finding {
    let (data, descriptors) = device.limits();
    let data = u64::try_from(data).unwrap_or(u64::MAX);
    let found = format!(
        "speaks vfio-user 0; a message has up to {} of data and {}",
        Size(data),
        counted(descriptors, "descriptor")
    );
    Finding::ok("server", found)
}

fn identity(config: &Config) -> Finding {
    let [interface, subclass, base] = [9, 10, 11].map(|at| config.byte(at));
    let name = CLASSES.iter().find(|(class, _)| *class == base);
    let name = name.map_or("other", |(_, name)| name);
    let class = u16::from_be_bytes([base, subclass]);
    let kind = match class {
        NVME => "an NVMe controller: checks use it as a disk",
        _ => "commands and programs use it (`kind = \"other\"`)",
    };
    let found = format!(
        "{:04x}:{:04x}, class {class:04x}{interface:02x} ({name}); {kind}",
        config.word(0),
        config.word(2)
    );
    match config.byte(0x0e) & 0x7f {
        0 => Finding::ok("device", found),
        header => Finding::failed(
            "device",
            format!("{found}, with a header of type {header}"),
            "only endpoints, with a header of type 0, can be a [[device]]",
        ),
    }
}

fn capabilities(config: &Config) -> Finding {
    match config.capability(EXPRESS) {
        Some(_) => Finding::ok("capabilities", "a PCI Express function"),
        None => Finding::limited(
            "capabilities",
            "no PCI Express capability",
            "Linux takes it for a conventional function: it has no function-level reset",
        ),
    }
}

/// Describes a BAR. The second half of a 64-bit BAR and a missing BAR are not described.
fn bar(device: &RemoteDevice, config: &Config, index: u32) -> Option<Finding> {
    const NAMES: [&str; 6] = ["BAR0", "BAR1", "BAR2", "BAR3", "BAR4", "BAR5"];
    let region = device.region(index).filter(|region| region.size > 0)?;
    let index = usize::try_from(index).ok()?;
    let name = NAMES.get(index)?;
    let flags = config.byte(0x10_usize.saturating_add(index.saturating_mul(4)));
    let kind = match (flags & 1, flags & 0b100, flags & 0b1000) {
        (1, ..) => "ports",
        (_, 0, 0) => "32-bit memory",
        (_, 0, _) => "32-bit prefetchable memory",
        (_, _, 0) => "64-bit memory",
        _ => "64-bit prefetchable memory",
    };
    let found = format!("{} of {kind}: {}", Size(region.size), access(region));
    Some(Finding::ok(name, found))
}

fn access(region: &RemoteRegion) -> String {
    const TRAPPED: &str = "each access is a message";
    match &region.mapping {
        RemoteMapping::Nothing => TRAPPED.to_owned(),
        RemoteMapping::NoArea => format!("{TRAPPED}; no area of it can be mapped"),
        RemoteMapping::Memory { areas: None, .. } => "peers can map it".to_owned(),
        RemoteMapping::Memory {
            areas: Some(areas), ..
        } => {
            let bytes = areas
                .iter()
                .fold(0, |sum: u64, (_, size)| sum.saturating_add(*size));
            match bytes >= region.size {
                true => "peers can map it".to_owned(),
                false => format!(
                    "peers can map {} of it in {}, and the rest is reached by messages",
                    Size(bytes),
                    counted(areas.len(), "area")
                ),
            }
        }
    }
}

fn interrupts(device: &RemoteDevice) -> Finding {
    let vectors = (0..).zip(INTERRUPTS).filter_map(|(index, name)| {
        let irq = device.irq(index).filter(|irq| irq.count > 0)?;
        let count = usize::try_from(irq.count).ok()?;
        Some(format!("{name} with {}", counted(count, "vector")))
    });
    let vectors: Vec<String> = vectors.collect();
    match vectors.is_empty() {
        false => Finding::ok("interrupts", vectors.join(", ")),
        true => Finding::limited(
            "interrupts",
            "none",
            "a driver that waits for one never goes on",
        ),
    }
}

fn reset(device: &RemoteDevice, config: &Config) -> Finding {
    let function_level = config.capability(EXPRESS).is_some_and(|express| {
        // Device Capabilities bit 28 (PCIe Base 6.0, 7.5.3.3).
        config.byte(express.saturating_add(7)) & 1 << 4 != 0
    });
    match (device.info().can_reset, function_level) {
        (true, true) => Finding::ok("reset", "by message and by function"),
        (true, false) => Finding::ok("reset", "by message"),
        (false, _) => Finding::limited(
            "reset",
            "the server does not offer DEVICE_RESET",
            "the device may keep its state from one guest to the next",
        ),
    }
}

fn dma() -> Finding {
    let found = "a peer's memory is mapped by descriptor; if the server sends DMA_READ and \
                 DMA_WRITE, no message says before it does";
    Finding::ok("DMA", found)
}
