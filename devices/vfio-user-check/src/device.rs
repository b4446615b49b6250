//! The device, as the server describes it.

use crate::outcome::Outcome;
use crate::session::{Session, device_info, is_error};
use crate::wire::{self, command, u16_at, u32_at, u64_at};

/// Bits of a device's flags (vfio-user, DEVICE_GET_INFO).
pub(crate) mod device_flags {
    pub(crate) const RESET: u32 = 1 << 0;
    pub(crate) const PCI: u32 = 1 << 1;
}

/// Bits of a region's flags (vfio-user, DEVICE_GET_REGION_INFO).
pub(crate) mod region_flags {
    pub(crate) const READ: u32 = 1 << 0;
    pub(crate) const WRITE: u32 = 1 << 1;
    pub(crate) const MMAP: u32 = 1 << 2;
    pub(crate) const CAPS: u32 = 1 << 3;
}

/// Bits of an interrupt index' flags (vfio-user, DEVICE_GET_IRQ_INFO).
pub(crate) mod irq_flags {
    pub(crate) const EVENTFD: u32 = 1 << 0;
    pub(crate) const MASKABLE: u32 = 1 << 1;
}

/// The space that the check announces for a region's information.
pub(crate) const REGION_SPACE: u32 = 4096;
/// Size of the information without capabilities.
pub(crate) const REGION_INFO: usize = 32;
/// The capability that lists the mappable areas (VFIO_REGION_INFO_CAP_SPARSE_MMAP).
const SPARSE_MMAP: u16 = 1;
/// Regions and interrupt indexes that the check looks at. QEMU accepts 100 and 50.
const MOST: u32 = 64;

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) flags: u32,
    /// Number of regions.
    pub(crate) region_count: u32,
    /// Number of interrupt indexes.
    pub(crate) irq_count: u32,
    /// Those regions that the server describes.
    pub(crate) regions: Vec<Region>,
    /// Those interrupt indexes that the server describes.
    pub(crate) irqs: Vec<Irq>,
}

/// The reply to DEVICE_GET_REGION_INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) argsz: u32,
    pub(crate) flags: u32,
    pub(crate) index: u32,
    pub(crate) cap_offset: u32,
    pub(crate) size: u64,
    pub(crate) offset: u64,
}

/// The reply to DEVICE_GET_IRQ_INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Irq {
    pub(crate) argsz: u32,
    pub(crate) flags: u32,
    pub(crate) index: u32,
    pub(crate) count: u32,
}

impl Device {
    /// Asks the server for everything.
    pub(crate) fn read(session: &mut Session) -> Outcome<Self> {
        let info = session.success(command::INFO, &device_info(16))?.payload;
        let word = |at| u32_at(&info, at).unwrap_or_default();
        let mut device = Self {
            flags: word(4),
            region_count: word(8),
            irq_count: word(12),
            regions: Vec::new(),
            irqs: Vec::new(),
        };
        for index in 0..device.region_count.min(MOST) {
            let reply = session.ask(command::REGION_INFO, &region_info(REGION_SPACE, index))?;
            let region = Region::parse(&reply.payload);
            device.regions.extend(region.filter(|_| !is_error(&reply)));
        }
        for index in 0..device.irq_count.min(MOST) {
            let reply = session.ask(command::IRQ_INFO, &irq_info(16, index))?;
            let irq = Irq::parse(&reply.payload);
            device.irqs.extend(irq.filter(|_| !is_error(&reply)));
        }
        Ok(device)
    }

    /// Returns the region of this index, if the server describes it.
    pub(crate) fn region(&self, index: u32) -> Option<&Region> {
        self.regions.iter().find(|region| region.index == index)
    }
}

impl Region {
    /// Parses the start of a reply.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        Some(Self {
            argsz: u32_at(payload, 0)?,
            flags: u32_at(payload, 4)?,
            index: u32_at(payload, 8)?,
            cap_offset: u32_at(payload, 12)?,
            size: u64_at(payload, 16)?,
            offset: u64_at(payload, 24)?,
        })
    }

    pub(crate) fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }
}

impl Irq {
    /// Parses a reply.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        Some(Self {
            argsz: u32_at(payload, 0)?,
            flags: u32_at(payload, 4)?,
            index: u32_at(payload, 8)?,
            count: u32_at(payload, 12)?,
        })
    }

    pub(crate) fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }
}

/// Areas that may be mapped, as offsets and sizes.
pub(crate) type Areas = Vec<(u64, u64)>;

/// Walks the capabilities in the reply of a region. Returns the list of mappable areas, if there is
/// one.
///
/// # Errors
/// The list is not as the specification says, for this reason.
pub(crate) fn areas(region: &Region, payload: &[u8]) -> Result<Option<Areas>, String> {
    let mut at = match region.has(region_flags::CAPS) {
        true => region.cap_offset,
        false => 0,
    };
    let mut found = None;
    let mut least = REGION_INFO;
    while at != 0 {
        let start = usize::try_from(at).map_err(|error| error.to_string())?;
        if start < least {
            return Err(format!("a capability at {start} or more, not at {at}"));
        }
        let header = (
            u16_at(payload, start),
            u32_at(payload, start.saturating_add(4)),
        );
        let (Some(id), Some(next)) = header else {
            return Err(format!("a capability at {at} within the payload"));
        };
        if id == SPARSE_MMAP {
            found = Some(sparse_areas(payload, start)?);
        }
        least = start.saturating_add(8);
        at = next;
    }
    Ok(found)
}

fn sparse_areas(payload: &[u8], start: usize) -> Result<Areas, String> {
    let count = u32_at(payload, start.saturating_add(8));
    let count = count.ok_or("a complete list of areas")?;
    let mut areas = Vec::new();
    for number in 0..count {
        let at = usize::try_from(number).ok();
        let at = at.and_then(|number| number.checked_mul(16)?.checked_add(start)?.checked_add(16));
        let area =
            at.and_then(|at| Some((u64_at(payload, at)?, u64_at(payload, at.checked_add(8)?)?)));
        areas.push(area.ok_or_else(|| format!("{count} areas within the payload"))?);
    }
    Ok(areas)
}

/// Returns the payload of DEVICE_GET_REGION_INFO.
pub(crate) fn region_info(argsz: u32, index: u32) -> Vec<u8> {
    [wire::words(&[argsz, 0, index, 0]), wire::quads(&[0, 0])].concat()
}

/// Returns the payload of DEVICE_GET_IRQ_INFO.
pub(crate) fn irq_info(argsz: u32, index: u32) -> Vec<u8> {
    wire::words(&[argsz, 0, index, 0])
}
