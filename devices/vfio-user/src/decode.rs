//! Messages in the protocol's and PCI's terms, for people and programs.
//!
//! The functions accept any bytes. A message that is shorter than its command requires is decoded
//! as far as it goes, and has the field `malformed`.

mod config;
mod feature;
mod field;
mod names;
mod payload;
mod region_info;
mod version_data;

pub use field::{Field, Fields, printable};
pub use names::{COMMANDS, command_name, error_name};
pub use payload::Payload;

use peerbar_host::Size;
use serde_json::{Value, json};
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use crate::wire::{self, command};
use names::{
    device_flags, dma_flags, irq_flags, irq_name, region_name, set_irqs_flags, unmap_flags,
};
use payload::MOST_SHOWN;
use version_data::version_data;

/// Decodes a request.
pub fn request(command: u16, payload: &Payload<'_>) -> Fields {
    let mut fields = Fields::default();
    match command {
        command::VERSION => version(payload, &mut fields),
        command::DMA_MAP => dma_map(payload, &mut fields),
        command::DMA_UNMAP => dma_unmap(payload, &mut fields),
        command::DEVICE_GET_INFO => {
            payload.fixed::<wire::DeviceInfo>(&mut fields, |info, fields| {
                argsz(info.argsz.get(), wire::DeviceInfo::SIZE, fields);
            })
        }
        command::DEVICE_GET_REGION_INFO => {
            payload.fixed::<wire::RegionInfo>(&mut fields, |info, fields| {
                region(info.index.get(), fields);
                argsz(info.argsz.get(), wire::RegionInfo::SIZE, fields);
            });
        }
        command::DEVICE_GET_REGION_IO_FDS => {
            payload.fixed::<wire::RegionIoFds>(&mut fields, |info, fields| {
                region(info.index.get(), fields);
                argsz(info.argsz.get(), 0, fields);
            });
        }
        command::DEVICE_GET_IRQ_INFO => {
            payload.fixed::<wire::IrqInfo>(&mut fields, |info, fields| {
                irq(info.index.get(), fields);
                argsz(info.argsz.get(), wire::IrqInfo::SIZE, fields);
            })
        }
        command::DEVICE_SET_IRQS => set_irqs(payload, &mut fields),
        command::REGION_READ => region_access(payload, false, &mut fields),
        command::REGION_WRITE => region_access(payload, true, &mut fields),
        command::REGION_WRITE_MULTI => write_multi(payload, &mut fields),
        command::DMA_READ => dma_access(payload, false, &mut fields),
        command::DMA_WRITE => dma_access(payload, true, &mut fields),
        command::DEVICE_RESET => payload.empty(&mut fields),
        command::DEVICE_FEATURE => feature::decode(payload, &mut fields),
        command::MIG_DATA_READ => migration_data(payload, false, &mut fields),
        command::MIG_DATA_WRITE => migration_data(payload, true, &mut fields),
        _ => payload.opaque(&mut fields),
    }
    fields
}

/// Decodes a reply that is no error.
pub fn reply(command: u16, payload: &Payload<'_>) -> Fields {
    let mut fields = Fields::default();
    match command {
        command::VERSION => version(payload, &mut fields),
        command::DMA_MAP
        | command::DEVICE_SET_IRQS
        | command::DEVICE_RESET
        | command::MIG_DATA_WRITE => payload.empty(&mut fields),
        // The specification wants the request's structure, which says nothing new.
        command::DMA_UNMAP if payload.length == 0 => {}
        command::DMA_UNMAP => payload.structure::<wire::DmaUnmap>(&mut fields, |_, _, _| {}),
        command::DEVICE_GET_INFO => device_info(payload, &mut fields),
        command::DEVICE_GET_REGION_INFO => region_info::decode(payload, &mut fields),
        command::DEVICE_GET_REGION_IO_FDS => region_info::io_fds(payload, &mut fields),
        command::DEVICE_GET_IRQ_INFO => irq_info(payload, &mut fields),
        command::REGION_READ => region_data(payload, &mut fields),
        command::REGION_WRITE => accessed::<wire::RegionAccess>(payload, &mut fields),
        command::REGION_WRITE_MULTI => payload.fixed::<U64>(&mut fields, |count, fields| {
            let text = format!("{count} written");
            fields.show("count", count.get(), text);
        }),
        command::DMA_READ => dma_data(payload, &mut fields),
        // QEMU sends a header only. The specification's count has 32 bits here, and 64 elsewhere.
        command::DMA_WRITE if [0, 12].contains(&payload.length) => {}
        command::DMA_WRITE => accessed::<wire::DmaAccess>(payload, &mut fields),
        command::DEVICE_FEATURE => feature::decode(payload, &mut fields),
        command::MIG_DATA_READ => migration_data(payload, true, &mut fields),
        _ => payload.opaque(&mut fields),
    }
    fields
}

