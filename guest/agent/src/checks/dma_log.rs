//! The counters that a device shows the guest, compared with those that the host reads.

use std::fs::File;

use anyhow::{Context, bail, ensure};
use peerbar_dma_log::{Entry, MAX_SIZE, parse};
use peerbar_nvme_spec::dma_log::LID;
use peerbar_report::{DeviceCounters, DmaLog, Measure};

use super::{CheckOutcome, Run};
use crate::devices::Controller;
use crate::disk;
use crate::guest_context::GuestContext;
use crate::passthrough::get_log_page;
use crate::registers::Registers;

/// Bytes that the device moves first, so that its counters are not 0.
const LENGTH: usize = 4096;

impl Run for DmaLog {
    fn run(&self, guest: &GuestContext, _measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let name = &self.device;
        let show: Box<dyn Fn() -> anyhow::Result<Vec<u8>>> = match guest.gpu(name) {
            Ok(gpu) => {
                let opened = gpu.open()?;
                let length = LENGTH as u64;
                let (vram, host) = (opened.allocate(length)?, opened.allocate_host(length)?);
                opened.copy(vram.span(..length)?, host.span(..length)?)?;
                Box::new(|| Registers::map(&gpu.pci)?.dma_log())
            }
            Err(_) => {
                let controller = guest.controller(name)?;
                disk::read(&controller.disk.open_direct()?, 0, LENGTH)?;
                Box::new(|| log_page(controller))
            }
        };
        let before = on_the_host(guest, name)?;
        let shown = parse(&show().with_context(|| format!("{name} shows no DMA counters"))?)?;
        let after = on_the_host(guest, name)?;
        judge(&before, &shown, &after).with_context(|| format!("the DMA counters of {name}"))?;
        Ok(CheckOutcome::Passed)
    }
}

fn log_page(controller: &Controller) -> anyhow::Result<Vec<u8>> {
    let node = File::open(&controller.node).context("cannot open its character device")?;
    get_log_page(&node, LID, u32::try_from(MAX_SIZE)?)
}

fn on_the_host(guest: &GuestContext, name: &str) -> anyhow::Result<Vec<Entry>> {
    match guest.launcher.counters()?.remove(name) {
        Some(DeviceCounters::Counted { dma, .. }) => Ok(dma),
        Some(DeviceCounters::None(reason)) => bail!("{name} has no DMA counters: {reason}"),
        None => bail!("the launcher sends no DMA counters of {name}"),
    }
}

/// Checks that the shown counters lie between the host's counters before and after. An NVMe
/// controller needs some DMA to show its counters. None of that is payload, so the payload must be
/// equal.
fn judge(before: &[Entry], shown: &[Entry], after: &[Entry]) -> anyhow::Result<()> {
    ensure!(!shown.is_empty(), "the guest sees none");
    for entry in before {
        let found =
            find(shown, entry).with_context(|| format!("the guest does not see {entry:?}"))?;
        ensure!(
            none_is_more(entry, found),
            "the guest sees {found:?}, less than {entry:?} before on the host"
        );
    }
    for entry in shown {
        let found = find(after, entry)
            .with_context(|| format!("the guest sees {entry:?}, the host does not"))?;
        ensure!(
            none_is_more(entry, found),
            "the guest sees {entry:?}, more than {found:?} afterwards on the host"
        );
    }
    Ok(())
}

fn find<'a>(entries: &'a [Entry], entry: &Entry) -> Option<&'a Entry> {
    entries.iter().find(|other| other.kind() == entry.kind())
}

fn none_is_more(entry: &Entry, than: &Entry) -> bool {
    entry.requests <= than.requests && entry.bytes <= than.bytes && entry.failures <= than.failures
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Completer, Direction, Purpose, Route};

    use super::*;

    fn entry(purpose: Purpose, bytes: u64) -> Entry {
        Entry {
            purpose,
            route: Route::GuestRam,
            completer: Completer::GuestRam,
            direction: Direction::Read,
            requests: 1,
            bytes,
            failures: 0,
        }
    }

    #[test]
    fn counters_between_those_of_the_host_pass_only() {
        let payload = entry(Purpose::Payload, 4096);
        let (early, late) = (entry(Purpose::Command, 64), entry(Purpose::Command, 128));
        assert!(judge(&[payload], &[payload], &[payload]).is_ok());
        assert!(judge(&[payload, early], &[payload, late], &[payload, late]).is_ok());
        assert!(judge(&[payload], &[payload, early], &[payload, late]).is_ok());
        assert!(judge(&[payload, late], &[payload, early], &[payload, late]).is_err());
        assert!(judge(&[payload], &[payload, late], &[payload, early]).is_err());
        assert!(judge(&[payload], &[early], &[payload, early]).is_err());
        assert!(judge(&[payload], &[payload, early], &[payload]).is_err());
        assert!(judge(&[], &[], &[]).is_err());
    }
}
