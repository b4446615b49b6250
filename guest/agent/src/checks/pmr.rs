//! A Persistent Memory Region (NVMe Base 2.0, 8.14) that a GPU reads and writes peer to peer, over
//! several runs. Linux' driver does not use it, so vfio-pci has the disk during the check.

use super::{CheckOutcome, Run};
use peerbar_report::{Buffer as With, Measure, Pmr, VfioBackend};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use peerbar_gds::ImportedBuffer;
use peerbar_gds::Mapping;
use peerbar_nvme_driver::Registers;
use peerbar_nvme_spec::pmr::{Pmrcap, Pmrsts};
use peerbar_nvme_spec::registers::Cap;
use peerbar_nvme_spec::registers::offset::{CAP, PMRCAP, PMRCTL, PMRSTS};
use peerbar_vfio_nvme::{AddressSpace, BarRange, Binding, RegisterAccess, RegisterBar};

use super::route::judge;
use crate::dma_buf_copies::{DmaBufCopies, HALF};
use crate::guest_context::GuestContext;
use crate::user_drivers;

const NOT_READY: u32 = Pmrsts::new().with_nrdy(true).into_bits();

/// The GPU's halves are at the start of the region, followed by the record that a later run checks
/// them by.
const RECORD: u64 = 2 * HALF;
const RECORD_BYTES: usize = 24;
const RECORD_PAGE: u64 = 4096;
const MAGIC: [u8; 8] = *b"peer-PMR";
/// In place of the checksum while a run is in progress, which may have written anything.
const IN_PROGRESS: u64 = 0;

impl Run for Pmr {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let gpu = guest.gpu(&self.gpu)?;
        let mut bench = DmaBufCopies::new(guest, gpu)?;
        let disk = guest.controller(&self.disk)?;
        let binding = user_drivers::take(guest, VfioBackend::Type1, &disk.pci)?;
        let outcome = with_device(&binding, &mut bench);
        let back = user_drivers::give_back_disk(guest, disk, binding);
        let runs = outcome.and_then(|runs| back.map(|()| runs))?;
        measure.bytes = bench.bytes;
        bench.watch.write_to(measure);
        judge(
            &With::P2pmem(self.disk.clone()),
            &[gpu.share(bench.bytes)],
            bench.watch.traffic()?,
        )?;
        guest.show(&format!("the region has seen {runs} runs of this check"));
        Ok(CheckOutcome::Passed)
    }
}

/// Returns the number of runs that the region has seen, including this one.
fn with_device(binding: &Binding, bench: &mut DmaBufCopies<'_>) -> anyhow::Result<u64> {
    let region = Region::enable(binding)?;
    let runs = region
        .former()?
        .map_or(1, |former| former.saturating_add(1));
    region.begin(runs)?;
    let dma_buf = region.registers.device().export(region.halves())?;
    let imported = bench.gpu.import(&dma_buf)?;
    drop(dma_buf);
    let mut halves = region.registers.device().map(region.halves())?;
    bench.there_and_back(&imported, &mut halves)?;
    region.leave(runs)?;
    region.endure(bench, &imported)?;
    let left = region.former()?.context("the record is gone")?;
    ensure!(left == runs, "the record is another run's");
    Ok(runs)
}

/// A region that is ready.
struct Region {
    registers: RegisterBar,
    /// The BAR that contains it.
    bar: u32,
    /// The halves and the record.
    memory: Mapping,
}

impl Region {
    fn enable(binding: &Binding) -> anyhow::Result<Self> {
        let device = Arc::new(AddressSpace::type1()?.open(binding)?);
        device.decode(true)?;
        let registers = RegisterBar::new(device, RegisterAccess::Calls)?;
        let mut cap = [0; 8];
        registers.read_register(CAP, &mut cap)?;
        ensure!(
            Cap::from_bits(u64::from_le_bytes(cap)).pmrs(),
            "CAP.PMRS is 0"
        );
        let capabilities = Pmrcap::from_bits(read(&registers, PMRCAP)?);
        ensure!(
            capabilities.pmrwbm() & Pmrcap::BARRIER_STATUS != 0,
            "a read of PMRSTS is not a barrier: {capabilities:?}"
        );
        let bar = capabilities.bir().into();
        let memory = registers.device().map(BarRange {
            bar,
            offset: 0,
            length: RECORD.saturating_add(RECORD_PAGE),
        })?;
        let region = Region {
            registers,
            bar,
            memory,
        };
        let status = region.status()?;
        ensure!(
            status == NOT_READY,
            "PMRSTS is {status:#x} before the region is enabled"
        );
        region.turn_on()?;
        Ok(region)
    }

    /// Returns the range that the GPU reads and writes.
    fn halves(&self) -> BarRange {
        BarRange {
            bar: self.bar,
            offset: 0,
            length: RECORD,
        }
    }

    fn turn_on(&self) -> anyhow::Result<()> {
        self.control(1)?;
        let half_seconds = Pmrcap::from_bits(read(&self.registers, PMRCAP)?).pmrto();
        let limit = Duration::from_millis(500) * half_seconds.into();
        let start = Instant::now();
        while self.status()? & NOT_READY != 0 {
            ensure!(start.elapsed() <= limit, "not ready within PMRCAP.PMRTO");
        }
        self.is_persistent()
    }

    /// Reads PMRSTS, which is also the barrier.
    fn status(&self) -> anyhow::Result<u32> {
        read(&self.registers, PMRSTS)
    }

