//! `peerbar doctor --device`: what a vfio-user server of another project serves, and what
//! `peerbar-proxy` can do with it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use peerbar_dma::Requester;
use peerbar_endpoint::{BarMemory, PeerPages, limit_windows};
use peerbar_lab::count::counted;
use peerbar_lab::size::Size;
use peerbar_pci::{Bar, Iova, find_capability};
use peerbar_vfio_user::CONFIG_REGION;
use peerbar_vfio_user::remote::{CallError, ConnectError, RemoteDevice, RemoteEnd, RemoteHandler};
use rustix::io::Errno;

use super::finding::Finding;

/// Longest wait for each of the server's answers.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of BARs.
const BARS: usize = 6;
/// Bits of a BAR's first register (PCI Local Bus 3.0, 6.2.5.1).
const IO_SPACE: u8 = 0b1;
const PREFETCHABLE: u8 = 0b1000;
/// The indexes of interrupts (Linux include/uapi/linux/vfio.h).
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
    match RemoteDevice::connect(socket, Arc::new(Refusing), PATIENCE) {
        Ok(device) => of(&device),
        Err(error) => vec![unusable(error)],
    }
}

fn of(device: &RemoteDevice) -> Vec<Finding> {
    let described = described_by(device).unwrap_or_else(|error| {
        let found = format!("its configuration space cannot be read: {error}");
        let mend = "the server must answer REGION_READ of region 7";
        vec![Finding::failed("device", found, mend)]
    });
    [server(device)].into_iter().chain(described).collect()
}

/// Describes the device.
///
/// # Errors
/// Its configuration space cannot be read.
fn described_by(device: &RemoteDevice) -> Result<Vec<Finding>, CallError> {
    let mut config = [0; CONFIG_BYTES];
    device.region_read(CONFIG_REGION, 0, &mut config)?;
    let config = Config(config);
    let mut findings = vec![identity(&config), capabilities(&config)];
    findings.extend(bars(device, &config)?);
    findings.extend([interrupts(device), reset(device, &config), dma()]);
    Ok(findings)
}

