//! DEVICE_FEATURE, which is about migration.

use peerbar_host::Size;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

use super::field::Fields;
use super::names::{Flags, name};
use super::payload::Payload;
use crate::wire::DeviceFeature;
use crate::wire::device_feature::{
    DMA_LOGGING_REPORT, DMA_LOGGING_START, DMA_LOGGING_STOP, GET, INDEX, MIG_DEVICE_STATE,
    MIGRATION, PROBE, SET,
};

/// The features (vfio-user, Device Features).
const FEATURES: [(u32, &str); 5] = [
    (MIGRATION, "MIGRATION"),
    (MIG_DEVICE_STATE, "MIG_DEVICE_STATE"),
    (DMA_LOGGING_START, "DMA_LOGGING_START"),
    (DMA_LOGGING_STOP, "DMA_LOGGING_STOP"),
    (DMA_LOGGING_REPORT, "DMA_LOGGING_REPORT"),
];

/// The states of a migration (vfio-user, MIG_DEVICE_STATE).
const STATES: [&str; 8] = [
    "ERROR",
    "STOP",
    "RUNNING",
    "STOP_COPY",
    "RESUMING",
    "RUNNING_P2P",
    "PRE_COPY",
    "PRE_COPY_P2P",
];

/// Decodes a request, or its reply, which has the same form.
pub(super) fn decode(payload: &Payload<'_>, fields: &mut Fields) {
    payload.structure::<DeviceFeature>(fields, |feature, data, fields| {
        let flags = feature.flags.get();
        let index = flags & INDEX;
        let methods = [(GET, "GET"), (SET, "SET"), (PROBE, "PROBE")];
        Flags::of(flags & !INDEX, &methods).add("method", fields);
        let known = FEATURES.iter().find(|(known, _)| *known == index);
        let name = known.map_or_else(
            || format!("feature {index}"),
            |(_, name)| (*name).to_owned(),
        );
        fields.show("feature", name.as_str(), name.as_str());
        fields.hide("argsz", feature.argsz.get());
        add_data(index, data, fields);
    });
}

fn add_data(index: u32, data: &[u8], fields: &mut Fields) {
    match index {
        MIGRATION => {
            if let Ok((flags, _)) = U32::ref_from_prefix(data) {
                let known = [(1, "STOP_COPY"), (2, "P2P"), (4, "PRE_COPY")];
                Flags::of(flags.get(), &known).add("states", fields);
            }
        }
        MIG_DEVICE_STATE => {
            if let Ok((state, _)) = U32::ref_from_prefix(data) {
                let text = name(&STATES, state.get()).unwrap_or_else(|| format!("state {state}"));
                fields.show("state", text.as_str(), text.as_str());
            }
        }
        DMA_LOGGING_START => {
            if let Ok((page, _)) = U64::ref_from_prefix(data) {
                fields.show(
                    "page_size",
                    page.get(),
                    format!("pages of {}", Size(page.get())),
                );
            }
        }
        DMA_LOGGING_REPORT => {
            if let Ok(([iova, length, page], _)) = <[U64; 3]>::ref_from_prefix(data) {
                let text = format!("{iova:#x}+{}", Size(length.get()));
                fields.show("address", iova.get(), text);
                fields.hide("size", length.get());
                fields.show(
                    "page_size",
                    page.get(),
                    format!("pages of {}", Size(page.get())),
                );
            }
        }
        _ => {}
    }
}
