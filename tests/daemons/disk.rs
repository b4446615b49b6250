//! A disk under load: blocks are written, flushed and read back, from and to RAM and the memory of
//! devices.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use fastrand::Rng;
use parking_lot::{Mutex, MutexGuard};
use peerbar_nvme_driver::{Controller, DmaMemory, PAGE, QueueMemory, QueuePair, Registers, prps};
use peerbar_nvme_spec::cmb::Cmbmsc;
use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::registers::offset;
use peerbar_rig::{Client, GuestRam, MEMORY};
use zerocopy::{FromZeros, transmute};

use crate::blocks::Blocks;
use crate::judgement::Permitted;
use crate::machine::CMB;
use crate::memory::{BLOCK, block};
use crate::shared::{Ended, Part, Shared, Target};

const FLUSH: u8 = 0;
const WRITE: u8 = 1;
const READ: u8 = 2;
/// Blocks of the largest command.
const LARGEST: u64 = 8;
/// Commands of a pass, each in a separate range of blocks.
const COMMANDS: u64 = 4;
/// Blocks of such a range.
const RANGE: u64 = 1024;
/// Bytes of a disk's image.
pub(crate) const IMAGE_BYTES: u64 = COMMANDS * RANGE * BLOCK as u64;
const ENTRIES: u16 = 16;
/// Bytes of memory that each disk uses in each target.
const AREA: u64 = 2 << 20;
/// Offsets of the data in it: of writes, and of reads.
const DATA: [u64; 2] = [1 << 20, (1 << 20) + (512 << 10)];
/// Time limit of a command: the longest stop, and a margin for the host.
const TIME_OUT: Duration = Duration::from_secs(30);
/// Polls for completions before a thread lets others run for a time.
const SPINS: u32 = 200;
const PAUSE: Duration = Duration::from_micros(100);

/// A disk, over all restarts of its server.
#[derive(Clone)]
pub(crate) struct Disk {
    pub(crate) part: Part,
    pub(crate) socket: PathBuf,
    /// Index of its area in each target.
    pub(crate) area: u64,
    pub(crate) blocks: Arc<Mutex<Blocks>>,
    pub(crate) shared: Arc<Shared>,
}

/// An enabled disk.
struct Session<'a> {
    disk: &'a Disk,
    /// The number of ends before this one.
    ends: u64,
    controller: Controller<Client, GuestRam>,
    queue: QueuePair<Client, GuestRam>,
}

/// Some blocks, and memory for them.
#[derive(Clone, Copy)]
struct Extent {
    first: u64,
    count: u64,
    /// The stamp of the first block. The following ones have consecutive stamps.
    stamp: u64,
    /// Number of the command in its pass.
    slot: u64,
}

impl Disk {
    /// Runs sessions, one after another, until the test ends.
    pub(crate) fn run(&self, mut random: Rng) {
        while self.shared.begin_session(self.part) {
            let ends = self.shared.ends(self.part);
            let session = Session::begin(self, ends);
            let ended = session.and_then(|mut session| session.run(&mut random));
            let ended = ended.err().unwrap_or(Ended::AsWanted);
            self.shared.session_ended(self.part, &ended);
        }
    }

    /// Returns the disk's address of the offset `at` in its area of `memory`.
    fn address(&self, memory: &GuestRam, at: u64) -> u64 {
        memory.address + self.area * AREA + at
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock()
    }
}

impl<'a> Session<'a> {
    fn begin(disk: &'a Disk, ends: u64) -> Result<Self, Ended> {
        let ram = disk.shared.ram.clone();
        let client = Client::attach(&disk.socket, &ram)?;
        let queues = |at| {
            let submission = disk.address(&ram, at);
            QueueMemory {
                submission,
                completion: submission + PAGE,
                submission_entries: ENTRIES,
                completion_entries: ENTRIES,
            }
        };
        let mut controller = Controller::enable(client.clone(), ram.clone(), queues(0))?;
        let queue = controller.create_queues(1, queues(2 * PAGE))?;
        if disk.part == Part::Disk0 {
            disk.shared.publish(disk.part, open_cmb(&client)?);
        }
        Ok(Self {
            disk,
            ends,
            controller,
            queue,
        })
    }

    fn run(&mut self, random: &mut Rng) -> Result<(), Ended> {
        self.settle()?;
        loop {
            for target in Target::ALL {
                self.pass(target, random)?;
            }
        }
    }

