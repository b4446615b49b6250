//! The server's description of its device.

use std::os::fd::{AsFd, OwnedFd};

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::device::{CONFIG_REGION, DeviceInfo, Irq, Region, RegionMapping};
use crate::dispatch::check_memory;
use crate::framing::Descriptors;
use crate::request::parse;
use crate::wire::irq_info::{AUTOMASKED, MASKABLE, NORESIZE};
use crate::wire::region_info::{CAPS, MMAP, READ, WRITE};
use crate::wire::{self, RegionCapability, SparseArea, SparseMmap, command, device_info};

use super::connection::{Answered, Connection, Request};
use super::{CallError, SessionStartError};

/// The most regions and interrupt indexes that are asked for. PCI has 9 regions; a device may have
/// a few of its own.
const MOST_REGIONS: u32 = 64;
const MOST_IRQS: u32 = 16;
/// The most vectors of an interrupt index: MSI-X has 2048.
const MOST_VECTORS: u32 = 2048;
/// Space for a region's description in its first reply, and the most that it may need.
const SPACE: u32 = 4096;
const MOST_SPACE: u32 = 64 << 10;
/// The most mappable areas of a region.
const MOST_AREAS: usize = 1024;
/// The most capabilities of a region.
const MOST_CAPABILITIES: usize = 16;
/// Mappable areas consist of pages.
const PAGE: u64 = 4096;

/// A region of the server's device.
#[derive(Debug)]
pub struct RemoteRegion {
    /// Size in bytes.
    pub size: u64,
    /// A client may read it.
    pub readable: bool,
    /// A client may write it.
    pub writable: bool,
    /// The part that a client may map.
    pub mapping: RemoteMapping,
}

/// The part of a region that a client may map.
#[derive(Debug)]
pub enum RemoteMapping {
    /// No part, and the region does not claim otherwise.
    Nothing,
    /// The region is mappable, but has no area or no descriptor.
    NoArea,
    /// Areas of memory.
    Memory {
        /// The memory.
        file: OwnedFd,
        /// The offset of the region in the memory.
        offset: u64,
        /// The areas (offset in the region, size), or `None` for the whole region.
        areas: Option<Vec<(u64, u64)>>,
    },
}

impl RemoteRegion {
    /// Returns the region as it is described to a client.
    pub fn describe(&self) -> Region<'_> {
        let (mapping, offset) = match &self.mapping {
            RemoteMapping::Nothing => (RegionMapping::Nothing, 0),
            RemoteMapping::NoArea => (RegionMapping::NoArea, 0),
            RemoteMapping::Memory {
                file,
                offset,
                areas,
            } => match areas {
                None => (RegionMapping::Whole(file.as_fd()), *offset),
                Some(areas) => (RegionMapping::Areas(file.as_fd(), areas.clone()), *offset),
            },
        };
        Region {
            size: self.size,
            readable: self.readable,
            writable: self.writable,
            mapping,
            offset,
        }
    }
}

/// A device as its server describes it.
#[derive(Debug, Default)]
pub(super) struct Description {
    pub(super) regions: Vec<RemoteRegion>,
    pub(super) irqs: Vec<Irq>,
    /// The device supports DEVICE_RESET.
    pub(super) can_reset: bool,
}

impl Description {
    /// Asks the server.
    pub(super) fn read(connection: &Connection) -> Result<Self, SessionStartError> {
        let info: wire::DeviceInfo = read(connection, command::DEVICE_GET_INFO, 0)?;
        let flags = info.flags.get();
        if flags & device_info::PCI == 0 || info.regions.get() <= CONFIG_REGION {
            return Err(SessionStartError::NotPci);
        }
        let regions = 0..info.regions.get().min(MOST_REGIONS);
        let irqs = 0..info.irqs.get().min(MOST_IRQS);
        let regions = regions.map(|index| region(connection, index));
        let irqs = irqs.map(|index| irq(connection, index));
        Ok(Self {
            regions: regions.collect::<Result<_, _>>()?,
            irqs: irqs.collect::<Result<_, _>>()?,
            can_reset: flags & device_info::RESET != 0,
        })
    }

    pub(super) fn info(&self) -> DeviceInfo {
        let count = |len| u32::try_from(len).unwrap_or(u32::MAX);
        DeviceInfo {
            regions: count(self.regions.len()),
            irqs: count(self.irqs.len()),
            can_reset: self.can_reset,
        }
    }
}

/// A structure that begins with argsz and flags, and in a request the index at the third place.
trait Described: FromBytes + FromZeros + IntoBytes + Immutable + KnownLayout + Unaligned {}
impl Described for wire::DeviceInfo {}
impl Described for wire::IrqInfo {}

fn read<T: Described>(connection: &Connection, command: u16, index: u32) -> Result<T, CallError> {
    let mut asked = T::new_zeroed();
    let size = u32::try_from(size_of::<T>()).map_err(|_| CallError::Malformed)?;
    let words = [size, 0, index].map(U32::new);
    let to = asked.as_mut_bytes().get_mut(..size_of_val(&words));
    to.ok_or(CallError::Malformed)?
        .copy_from_slice(words.as_bytes());
    let answered = connection.call(Request {
        command,
        payload: [asked.as_bytes(), &[]],
        descriptors: &[],
    })?;
    let (info, _) = T::read_from_prefix(&answered.payload).map_err(|_| CallError::Malformed)?;
    Ok(info)
}