/// The most characters of VERSION's data that are shown if it is not JSON.
const MOST_TEXT: usize = 200;

fn version(payload: &Payload<'_>, fields: &mut Fields) {
    payload.structure::<wire::Version>(fields, |version, data, fields| {
        let number = format!("{}.{}", version.major, version.minor);
        fields.show("version", number.as_str(), number.as_str());
        let text = data.split(|byte| *byte == 0).next().unwrap_or_default();
        if text.is_empty() {
            return;
        }
        match serde_json::from_slice::<Value>(text) {
            Ok(json) => version_data(json, fields),
            Err(_) => {
                let text = String::from_utf8_lossy(text);
                let text: String = text.chars().take(MOST_TEXT).collect();
                fields.show("data", text.as_str(), format!("invalid JSON {text:?}"));
            }
        }
    });
}

/// Adds argsz, which is shown only if it is not the usual one.
fn argsz(argsz: u32, usual: u32, fields: &mut Fields) {
    match argsz == usual {
        true => fields.hide("argsz", argsz),
        false => fields.show("argsz", argsz, format!("argsz {argsz}")),
    }
}

fn region(index: u32, fields: &mut Fields) {
    fields.hide("index", index);
    let name = region_name(index);
    fields.show("region", name.as_str(), name.as_str());
}

fn irq(index: u32, fields: &mut Fields) {
    fields.hide("index", index);
    let name = irq_name(index);
    fields.show("irq", name.as_str(), name.as_str());
}

/// Adds a range of addresses, as `0x1000+4K`.
fn range(address: u64, size: u64, fields: &mut Fields) {
    let text = format!("{address:#x}+{}", Size(size));
    fields.show("address", address, text);
    fields.hide("size", size);
}

fn dma_map(payload: &Payload<'_>, fields: &mut Fields) {
    payload.fixed::<wire::DmaMap>(fields, |map, fields| {
        range(map.iova.get(), map.size.get(), fields);
        dma_flags(map.flags.get()).add("prot", fields);
        let offset = map.offset.get();
        fields.show("offset", offset, format!("offset {offset:#x}"));
    });
}

fn dma_unmap(payload: &Payload<'_>, fields: &mut Fields) {
    payload.structure::<wire::DmaUnmap>(fields, |unmap, _, fields| {
        range(unmap.iova.get(), unmap.size.get(), fields);
        unmap_flags(unmap.flags.get()).add_if_set("flags", fields);
    });
}

fn device_info(payload: &Payload<'_>, fields: &mut Fields) {
    payload.fixed::<wire::DeviceInfo>(fields, |info, fields| {
        let (regions, irqs) = (info.regions.get(), info.irqs.get());
        fields.show("regions", regions, format!("{regions} regions"));
        fields.show("irqs", irqs, format!("{irqs} irqs"));
        device_flags(info.flags.get()).add("flags", fields);
    });
}

fn irq_info(payload: &Payload<'_>, fields: &mut Fields) {
    payload.fixed::<wire::IrqInfo>(fields, |info, fields| {
        let count = info.count.get();
        fields.hide("irq", irq_name(info.index.get()));
        let noun = if count == 1 { "vector" } else { "vectors" };
        fields.show("count", count, format!("{count} {noun}"));
        irq_flags(info.flags.get()).add("flags", fields);
    });
}

fn set_irqs(payload: &Payload<'_>, fields: &mut Fields) {
    payload.structure::<wire::SetIrqs>(fields, |set, data, fields| {
        irq(set.index.get(), fields);
        let (start, count) = (set.start.get(), set.count.get());
        let vectors = match count {
            0 => "no vector".to_owned(),
            1 => format!("vector {start}"),
            _ => format!(
                "vectors {start}-{}",
                u64::from(start) + u64::from(count) - 1
            ),
        };
        fields.show("start", start, vectors);
        fields.hide("count", count);
        set_irqs_flags(set.flags.get()).add("flags", fields);
        if set.flags.get() & wire::set_irqs::DATA_BOOL != 0 {
            let shown = data.get(..MOST_SHOWN * 4).unwrap_or(data);
            let each: Vec<String> = shown.iter().map(u8::to_string).collect();
            let more = if shown.len() < data.len() { ",…" } else { "" };
            fields.show("data", data, format!("[{}{more}]", each.join(",")));
        }
    });
}

