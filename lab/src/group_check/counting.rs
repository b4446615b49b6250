//! The counters of all devices about a check across guests.

use std::collections::BTreeMap;

use peerbar_dma_log::{Completer, DmaKind, Purpose};
use peerbar_report::{DeviceCounters, Measure, PayloadFlow};

/// The counters of devices by their names.
pub(super) type CountersByName = BTreeMap<String, DeviceCounters>;

/// The counters of all devices at a moment.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) counters: CountersByName,
    /// Bytes of each device's DMA for which the owner of the memory is inferred.
    pub(super) inferred: BTreeMap<String, u64>,
}

/// Adds up the DMA of all devices except the `uncounted` ones between two readings of their
/// counters.
pub(super) fn count(
    measure: &mut Measure,
    uncounted: &[&str],
    before: &CountersByName,
    after: &CountersByName,
) -> Result<(), String> {
    let judged = |name: &&String| !uncounted.contains(&name.as_str());
    if let Some(gone) = before
        .keys()
        .filter(judged)
        .find(|name| !after.contains_key(*name))
    {
        return Err(format!("{gone} has no counters any more"));
    }
    for (name, after) in after.iter().filter(|(name, _)| judged(name)) {
        let after = counted(name, after)?;
        let before = before
            .get(name)
            .ok_or_else(|| format!("{name} had no counters before"))?;
        let before = counted(name, before)?;
        for (kind, (bytes, failures)) in after {
            let (earlier, earlier_failures) = before.get(&kind).copied().unwrap_or_default();
            let growth = bytes
                .checked_sub(earlier)
                .zip(failures.checked_sub(earlier_failures));
            let (bytes, failures) =
                growth.ok_or_else(|| format!("a DMA counter of {name} went back"))?;
            measure.failures = measure.failures.saturating_add(failures);
            if kind.purpose == Purpose::Payload && bytes > 0 {
                add(measure, name, kind, bytes);
            }
        }
    }
    Ok(())
}

/// Adds payload of the device `requester`.
fn add(measure: &mut Measure, requester: &str, kind: DmaKind, bytes: u64) {
    let of_route = measure.routes.entry(kind.route).or_default();
    *of_route = of_route.saturating_add(bytes);
    match kind.completer {
        Completer::OwnMemory | Completer::PeerBar => {
            measure.peer_bytes = measure.peer_bytes.saturating_add(bytes);
        }
        Completer::GuestRam => measure.ram_bytes = measure.ram_bytes.saturating_add(bytes),
        Completer::Unknown | Completer::None => {}
    }
    measure.flows.push(PayloadFlow {
        requester: requester.to_owned(),
        completer: kind.completer,
        route: kind.route,
        direction: kind.direction,
        bytes,
    });
}

/// Returns bytes and failures of a device by kind. A device without counters cannot be judged.
fn counted(name: &str, counters: &DeviceCounters) -> Result<BTreeMap<DmaKind, (u64, u64)>, String> {
    let entries = match counters {
        DeviceCounters::Counted { dma, .. } => dma,
        DeviceCounters::None(reason) => {
            return Err(format!("{name} has no DMA counters: {reason}"));
        }
    };
    let mut kinds: BTreeMap<DmaKind, (u64, u64)> = BTreeMap::new();
    for entry in entries {
        let (bytes, failures) = kinds.entry(entry.kind()).or_default();
        *bytes = bytes.saturating_add(entry.bytes);
        *failures = failures.saturating_add(entry.failures);
    }
    Ok(kinds)
}
