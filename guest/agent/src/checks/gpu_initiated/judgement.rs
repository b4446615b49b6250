//! The required counters of disk and GPU, which show that the GPU has done all of the work and the
//! guest's processors none.

use std::collections::BTreeMap;

use anyhow::{bail, ensure};
use peerbar_report::QueueAddresses;

use super::initiator::{BYTES, QUEUE, READS};
use crate::counters::Traffic;
use crate::user_gpu::GpuFault;

/// Bytes of a doorbell.
const DOORBELL_BYTES: u64 = 4;

/// The devices, by their numbers in the counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Devices {
    pub(super) disk: u32,
    pub(super) gpu: u32,
    /// The disk's server counts its interrupts.
    pub(super) counts_interrupts: bool,
}

/// The work that the GPU reports, for all of its queues together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Done {
    /// Number of launches, of 1000 reads each.
    pub(super) launches: u64,
    /// Doorbells written for each queue, from queue 2 on.
    pub(super) doorbells: Vec<u64>,
}

impl Done {
    pub(super) fn reads(&self) -> u64 {
        self.launches.saturating_mul(READS.into())
    }

    pub(super) fn doorbells(&self) -> u64 {
        self.doorbells.iter().sum()
    }
}

/// Judges the devices' counts during the GPU's reads. Returns, in words, the processors' part.
pub(super) fn judge(
    traffic: &Traffic,
    devices: Devices,
    addresses: QueueAddresses,
    done: &Done,
) -> anyhow::Result<String> {
    let Devices { disk, gpu, .. } = devices;
    let failures = traffic.failures();
    ensure!(
        failures == 0,
        "{failures} DMA requests of the devices failed"
    );
    let of_entries = match traffic.measures(disk) {
        true => entries_and_data(traffic, disk, done).map(|()| "no entry")?,
        false => "the disk's DMA is not counted",
    };
    let (written, doorbells) = (traffic.registers_written(gpu), done.doorbells());
    ensure!(
        written == doorbells * DOORBELL_BYTES && doorbells > 0,
        "the GPU's counters show {written} bytes that it wrote to registers of other devices, and it says that it wrote {doorbells} doorbells"
    );
    let interrupts = traffic.interrupts(disk);
    ensure!(
        interrupts == 0,
        "the disk raised {interrupts} interrupts, where the GPU polls"
    );
    let by_client = traffic.doorbells(disk);
    let of_doorbells = match &by_client {
        None => "the disk cannot count the processors' doorbells, which may map them",
        Some(by_client) => {
            doorbells_of_processors(by_client, addresses, done)?;
            "no doorbell of a processor"
        }
    };
    if addresses == QueueAddresses::Bus {
        stays_below(traffic)?;
    }
    let of_disk = match devices.counts_interrupts {
        true => "no interrupt of the disk",
        false => "the disk's interrupts are not counted",
    };
    let of_gpu = traffic.interrupts(gpu);
    let inference = traffic.inference(disk);
    let inference = inference.map(|inference| format!("; {inference}"));
    Ok(format!(
        "{of_entries} and {of_doorbells}, {of_disk}, {of_gpu} of the GPU for {} reads{}",
        done.reads(),
        inference.unwrap_or_default()
    ))
}

/// Checks that all commands came out of the GPU's memory, and all data went there.
fn entries_and_data(traffic: &Traffic, disk: u32, done: &Done) -> anyhow::Result<()> {
    let reads = done.reads();
    let bytes = done.launches.saturating_mul(BYTES);
    let of_disk = (
        traffic.commands_from_peers(disk),
        traffic.commands_from_guest_ram(disk),
        traffic.payload_to_devices(disk),
        traffic.payload_to_guest_ram(disk),
    );
    ensure!(
        of_disk == (reads, 0, bytes, 0),
        "the disk's counters show {of_disk:?}: commands out of a peer's memory and out of guest RAM, bytes to peers and to \
         guest RAM; {reads} commands and {bytes} bytes should have been of the GPU's memory"
    );
    Ok(())
}