    /// Reads the blocks whose content is uncertain after the previous session.
    fn settle(&mut self) -> Result<(), Ended> {
        let unsure = self.disk.blocks().unsure();
        for first in unsure {
            let extent = Extent {
                first,
                count: 1,
                stamp: 0,
                slot: 0,
            };
            let ram = self.disk.shared.ram.clone();
            let address = self.data(&ram, READ, 0);
            ram.write(address, &[Target::Ram.untouched(); BLOCK])?;
            let statuses = self.transfer(READ, &ram, &[extent])?;
            ensure_success(&statuses)?;
            let content = ram.bytes_at(address, BLOCK)?;
            self.disk.blocks().check(first, &content)?;
        }
        Ok(())
    }

    /// Writes some blocks from `target`, flushes them, reads them back to it and compares them.
    fn pass(&mut self, target: Target, random: &mut Rng) -> Result<(), Ended> {
        let Some(memory) = self.disk.shared.memory(target) else {
            return Ok(());
        };
        let begun = self.permitted(target);
        let extents = self.fill(&memory, random)?;
        let written = self.transfer(WRITE, &memory, &extents)?;
        let flushed = self.flush()?;
        ensure_success(&[flushed])?;
        let permitted = begun.or(self.permitted(target));
        self.judge_writes(permitted, &extents, &written)
            .with_context(|| format!("a write from {target:?}"))?;
        self.settle()?;
        let mut stamps = extents.iter().flat_map(Extent::stamps);
        if !self.disk.blocks().are_flushed(&mut stamps) {
            return Ok(());
        }
        for extent in &extents {
            let address = self.data(&memory, READ, extent.slot);
            memory.write(address, &vec![target.untouched(); extent.bytes()])?;
        }
        let read = self.transfer(READ, &memory, &extents)?;
        let mut is_right = true;
        for (extent, status) in extents.iter().zip(read) {
            let address = self.data(&memory, READ, extent.slot);
            let found = memory.bytes_at(address, extent.bytes())?;
            let permitted = begun.or(self.permitted(target));
            let judged = permitted.is_success(status).and_then(|is_success| {
                Ok(is_success && permitted.is_right(&found, &extent.content())?)
            });
            let context = || format!("a read of block {} to {target:?}", extent.first);
            is_right &= judged.with_context(context)?;
        }
        if is_right {
            self.disk.shared.pass(self.disk.part, target);
        }
        Ok(())
    }

    /// Returns the outcomes of transfers with `target` that are permitted now.
    fn permitted(&self, target: Target) -> Permitted {
        self.disk.shared.permitted(self.disk.part, target)
    }

    /// Notes the possible stamps of the blocks after writes with these statuses and a flush.
    fn judge_writes(
        &self,
        permitted: Permitted,
        extents: &[Extent],
        statuses: &[u16],
    ) -> anyhow::Result<()> {
        let mut blocks = self.disk.blocks();
        for (extent, status) in extents.iter().zip(statuses) {
            for (number, stamp) in extent.stamps() {
                let before = blocks.possible(number);
                let stamps = permitted.stamps_after_write(*status, before, stamp)?;
                blocks.flush(number, stamps);
            }
        }
        Ok(())
    }

    /// Chooses blocks, and puts their new content into `memory`.
    fn fill(&mut self, memory: &GuestRam, random: &mut Rng) -> Result<Vec<Extent>, Ended> {
        let mut extents = Vec::new();
        for slot in 0..random.u64(1..=COMMANDS) {
            let count = random.u64(1..=LARGEST);
            let first = slot * RANGE + random.u64(0..=RANGE - count);
            let mut blocks = self.disk.blocks();
            let stamps = (first..first + count).map(|number| {
                let stamp = blocks.next_stamp();
                blocks.write(number, stamp);
                stamp
            });
            let stamp = stamps.min().unwrap_or(0);
            drop(blocks);
            let extent = Extent {
                first,
                count,
                stamp,
                slot,
            };
            memory.write(self.data(memory, WRITE, slot), &extent.content())?;
            extents.push(extent);
        }
        Ok(extents)
    }

    fn data(&self, memory: &GuestRam, opcode: u8, slot: u64) -> u64 {
        let [written, read] = DATA;
        let start = if opcode == WRITE { written } else { read };
        let slot_bytes = LARGEST * BLOCK as u64;
        self.disk.address(memory, start + slot * slot_bytes)
    }

