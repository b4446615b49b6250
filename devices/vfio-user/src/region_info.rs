//! DEVICE_GET_REGION_INFO: a region and its mappable areas.

use rustix::io::Errno;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use crate::device::{Device, Region, RegionMapping};
use crate::request::{Answer, check_argsz, parse};
use crate::wire::region_info::{CAPS, MMAP, READ, WRITE};
use crate::wire::{RegionInfo, SparseArea, SparseMmap};

/// vfio-user, DEVICE_GET_REGION_INFO. A client whose argsz is too small for the capabilities gets
/// the required size. It gets the capabilities and the descriptor once it asks with that argsz.
pub(crate) fn answer<'d>(device: &'d dyn Device, payload: &[u8]) -> Result<Answer<'d>, Errno> {
    let (asked, _) = parse::<RegionInfo>(payload)?;
    check_argsz::<RegionInfo>(asked.argsz)?;
    let region = device.region(asked.index.get()).ok_or(Errno::INVAL)?;
    let capabilities = sparse_mmap(&region)?;
    let needed = u32::try_from(size_of::<RegionInfo>().saturating_add(capabilities.len()))
        .map_err(|_| Errno::OVERFLOW)?;
    let complete = needed <= asked.argsz.get();
    let attach = complete && !capabilities.is_empty();
    let info = RegionInfo {
        argsz: U32::new(needed),
        flags: U32::new(flags(&region) | if attach { CAPS } else { 0 }),
        index: asked.index,
        cap_offset: U32::new(if attach { RegionInfo::SIZE } else { 0 }),
        size: U64::new(region.size),
        offset: U64::new(region.offset),
    };
    let mut payload = info.as_bytes().to_vec();
    if attach {
        payload.extend_from_slice(&capabilities);
    }
    let descriptor = match region.mapping {
        RegionMapping::Whole(fd) | RegionMapping::Areas(fd, _) => Some(fd),
        RegionMapping::Nothing | RegionMapping::NoArea => None,
    };
    Ok(Answer {
        payload,
        descriptor: descriptor.filter(|_| complete),
    })
}

fn flags(region: &Region<'_>) -> u32 {
    [
        (region.readable, READ),
        (region.writable, WRITE),
        (!matches!(region.mapping, RegionMapping::Nothing), MMAP),
    ]
    .into_iter()
    .filter_map(|(set, flag)| set.then_some(flag))
    .sum()
}

/// Returns the capability that lists the mappable areas, if there is a list.
fn sparse_mmap(region: &Region<'_>) -> Result<Vec<u8>, Errno> {
    let areas = match &region.mapping {
        RegionMapping::Nothing | RegionMapping::Whole(_) => return Ok(Vec::new()),
        RegionMapping::NoArea => [].as_slice(),
        RegionMapping::Areas(_, areas) => areas,
    };
    let header = SparseMmap {
        id: U16::new(SparseMmap::ID),
        version: U16::new(SparseMmap::VERSION),
        next: U32::new(0),
        areas: U32::new(u32::try_from(areas.len()).map_err(|_| Errno::OVERFLOW)?),
        reserved: U32::new(0),
    };
    let mut bytes = header.as_bytes().to_vec();
    for (offset, size) in areas {
        let area = SparseArea {
            offset: U64::new(*offset),
            size: U64::new(*size),
        };
        bytes.extend_from_slice(area.as_bytes());
    }
    Ok(bytes)
}