/// Returns the doorbells of the guest's processors. QEMU passes the GPU's doorbells on through the
/// root, so the processors have written the rest.
fn doorbells_of_processors(
    by_client: &BTreeMap<u16, u64>,
    addresses: QueueAddresses,
    done: &Done,
) -> anyhow::Result<()> {
    let through_root = match addresses {
        QueueAddresses::Io => (QUEUE..).zip(done.doorbells.iter().copied()).collect(),
        QueueAddresses::Bus => BTreeMap::new(),
    };
    ensure!(
        *by_client == through_root,
        "the disk's counters show doorbells by way of QEMU, by queue: {by_client:?}; those of the GPU through the root are \
         {through_root:?}, and the guest's processors should have written none"
    );
    Ok(())
}

/// Checks that nothing went up to the root: neither data nor queue entries nor doorbells.
fn stays_below(traffic: &Traffic) -> anyhow::Result<()> {
    let upstream = traffic.upstream_bytes();
    ensure!(
        upstream == 0,
        "{upstream} bytes went by way of the root, where bus addresses below one switch lead from device to device"
    );
    Ok(())
}

/// Checks that the launch has ended with this fault, after the GPU's rule has injected its own.
pub(super) fn ends_with<T>(code: u8, read: anyhow::Result<T>, injected: u64) -> anyhow::Result<()> {
    match read {
        Ok(_) => bail!("the GPU's launch ended well instead of with fault {code}"),
        Err(error) if error.downcast_ref() == Some(&GpuFault(code)) => {}
        Err(error) => return Err(error.context(format!("expected fault {code}"))),
    }
    ensure!(
        injected > 0,
        "the GPU's launch ends with fault {code}, and no rule has injected a fault before: it has another cause"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Completer, DeviceEvents, Direction, DmaKind, Purpose, Route};

    use super::*;

    const DISK: u32 = 0;
    const GPU: u32 = 1;
    const COMMAND_BYTES: u64 = 64;
    const LAUNCHES: u64 = 3;

    fn kind(purpose: Purpose, completer: Completer) -> DmaKind {
        DmaKind {
            purpose,
            completer,
            route: Route::Peer,
            direction: Direction::Write,
        }
    }

    /// Returns the devices' counts if the GPU does everything, with 20 doorbells.
    fn by_gpu() -> Traffic {
        let mut traffic = Traffic::default();
        let of_peer = |purpose| kind(purpose, Completer::PeerBar);
        let commands = LAUNCHES * u64::from(READS) * COMMAND_BYTES;
        traffic.count(DISK, of_peer(Purpose::Command), commands, 0);
        traffic.count(DISK, of_peer(Purpose::Payload), LAUNCHES * BYTES, 0);
        traffic.count(GPU, of_peer(Purpose::Register), 80, 0);
        traffic
    }

    /// Returns the disk's count of interrupts, and of its client's doorbells if it can count them.
    fn events(interrupts: u64, doorbells: Option<&[(u16, u64)]>) -> DeviceEvents {
        DeviceEvents {
            interrupts,
            injected_faults: 0,
            doorbells: doorbells.map(|doorbells| doorbells.iter().copied().collect()),
        }
    }

    fn done() -> Done {
        Done {
            launches: LAUNCHES,
            doorbells: vec![12, 8],
        }
    }

    /// Judges by bus addresses, with additional counts.
    fn judged(change: impl FnOnce(&mut Traffic)) -> Result<String, String> {
        let mut traffic = by_gpu();
        traffic.count_events(DISK, &events(0, Some(&[])));
        change(&mut traffic);
        judge_as(QueueAddresses::Bus, &traffic, &done())
    }

    /// Judges by these addresses, with these events of the disk.
    fn judged_with(addresses: QueueAddresses, events: &DeviceEvents) -> Result<String, String> {
        let mut traffic = by_gpu();
        traffic.count_events(DISK, events);
        judge_as(addresses, &traffic, &done())
    }

    fn judge_as(
        addresses: QueueAddresses,
        traffic: &Traffic,
        done: &Done,
    ) -> Result<String, String> {
        let devices = Devices {
            disk: DISK,
            gpu: GPU,
            counts_interrupts: true,
        };
        judge(traffic, devices, addresses, done).map_err(|error| error.to_string())
    }

    #[test]
    fn command_of_guest_ram_or_miscounted_doorbell_fails() {
        let said = judged(|_| {}).unwrap();
        assert_eq!(
            said,
            "no entry and no doorbell of a processor, no interrupt of the disk, 0 of the GPU for 3000 reads"
        );
        let of_ram = kind(Purpose::Command, Completer::GuestRam);
        let by_processor = judged(|traffic| traffic.count(DISK, of_ram, COMMAND_BYTES, 0));
        assert!(by_processor.unwrap_err().starts_with("the disk's counters"));
        let more = Done {
            doorbells: vec![12, 9],
            ..done()
        };
        let missing = judge_as(QueueAddresses::Bus, &by_gpu(), &more).unwrap_err();
        assert!(missing.starts_with("the GPU's counters show 80 bytes"));
    }

    #[test]
    fn doorbell_of_a_processor_fails() {
        let error = judged_with(QueueAddresses::Bus, &events(0, Some(&[(2, 1)]))).unwrap_err();
        assert!(
            error.contains("by queue: {2: 1}; those of the GPU through the root are {},"),
            "{error}"
        );
    }

    #[test]
    fn root_passes_the_doorbells_of_the_gpu_and_no_other() {
        let by = |doorbells| judged_with(QueueAddresses::Io, &events(0, Some(doorbells)));
        assert!(by(&[(2, 12), (3, 8)]).is_ok());
        let wrong: [&[(u16, u64)]; 3] =
            [&[(2, 12), (3, 9)], &[(2, 12)], &[(1, 1), (2, 12), (3, 8)]];
        for wrong in wrong {
            assert!(by(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn interrupt_of_the_disk_fails() {
        assert_eq!(
            judged_with(QueueAddresses::Bus, &events(1, Some(&[]))).unwrap_err(),
            "the disk raised 1 interrupts, where the GPU polls"
        );
    }

    #[test]
    fn doorbells_that_cannot_be_counted_are_named() {
        let said = judged_with(QueueAddresses::Bus, &events(0, None)).unwrap();
        assert!(
            said.contains("cannot count the processors' doorbells"),
            "{said}"
        );
    }

    #[test]
    fn failed_dma_or_payload_in_guest_ram_fails() {
        let of_ram = kind(Purpose::Payload, Completer::GuestRam);
        assert!(judged(|traffic| traffic.count(DISK, of_ram, 4096, 0)).is_err());
        let failed = judged(|traffic| traffic.count(GPU, of_ram, 0, 1));
        assert_eq!(failed.unwrap_err(), "1 DMA requests of the devices failed");
    }

    #[test]
    fn one_completion_by_way_of_the_root_fails() {
        let up = DmaKind {
            route: Route::Upstream,
            ..kind(Purpose::Completion, Completer::PeerBar)
        };
        let error = judged(|traffic| traffic.count(DISK, up, 16, 0)).unwrap_err();
        assert!(
            error.starts_with("16 bytes went by way of the root"),
            "{error}"
        );
    }

    #[test]
    fn launch_ends_with_the_fault_that_a_rule_has_caused() {
        let fault = |code| Err::<(), _>(anyhow::Error::new(GpuFault(code)).context("a launch"));
        assert!(ends_with(8, fault(8), 1).is_ok());
        let other = format!("{:#}", ends_with(8, fault(7), 1).unwrap_err());
        assert_eq!(
            other,
            "expected fault 8: a launch: the GPU ends its command with fault 7"
        );
        assert!(ends_with(8, Ok(()), 1).is_err());
        assert!(ends_with(8, fault(8), 0).is_err(), "another cause");
    }
}
