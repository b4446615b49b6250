//! Transfers between the adapters of two guests, one at a time, compared with memcpy.

use std::path::Path;

use anyhow::{Context, anyhow};
use peerbar_lab::exit::Failure;
use peerbar_lab::scenario::GuestGroup;
use peerbar_report::{Check, Rdma, RdmaMemory, Verdict};

use super::load::PayloadMemory;
use super::rig::{CopyLimit, ensure_passed};
use super::{LARGE, MEMCPY};
use crate::figure::Figure;
use crate::jobs::exact;
use crate::suite::GuestContext;

/// A GPU and an adapter below a switch, in each of two guests.
const SCENARIO: &str = r#"
name = "bench-rdma-guests"
timeout = "4m"
tools = true
guest = [{ name = "left" }, { name = "right" }]
switch = [{ guest = "left", name = "switch0" }, { guest = "right", name = "switch1" }]
gpu = [
    { guest = "left", name = "gpu0", below = "switch0", vram = "16M" },
    { guest = "right", name = "gpu1", below = "switch1", vram = "16M" },
]
nic = [
    { guest = "left", name = "nic0", below = "switch0" },
    { guest = "right", name = "nic1", below = "switch1" },
]
"#;

/// Transfers of each round. Each is two writes and a read.
const TRANSFERS: usize = 8;

fn name(memory: PayloadMemory) -> String {
    format!("rdma/1M/two-guests/{}/over-memcpy", memory.word())
}

/// Returns the names of its figures.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = String> {
    PayloadMemory::ALL.into_iter().map(name)
}

/// Measures, and adds figures to the report.
pub(super) fn measure(context: &mut GuestContext<'_>) -> Result<(), Failure> {
    let wanted = PayloadMemory::ALL.into_iter();
    let wanted: Vec<PayloadMemory> = wanted
        .filter(|memory| context.wants(&name(*memory)))
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let (rounds, _) = super::rounds(context);
    let group = GuestGroup::parse_interactive(Path::new("bench-rdma-guests.toml"), SCENARIO)?;
    let group = group.context("the scenario has no guests")?;
    let first = group.guests.first().context("the scenario has no guest")?;
    context.note_versions(&first.scenario.clone())?;
    let mut limit = CopyLimit::new(LARGE)?;
    context.stage("rdma: two guests boot")?;
    let mut guests = context.lab_options().start_group(group, &mut |_| {})?;
    let mut measured: Vec<Vec<(f64, f64)>> = wanted.iter().map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        for (memory, pairs) in wanted.iter().zip(&mut measured) {
            let name = name(*memory);
            context.stage(&name)?;
            let row = guests.check(&name, &check(*memory))?;
            if let Some(failure) = guests.failure() {
                return Err(anyhow!("{name}: {failure}").into());
            }
            if row.verdict != Verdict::Pass {
                return Err(anyhow!("{name} did not work: {}", row.diagnostics.join("\n")).into());
            }
            let rate = exact(row.measure.bytes) / row.measure.seconds;
            let pair = (mib(rate), mib(limit.measure()?.rate));
            pairs.extend((round > 0).then_some(pair));
        }
    }
    let ended = guests.conclude(|_, _| Ok(None))?;
    ended.seal()?;
    ensure_passed(ended.is_passed(), &ended.verdict)?;
    for (memory, pairs) in wanted.iter().zip(&measured) {
        let figure = Figure::of_rounds(name(*memory), "MiB/s", true, MEMCPY, pairs);
        context.report.figures.push(figure);
    }
    Ok(())
}

fn check(memory: PayloadMemory) -> Check {
    let memory_of = |gpu: &str| match memory {
        PayloadMemory::Vram => RdmaMemory::Vram(gpu.to_owned()),
        PayloadMemory::GuestRam => RdmaMemory::GuestRam,
    };
    Check::Rdma(Rdma {
        nic: "nic0".to_owned(),
        peer: "nic1".to_owned(),
        from: memory_of("gpu0"),
        to: memory_of("gpu1"),
        sizes: vec![u64::from(LARGE); TRANSFERS],
        seconds: None,
    })
}

fn mib(rate: f64) -> f64 {
    rate / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_of_both_guests_can_be_read() {
        let group = GuestGroup::parse_interactive(Path::new("x.toml"), SCENARIO).unwrap();
        assert_eq!(group.unwrap().guests.len(), 2);
    }
}
