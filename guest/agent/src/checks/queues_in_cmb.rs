//! The I/O submission queues lie in the CMB.

use super::{CheckOutcome, Run};
use anyhow::{Context, ensure};
use peerbar_report::{Measure, QueuesInCmb};

use crate::counters::{Traffic, TrafficWatch};
use crate::guest_context::GuestContext;
use crate::mapped_buffer::MappedBuffer;

/// Number of reads, one command each.
const COMMANDS: u64 = 64;

/// Bytes of one read: a page, so that no driver has a reason to split it.
const LENGTH: usize = 4096;

impl Run for QueuesInCmb {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let device = &self.device;
        let controller = guest.with_cmb(device)?;
        let disk = controller.disk.open_direct()?;
        let mut memory =
            MappedBuffer::guest_ram(LENGTH).context("cannot get memory to read into")?;
        let mut watch = TrafficWatch::new(guest);
        watch.watch(|| (0..COMMANDS).try_for_each(|_| memory.read_from(&disk, 0, LENGTH)))?;
        measure.bytes = COMMANDS.saturating_mul(LENGTH as u64);
        watch.write_to(measure);
        judge(watch.traffic()?, controller.number).with_context(|| {
            format!(
                "the I/O queues of {device} are not in its CMB ({})",
                controller.cmb_registers()
            )
        })?;
        Ok(CheckOutcome::Passed)
    }
}

/// Judges the commands. The admin queue always lies in guest RAM, and nothing uses it during the
/// check.
fn judge(traffic: &Traffic, device: u32) -> anyhow::Result<()> {
    let own = traffic.commands_from_own_memory(device);
    let ram = traffic.commands_from_guest_ram(device);
    ensure!(
        own >= COMMANDS && ram == 0,
        "of {COMMANDS} I/O commands {own} were fetched from the CMB, and {ram} commands from guest RAM where none was \
         expected; look at SQS of CMBSZ and at the parameter use_cmb_sqes of the nvme module"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Completer, Direction, DmaKind, Purpose, Route};

    use super::*;

    fn fetched(own: u64, ram: u64) -> Traffic {
        let kind = |completer, route| DmaKind {
            purpose: Purpose::Command,
            completer,
            route,
            direction: Direction::Read,
        };
        let mut traffic = Traffic::default();
        let from_own = kind(Completer::OwnMemory, Route::OwnBar);
        traffic.count(0, from_own, 64 * own, 0);
        let from_ram = kind(Completer::GuestRam, Route::GuestRam);
        traffic.count(0, from_ram, 64 * ram, 0);
        traffic
    }

    #[test]
    fn queues_in_guest_ram_are_noticed() {
        assert!(judge(&fetched(COMMANDS, 0), 0).is_ok());
        let error = judge(&fetched(0, COMMANDS + 1), 0).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "of 64 I/O commands 0 were fetched from the CMB, and 65 commands from guest RAM"
            ),
            "{error}"
        );
        assert!(judge(&fetched(COMMANDS, 1), 0).is_err());
        assert!(judge(&fetched(COMMANDS, COMMANDS), 0).is_err());
        assert!(judge(&fetched(COMMANDS, 1), 1).is_err());
    }
}