fn irq(connection: &Connection, index: u32) -> Result<Irq, CallError> {
    let info: wire::IrqInfo = match read(connection, command::DEVICE_GET_IRQ_INFO, index) {
        // Some servers refuse an index that their device does not use.
        Err(CallError::Refused(_)) => wire::IrqInfo::new_zeroed(),
        info => info?,
    };
    let flags = info.flags.get();
    Ok(Irq {
        count: info.count.get().min(MOST_VECTORS),
        automasked: flags & AUTOMASKED != 0,
        maskable: flags & MASKABLE != 0,
        fixed_count: flags & NORESIZE != 0,
    })
}

fn region(connection: &Connection, index: u32) -> Result<RemoteRegion, CallError> {
    let first = region_info(connection, index, SPACE);
    match first {
        // The same, for a region.
        Err(CallError::Refused(_)) if index != CONFIG_REGION => Ok(RemoteRegion {
            size: 0,
            readable: false,
            writable: false,
            mapping: RemoteMapping::Nothing,
        }),
        Ok((info, _)) if (SPACE + 1..=MOST_SPACE).contains(&info.argsz.get()) => {
            let (info, answered) = region_info(connection, index, info.argsz.get())?;
            Ok(described(index, &info, answered))
        }
        first => first.map(|(info, answered)| described(index, &info, answered)),
    }
}

fn region_info(
    connection: &Connection,
    index: u32,
    space: u32,
) -> Result<(wire::RegionInfo, Answered), CallError> {
    let mut asked = wire::RegionInfo::new_zeroed();
    asked.argsz.set(space);
    asked.index.set(index);
    let answered = connection.call(Request {
        command: command::DEVICE_GET_REGION_INFO,
        payload: [asked.as_bytes(), &[]],
        descriptors: &[],
    })?;
    let (info, _) =
        parse::<wire::RegionInfo>(&answered.payload).map_err(|_| CallError::Malformed)?;
    if info.index.get() != index {
        return Err(CallError::Malformed);
    }
    Ok((*info, answered))
}

fn described(index: u32, info: &wire::RegionInfo, answered: Answered) -> RemoteRegion {
    let flags = info.flags.get();
    let mapping = match flags & MMAP {
        0 => RemoteMapping::Nothing,
        _ => mapping(info, &answered.payload, answered.descriptors).unwrap_or_else(|problem| {
            log::warn!("region {index} of the server is not mapped: {problem}");
            RemoteMapping::NoArea
        }),
    };
    RemoteRegion {
        size: info.size.get(),
        readable: flags & READ != 0,
        writable: flags & WRITE != 0,
        mapping,
    }
}

/// Returns the mappable part of a region, or the reason for which it cannot be used.
fn mapping(
    info: &wire::RegionInfo,
    payload: &[u8],
    descriptors: Descriptors,
) -> Result<RemoteMapping, &'static str> {
    let areas = match info.flags.get() & CAPS {
        0 => None,
        _ => sparse_areas(info, payload)?,
    };
    let (offset, size) = (info.offset.get(), info.size.get());
    let is_usable = |area: &(u64, u64)| {
        let ends = [area.0.checked_add(area.1), offset.checked_add(size)];
        let [Some(end), Some(_)] = ends else {
            return false;
        };
        area.1 > 0 && end <= size && [area.0, area.1].iter().all(|number| number % PAGE == 0)
    };
    let whole = [(0, size)];
    if !areas.as_deref().unwrap_or(&whole).iter().all(is_usable) || offset % PAGE != 0 {
        return Err("its areas are not pages inside the region");
    }
    if areas.as_ref().is_some_and(Vec::is_empty) {
        return Ok(RemoteMapping::NoArea);
    }
    let file = descriptors.kept.into_iter().next();
    let file = file.ok_or("it has no descriptor")?;
    check_memory(&file).map_err(|_| "its descriptor is not memory")?;
    Ok(RemoteMapping::Memory {
        file,
        offset,
        areas,
    })
}

/// Returns the areas of the first list of them, if there is one.
fn sparse_areas(
    info: &wire::RegionInfo,
    payload: &[u8],
) -> Result<Option<Vec<(u64, u64)>>, &'static str> {
    const OUTSIDE: &str = "its capabilities lie outside the reply";
    let mut at = info.cap_offset.get();
    for _ in 0..MOST_CAPABILITIES {
        if at == 0 {
            return Ok(None);
        }
        let rest = usize::try_from(at).ok().and_then(|at| payload.get(at..));
        let rest = rest.ok_or(OUTSIDE)?;
        let (capability, _) = parse::<RegionCapability>(rest).map_err(|_| OUTSIDE)?;
        if capability.id.get() == SparseMmap::ID {
            return areas(rest).map(Some).ok_or(OUTSIDE);
        }
        at = capability.next.get();
    }
    Err("its capabilities do not end")
}

fn areas(capability: &[u8]) -> Option<Vec<(u64, u64)>> {
    let (header, rest) = parse::<SparseMmap>(capability).ok()?;
    let count = usize::try_from(header.areas.get()).ok()?;
    let count = Some(count).filter(|count| *count <= MOST_AREAS)?;
    let (areas, _) = <[SparseArea]>::ref_from_prefix_with_elems(rest, count).ok()?;
    let area = |area: &SparseArea| (area.offset.get(), area.size.get());
    Some(areas.iter().map(area).collect())
}