    /// Executes a command for each of the extents at the same time. Returns their statuses, in the
    /// same order.
    fn transfer(
        &mut self,
        opcode: u8,
        memory: &GuestRam,
        extents: &[Extent],
    ) -> Result<Vec<u16>, Ended> {
        let mut commands = Vec::new();
        for extent in extents {
            let first = self.data(memory, opcode, extent.slot);
            let pages: Vec<u64> = (0..extent.count).map(|page| first + page * PAGE).collect();
            let ram = &self.disk.shared.ram;
            let list = self.disk.address(ram, (8 + extent.slot) * PAGE);
            let list = || Ok::<_, std::io::Error>(list);
            let mut entry = SubmissionEntry::new_zeroed();
            let [prp1, prp2] = prps(&pages, ram, list)?;
            [entry.prp1, entry.prp2] = [prp1, prp2].map(Into::into);
            let blocks = u32::try_from(extent.count * 8 - 1)?;
            [entry.cdw10, entry.cdw12] = [u32::try_from(extent.first * 8)?, blocks].map(Into::into);
            commands.push(self.push(opcode, entry)?);
        }
        self.finish(&commands)
    }

    fn flush(&mut self) -> Result<u16, Ended> {
        let command = self.push(FLUSH, SubmissionEntry::new_zeroed())?;
        let statuses = self.finish(&[command])?;
        Ok(*statuses.first().context("no status")?)
    }

    /// Puts a command into the queue. Returns its CID.
    fn push(&mut self, opcode: u8, mut entry: SubmissionEntry) -> Result<u16, Ended> {
        let command = self.queue.tail();
        entry.opcode = opcode;
        entry.cid = command.into();
        entry.nsid = 1.into();
        self.queue.push(&transmute!(entry))?;
        Ok(command)
    }

    /// Waits until the controller has executed these commands, which are the only ones in the
    /// queue. Returns their statuses.
    fn finish(&mut self, commands: &[u16]) -> Result<Vec<u16>, Ended> {
        self.queue.ring()?;
        let begun = Instant::now();
        let (mut statuses, mut spins) = (BTreeMap::new(), 0);
        while statuses.len() < commands.len() {
            if self.disk.shared.ends(self.disk.part) != self.ends {
                return Err(Ended::AsWanted);
            }
            if let Some(completion) = self.queue.pop()? {
                let (command, status) = (completion.cid, completion.status & 0x7ff);
                let is_new = statuses.insert(command, status).is_none();
                let is_due = is_new && commands.contains(&command);
                ensure_due(is_due, command)?;
                continue;
            }
            let status = || self.controller.status();
            if begun.elapsed() > TIME_OUT {
                return Err(anyhow!("no completion; CSTS {:?}", status()?).into());
            }
            spins += 1;
            match spins {
                0..SPINS => thread::yield_now(),
                _ => thread::park_timeout(PAUSE),
            }
        }
        self.queue.ring_head()?;
        let statuses = commands.iter().filter_map(|command| statuses.get(command));
        Ok(statuses.copied().collect())
    }
}

impl Extent {
    /// Returns numbers and stamps of its blocks.
    fn stamps(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let Self {
            first,
            count,
            stamp,
            ..
        } = *self;
        (0..count).map(move |index| (first + index, stamp + index))
    }

    fn content(&self) -> Vec<u8> {
        self.stamps().flat_map(|(_, stamp)| block(stamp)).collect()
    }

    fn bytes(&self) -> usize {
        usize::try_from(self.count).unwrap_or_default() * BLOCK
    }
}

fn ensure_success(statuses: &[u16]) -> anyhow::Result<()> {
    let is_success = statuses.iter().all(|status| *status == 0);
    ensure!(is_success, "commands end with {statuses:x?}");
    Ok(())
}

fn ensure_due(is_due: bool, command: u16) -> anyhow::Result<()> {
    ensure!(
        is_due,
        "a completion of command {command}, which is not due"
    );
    Ok(())
}

/// Opens the Controller Memory Buffer as Linux does (NVMe Base 2.0, 3.1.3.16).
fn open_cmb(client: &Client) -> anyhow::Result<GuestRam> {
    let memory = client.open_bar(MEMORY, CMB)?;
    let control = Cmbmsc::new()
        .with_cre(true)
        .with_cmse(true)
        .with_cba(CMB >> 12);
    client.write_register(offset::CMBMSC, &control.into_bits().to_le_bytes())?;
    Ok(memory)
}