/// Adds the place of an access to a region, as `BAR0+0x1000`.
fn place(access: &wire::RegionAccess, fields: &mut Fields) {
    let (index, offset) = (access.region.get(), access.offset.get());
    let name = region_name(index);
    fields.hide("index", index);
    fields.show("region", name.as_str(), format!("{name}+{offset:#x}"));
    fields.hide("offset", offset);
    let registers = config::registers(access);
    if !registers.is_empty() {
        fields.show("registers", json!(registers), registers.join(","));
    }
}

/// Adds the number of bytes of an access.
fn bytes(count: u64, fields: &mut Fields) {
    let noun = if count == 1 { "byte" } else { "bytes" };
    fields.show("count", count, format!("{count} {noun}"));
}

fn region_access(payload: &Payload<'_>, has_data: bool, fields: &mut Fields) {
    payload.structure::<wire::RegionAccess>(fields, |access, _, fields| {
        place(access, fields);
        bytes(access.count.get().into(), fields);
        let at = size_of::<wire::RegionAccess>();
        if has_data {
            payload.data(at, access.count.get().into(), fields);
            config::add_bits(access, payload.start, fields);
        } else {
            payload.no_more(at, fields);
        }
    });
}

/// Decodes the reply to a read of a region. The region is in the request, too, so it is not shown.
fn region_data(payload: &Payload<'_>, fields: &mut Fields) {
    payload.structure::<wire::RegionAccess>(fields, |access, _, fields| {
        fields.hide("region", region_name(access.region.get()));
        fields.hide("offset", access.offset.get());
        fields.hide("count", access.count.get());
        payload.data(
            size_of::<wire::RegionAccess>(),
            access.count.get().into(),
            fields,
        );
        config::add_bits(access, payload.start, fields);
    });
}

/// Decodes the reply to a write, which repeats the access without its data.
fn accessed<T>(payload: &Payload<'_>, fields: &mut Fields)
where
    T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned,
{
    payload.fixed::<T>(fields, |_, _| {});
}

fn dma_access(payload: &Payload<'_>, has_data: bool, fields: &mut Fields) {
    payload.structure::<wire::DmaAccess>(fields, |access, _, fields| {
        let address = access.address.get();
        fields.show("address", address, format!("{address:#x}"));
        bytes(access.count.get(), fields);
        let at = size_of::<wire::DmaAccess>();
        if has_data {
            payload.data(at, access.count.get(), fields);
        } else {
            payload.no_more(at, fields);
        }
    });
}

fn dma_data(payload: &Payload<'_>, fields: &mut Fields) {
    payload.structure::<wire::DmaAccess>(fields, |access, _, fields| {
        fields.hide("address", access.address.get());
        fields.hide("count", access.count.get());
        payload.data(size_of::<wire::DmaAccess>(), access.count.get(), fields);
    });
}

fn write_multi(payload: &Payload<'_>, fields: &mut Fields) {
    payload.structure::<U64>(fields, |count, rest, fields| {
        let (writes, _) = <[wire::RegionWrite]>::ref_from_prefix(rest).unwrap_or((&[], rest));
        fields.show("count", count.get(), format!("{count} writes"));
        let each = writes.iter().map(|one| {
            let mut fields = Fields::default();
            place(&one.access, &mut fields);
            bytes(one.access.count.get().into(), &mut fields);
            let data = usize::try_from(one.access.count.get()).ok();
            let data = data.and_then(|count| one.data.get(..count));
            payload::number(data.unwrap_or(&one.data), &mut fields);
            fields
        });
        fields.list("writes", each.collect());
        let expected = count
            .get()
            .checked_mul(size_of::<wire::RegionWrite>() as u64);
        payload.expect(8, expected, fields);
    });
}

fn migration_data(payload: &Payload<'_>, has_data: bool, fields: &mut Fields) {
    payload.structure::<wire::MigrationData>(fields, |data, _, fields| {
        bytes(data.size.get().into(), fields);
        fields.hide("argsz", data.argsz.get());
        let at = size_of::<wire::MigrationData>();
        if has_data {
            payload.data(at, data.size.get().into(), fields);
        } else {
            payload.no_more(at, fields);
        }
    });
}

#[cfg(test)]
mod tests;
