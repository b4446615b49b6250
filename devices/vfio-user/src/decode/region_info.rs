//! Descriptions of a region: its capabilities, and its sub-regions with descriptors.

use peerbar_host::Size;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::field::Fields;
use super::names::{region_flags, region_name};
use super::payload::Payload;
use crate::wire::{RegionCapability, RegionInfo, RegionIoFds, SparseArea, SparseMmap, SubRegion};

/// The capability of a region that is not one of the standard ones: its type and subtype
/// (linux/vfio.h, `VFIO_REGION_INFO_CAP_TYPE`).
const TYPE: u16 = 2;
/// The MSI-X table may be mapped (linux/vfio.h, `VFIO_REGION_INFO_CAP_MSIX_MAPPABLE`).
const MSIX_MAPPABLE: u16 = 3;

/// Decodes the reply to DEVICE_GET_REGION_INFO.
pub(super) fn decode(payload: &Payload<'_>, fields: &mut Fields) {
    payload.structure::<RegionInfo>(fields, |info, rest, fields| {
        let (size, offset) = (info.size.get(), info.offset.get());
        fields.hide("region", region_name(info.index.get()));
        match size {
            0 => fields.show("size", size, "absent"),
            _ => fields.show("size", size, Size(size).to_string()),
        }
        region_flags(info.flags.get()).add_if_set("flags", fields);
        match offset {
            0 => fields.hide("offset", offset),
            _ => fields.show("offset", offset, format!("offset {offset:#x}")),
        }
        let argsz = info.argsz.get();
        match usize::try_from(argsz).is_ok_and(|argsz| argsz > payload.length) {
            true => fields.show("argsz", argsz, format!("needs argsz {argsz}")),
            false => fields.hide("argsz", argsz),
        }
        if !rest.is_empty() {
            capabilities(payload, info.cap_offset.get(), fields);
        }
    });
}

/// Decodes the list of capabilities, whose offsets must increase.
fn capabilities(payload: &Payload<'_>, first: u32, fields: &mut Fields) {
    let (mut at, mut last) = (first, 0);
    while at != 0 {
        let bytes = usize::try_from(at).ok();
        let bytes = bytes.and_then(|at| payload.start.get(at..));
        let capability = bytes.filter(|_| at > last);
        let capability = capability.and_then(|bytes| RegionCapability::ref_from_prefix(bytes).ok());
        let Some((capability, _)) = capability else {
            return fields.malformed(&format!("no capability at {at:#x}"));
        };
        add_capability(capability, bytes.unwrap_or_default(), fields);
        last = at;
        at = capability.next.get();
    }
}

fn add_capability(capability: &RegionCapability, bytes: &[u8], fields: &mut Fields) {
    let id = capability.id.get();
    match (id, SparseMmap::ref_from_prefix(bytes)) {
        (SparseMmap::ID, Ok((sparse, areas))) => add_areas(sparse.areas.get(), areas, fields),
        (TYPE, Ok((kind, _))) => {
            // Its type and subtype lie where the number of areas does.
            let (kind, subtype) = (kind.areas.get(), kind.reserved.get());
            fields.show("type", kind, format!("type {kind}.{subtype}"));
            fields.hide("subtype", subtype);
        }
        (SparseMmap::ID | TYPE, Err(_)) => {
            fields.malformed(&format!("capability {id} is cut short"))
        }
        (MSIX_MAPPABLE, _) => fields.show("msix-mappable", true, "MSIX_MAPPABLE"),
        _ => fields.show("capability", id, format!("capability {id}")),
    }
}

fn add_areas(count: u32, bytes: &[u8], fields: &mut Fields) {
    let area = size_of::<SparseArea>();
    let most = bytes.len().checked_div(area).unwrap_or_default();
    let announced = usize::try_from(count).unwrap_or(usize::MAX);
    let areas = bytes.chunks_exact(area).take(announced);
    let areas = areas.filter_map(|bytes| SparseArea::ref_from_bytes(bytes).ok());
    let areas: Vec<Fields> = areas
        .map(|area| {
            let mut fields = Fields::default();
            let (offset, size) = (area.offset.get(), area.size.get());
            fields.show("offset", offset, format!("{offset:#x}+{}", Size(size)));
            fields.hide("size", size);
            fields
        })
        .collect();
    fields.show(
        "areas",
        count,
        if count == 0 {
            "mappable nowhere"
        } else {
            "mappable"
        },
    );
    fields.list("mappable", areas);
    if announced > most {
        fields.malformed(&format!("{most} of {count} areas"));
    }
}

/// Kinds of sub-regions (libvfio-user, `VFIO_USER_IO_FD_TYPE_*`).
const KINDS: [&str; 3] = ["ioeventfd", "ioregionfd", "shadow ioeventfd"];

/// Decodes the reply to DEVICE_GET_REGION_IO_FDS.
pub(super) fn io_fds(payload: &Payload<'_>, fields: &mut Fields) {
    payload.structure::<RegionIoFds>(fields, |info, rest, fields| {
        let count = info.count.get();
        fields.hide("region", region_name(info.index.get()));
        fields.show("count", count, format!("{count} sub-regions"));
        let announced = usize::try_from(count).unwrap_or(usize::MAX);
        let each = rest.chunks_exact(size_of::<SubRegion>()).take(announced);
        let each = each.filter_map(|bytes| SubRegion::ref_from_bytes(bytes).ok());
        fields.list("sub-regions", each.map(sub_region).collect());
        let expected = u64::from(count).checked_mul(size_of::<SubRegion>() as u64);
        payload.expect(size_of::<RegionIoFds>(), expected, fields);
    });
}

fn sub_region(one: &SubRegion) -> Fields {
    let mut fields = Fields::default();
    let (offset, size, kind) = (one.offset.get(), one.size.get(), one.kind.get());
    let name = super::names::name(&KINDS, kind).unwrap_or_else(|| format!("type {kind}"));
    fields.show("offset", offset, format!("{offset:#x}+{}", Size(size)));
    fields.hide("size", size);
    fields.show("type", name.as_str(), name.as_str());
    let index = |index: &U32| format!("fd {index}");
    fields.show("fd_index", one.fd_index.get(), index(&one.fd_index));
    fields.hide("flags", one.flags.get());
    fields.hide("data", one.data.get());
    fields
}