fn unusable(error: ConnectError) -> Finding {
    let mend = match &error {
        ConnectError::NotThere(path) => {
            let found = format!("no vfio-user server at {}", path.display());
            return Finding::failed("server", found, "start it first, or correct the path");
        }
        ConnectError::NotASocket(path) => {
            let found = format!("{} is not a socket", path.display());
            return Finding::failed("server", found, "correct the path");
        }
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
        "speaks vfio-user; a message has up to {} of data and {}",
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

/// Describes the BARs, and the access that a proxy of the device gives its peers.
fn bars(device: &RemoteDevice, config: &Config) -> Result<Vec<Finding>, CallError> {
    let space = peerbar_proxy::mirror(device)?;
    let requester = Requester::new();
    let memory = space.bars().iter();
    let memory = memory.map(|bar| (*bar, peerbar_proxy::bar_memory(device, &requester, bar)));
    let mut memory: Vec<_> = memory.collect();
    limit_windows(&mut memory);
    let memory = memory.iter().map(|(bar, memory)| {
        let found = format!(
            "{}: {}",
            described(bar, config),
            reached(memory, bar.size())
        );
        Some(Finding::ok(bar_name(bar.index().into())?, found))
    });
    let ports = (0..BARS).filter(|index| config.byte(bar_register(*index)) & IO_SPACE != 0);
    let ports = ports.map(|index| {
        let size = device.region(u32::try_from(index).ok()?)?.size;
        let found = format!("{} of I/O ports: peers cannot reach them", Size(size));
        Some(Finding::ok(bar_name(index)?, found)).filter(|_| size > 0)
    });
    Ok(memory.chain(ports).flatten().collect())
}

fn bar_name(index: usize) -> Option<&'static str> {
    ["BAR0", "BAR1", "BAR2", "BAR3", "BAR4", "BAR5"]
        .get(index)
        .copied()
}

/// Returns the offset of a BAR's register.
fn bar_register(index: usize) -> usize {
    0x10_usize.saturating_add(index.saturating_mul(4))
}

fn described(bar: &Bar, config: &Config) -> String {
    let width = if bar.is_wide() { "64-bit" } else { "32-bit" };
    let prefetchable = match config.byte(bar_register(bar.index().into())) & PREFETCHABLE {
        0 => "",
        _ => "prefetchable ",
    };
    format!("{} of {width} {prefetchable}memory", Size(bar.size()))
}

/// Describes how peers reach the memory behind a BAR of this size.
fn reached(memory: &BarMemory, size: u64) -> String {
    const MAPPED: &str = "peers map it";
    match memory {
        BarMemory::Memory(_) => MAPPED.to_owned(),
        BarMemory::RegistersWithPages(_, areas, PeerPages::Lent) => {
            let sizes = areas.iter().map(|(_, size)| size);
            let bytes = sizes.fold(0_u64, |sum, size| sum.saturating_add(*size));
            match bytes >= size {
                true => MAPPED.to_owned(),
                false => format!(
                    "peers map {} of it, and reach the rest by messages",
                    Size(bytes)
                ),
            }
        }
        _ => "peers reach it by messages".to_owned(),
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
    let found = "by mappings of guest RAM and of peers' memory. Only a run shows if the server also \
                 sends DMA_READ and DMA_WRITE, which `count`, faults and ports that redirect need";
    Finding::ok("DMA", found)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use peerbar_pci::Range;
    use peerbar_vfio_user::{
        Client, Device, DeviceInfo, DmaMap, Irq, IrqAction, Options, Region, RegionMapping, Stop,
        serve,
    };
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    /// A device whose configuration space has these BAR registers. The region of each has 16 KiB and
    /// the file behind it.
    struct Board {
        registers: [u32; 3],
        file: OwnedFd,
        /// The areas of the regions.
        areas: Vec<(u64, u64)>,
    }

    impl Device for Board {
        fn attached(&mut self, _: Client) {}

        fn detached(&mut self) {}

        fn info(&self) -> DeviceInfo {
            DeviceInfo {
                regions: 9,
                irqs: 0,
                can_reset: false,
            }
        }

        fn region(&self, index: u32) -> Option<Region<'_>> {
            let is_bar = usize::try_from(index).is_ok_and(|index| index < self.registers.len());
            let (size, mapping) = match index {
                CONFIG_REGION => (4096, RegionMapping::Nothing),
                _ if is_bar => {
                    let areas = self.areas.clone();
                    (0x4000, RegionMapping::Areas(self.file.as_fd(), areas))
                }
                _ => (0, RegionMapping::Nothing),
            };
            Some(Region {
                size,
                readable: true,
                writable: true,
                mapping,
                offset: 0,
            })
        }

        fn irq(&self, _: u32) -> Option<Irq> {
            None
        }

        fn region_read(&mut self, _: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
            let mut space = [0; 4096];
            for (at, register) in (0x10..).step_by(4).zip(self.registers) {
                space[at..at + 4].copy_from_slice(&register.to_le_bytes());
            }
            let at = usize::try_from(offset).unwrap();
            data.copy_from_slice(&space[at..at + data.len()]);
            Ok(())
        }

        fn region_write(&mut self, _: u32, _: u64, _: &[u8]) -> Result<(), Errno> {
            Err(Errno::NODEV)
        }

        fn set_irqs(&mut self, _: u32, _: u32, _: u32, _: IrqAction) -> Result<(), Errno> {
            Err(Errno::NODEV)
        }

        fn dma_map(&mut self, _: DmaMap) -> Result<(), Errno> {
            Err(Errno::NODEV)
        }

        fn dma_unmap(&mut self, _: Range<Iova>) -> Result<(), Errno> {
            Err(Errno::NODEV)
        }

        fn reset(&mut self) -> Result<(), Errno> {
            Err(Errno::NODEV)
        }
    }

    /// Returns the lines about the BARs of a device with a file of this size behind each.
    fn lines(file_bytes: u64, areas: &[(u64, u64)]) -> Vec<String> {
        let file = memfd_create("bars", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, file_bytes).unwrap();
        let mut board = Board {
            // 64-bit prefetchable, its upper half, ports.
            registers: [0b1100, 0, 1],
            file,
            areas: areas.to_vec(),
        };
        let (ours, theirs) = UnixStream::pair().unwrap();
        let options = Options::new(Stop::new().unwrap());
        let server = thread::spawn(move || serve(theirs, &mut board, &options));
        let device = RemoteDevice::start(ours, Arc::new(Refusing), PATIENCE).unwrap();
        let findings = of(&device);
        drop(device);
        server.join().unwrap().unwrap();
        let bars = findings.iter();
        let bars = bars.filter(|finding| finding.probe.starts_with("BAR"));
        bars.map(|finding| format!("{}: {}", finding.probe, finding.found))
            .collect()
    }

    #[test]
    fn peers_access_is_that_which_the_proxy_gives() {
        let ports = "BAR2: 16K of I/O ports: peers cannot reach them";
        let bar = "BAR0: 16K of 64-bit prefetchable memory: peers";
        for (file_bytes, areas, expected) in [
            (0x4000, [(0, 0x4000)], "map it"),
            (
                0x4000,
                [(0x1000, 0x1000)],
                "map 4K of it, and reach the rest by messages",
            ),
            // As SPDK's, which ends after the doorbells.
            (0x2000, [(0x1000, 0x1000)], "reach it by messages"),
        ] {
            let expected = [format!("{bar} {expected}"), ports.to_owned()];
            assert_eq!(lines(file_bytes, &areas), expected);
        }
    }
}