    /// Checks that written data is persistent.
    fn is_persistent(&self) -> anyhow::Result<()> {
        let status = self.status()?;
        ensure!(status == 0, "PMRSTS is {status:#x} after a barrier");
        Ok(())
    }

    /// Writes PMRCTL.
    fn control(&self, value: u32) -> anyhow::Result<()> {
        Ok(self
            .registers
            .write_register(PMRCTL, &value.to_le_bytes())?)
    }

    fn read_memory(&self, offset: u64, length: u64) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length)?];
        self.memory.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the number of runs that the region has seen, after checking that the data of the
    /// last of them is intact, or `None` if the region is empty.
    fn former(&self) -> anyhow::Result<Option<u64>> {
        let record = self.read_memory(RECORD, RECORD_BYTES as u64)?;
        let data = self.read_memory(0, RECORD)?;
        runs_of(&record, &data)
    }

    /// Leaves a record that says that a run is in progress, so that the next run does not judge the
    /// data if this one is aborted.
    fn begin(&self, runs: u64) -> anyhow::Result<()> {
        self.write_record(runs, IN_PROGRESS)
    }

    fn write_record(&self, runs: u64, sum: u64) -> anyhow::Result<()> {
        let words = [MAGIC, runs.to_le_bytes(), sum.to_le_bytes()];
        self.memory.write(RECORD, words.as_flattened())?;
        self.is_persistent()
    }

    /// Leaves a record for the next run: first makes the data persistent, then the record.
    fn leave(&self, runs: u64) -> anyhow::Result<()> {
        self.is_persistent()?;
        let sum = checksum(&self.read_memory(0, RECORD)?);
        self.write_record(runs, sum)
    }

    /// Toggles PMRCTL.EN, and resets the function, while the GPU reads. The contents stay.
    fn endure(
        &self,
        bench: &mut DmaBufCopies<'_>,
        imported: &ImportedBuffer,
    ) -> anyhow::Result<()> {
        bench
            .amid_copies(imported, || {
                self.control(0)?;
                let status = self.status()?;
                ensure!(status == NOT_READY, "PMRSTS is {status:#x} when disabled");
                self.turn_on()
            })
            .context("PMRCTL.EN is toggled amid copies")?;
        bench
            .amid_copies(imported, || Ok(self.registers.device().reset()?))
            .context("a reset amid copies")?;
        let control = read(&self.registers, PMRCTL)?;
        ensure!(control == 0, "PMRCTL is {control:#x} after a reset");
        self.turn_on()
    }
}

fn read(registers: &RegisterBar, offset: u64) -> anyhow::Result<u32> {
    let mut value = [0; 4];
    registers.read_register(offset, &mut value)?;
    Ok(u32::from_le_bytes(value))
}

/// Returns the number of runs in a record, or `None` if it and the data are zeros. The data must be
/// as the last run has left it, unless that run was aborted before it left any.
fn runs_of(record: &[u8], data: &[u8]) -> anyhow::Result<Option<u64>> {
    if record.iter().all(|byte| *byte == 0) {
        ensure!(
            data.iter().all(|byte| *byte == 0),
            "a region without a record is not empty: something else has written there; remove its file, or sanitize the disk"
        );
        return Ok(None);
    }
    let words: Vec<&[u8; 8]> = words_of(record).collect();
    let [magic, runs, sum] = *words else {
        anyhow::bail!("a record of {} words", words.len());
    };
    ensure!(
        *magic == MAGIC,
        "the record begins with {magic:x?}: something else has written there; remove the region's file, or sanitize the disk"
    );
    let (runs, sum) = (u64::from_le_bytes(*runs), u64::from_le_bytes(*sum));
    ensure!(
        sum == IN_PROGRESS || sum == checksum(data),
        "the data of run {runs} is lost"
    );
    Ok(Some(runs))
}

/// Returns FNV-1a over 64-bit words.
fn checksum(data: &[u8]) -> u64 {
    words_of(data).fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn words_of(data: &[u8]) -> impl Iterator<Item = &[u8; 8]> {
    data.chunks_exact(8).filter_map(<[u8]>::first_chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(runs: u64, sum: u64) -> Vec<u8> {
        [MAGIC, runs.to_le_bytes(), sum.to_le_bytes()].concat()
    }

    #[test]
    fn data_of_a_run_that_was_ended_is_not_judged() {
        let data = [7; 64];
        assert_eq!(runs_of(&record(3, IN_PROGRESS), &data).unwrap(), Some(3));
        assert_eq!(
            runs_of(&record(3, checksum(&data)), &data).unwrap(),
            Some(3)
        );
        assert!(runs_of(&record(3, checksum(&[7; 32])), &data).is_err());
    }

    #[test]
    fn region_that_something_else_has_written_is_refused() {
        let empty = [0; RECORD_BYTES];
        assert_eq!(runs_of(&empty, &[0; 64]).unwrap(), None);
        for (record, data) in [(empty, [1; 64]), ([1; RECORD_BYTES], [0; 64])] {
            let refused = runs_of(&record, &data).unwrap_err().to_string();
            assert!(refused.contains("remove"), "{refused}");
        }
    }

    #[test]
    fn checksum_of_changed_or_swapped_words_differs() {
        let data: Vec<u8> = (0..64).collect();
        let sum = checksum(&data);
        let mut changed = data.clone();
        changed[63] ^= 1;
        let mut swapped = data.clone();
        swapped.rotate_left(8);
        assert!(checksum(&changed) != sum && checksum(&swapped) != sum);
        assert_eq!(checksum(&data), sum);
    }
}
