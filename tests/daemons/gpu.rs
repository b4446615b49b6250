//! A GPU under load: it copies from RAM to its own memory, and through the memory of a disk back to
//! RAM (`devices/gpu/INTERFACE.md`).

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use peerbar_nvme_driver::DmaMemory;
use peerbar_rig::gpu::Command;
use peerbar_rig::{Client, MEMORY};

use crate::channel::Channel;
use crate::machine::{RAM, VRAM};
use crate::memory::block;
use crate::shared::{Ended, Part, Shared, Target};

const PART: Part = Part::Gpu0;
/// Offset of its data in each memory, away from those of the disks.
const AREA: u64 = 8 << 20;
/// The channel's ring and its fence, in RAM.
const RING: u64 = RAM + AREA;
const SOURCE: u64 = RAM + AREA + (1 << 20);
const RESULT: u64 = RAM + AREA + (2 << 20);
/// Blocks of a copy.
const BLOCKS: u64 = 16;
const BYTES: u64 = BLOCKS * 4096;
/// The longest stop, and a margin for the host.
const TIME_OUT: Duration = Duration::from_secs(30);
const SPINS: u32 = 200;
const PAUSE: Duration = Duration::from_micros(100);

/// The GPU, over all restarts of its server.
#[derive(Clone)]
pub(crate) struct Gpu {
    pub(crate) socket: PathBuf,
    pub(crate) shared: Arc<Shared>,
}

struct Session<'a> {
    shared: &'a Shared,
    ends: u64,
    channel: Channel,
    stamp: u64,
}

impl Gpu {
    /// Runs sessions, one after another, until the test ends.
    pub(crate) fn run(&self) {
        let mut stamp = 0;
        while self.shared.begin_session(PART) {
            let ended = Session::begin(self, stamp).and_then(|mut session| {
                let ended = session.run();
                stamp = session.stamp;
                ended
            });
            let ended = ended.err().unwrap_or(Ended::AsWanted);
            self.shared.session_ended(PART, &ended);
        }
    }
}

impl<'a> Session<'a> {
    fn begin(gpu: &'a Gpu, stamp: u64) -> Result<Self, Ended> {
        let shared = &gpu.shared;
        let ends = shared.ends(PART);
        let client = Client::attach(&gpu.socket, &shared.ram)?;
        shared.publish(PART, client.open_bar(MEMORY, VRAM)?);
        let channel = Channel::enable(client, shared.ram.clone(), 0, RING)?;
        Ok(Self {
            shared,
            ends,
            channel,
            stamp,
        })
    }

    fn run(&mut self) -> Result<(), Ended> {
        loop {
            for target in Target::ALL {
                self.pass(target)?;
            }
        }
    }

    /// Copies from RAM through VRAM, and through `target` if that is a disk's, back to RAM, and
    /// compares.
    fn pass(&mut self, target: Target) -> Result<(), Ended> {
        let Some(memory) = self.shared.memory(target) else {
            return Ok(());
        };
        let ram = &self.shared.ram;
        let begun = self.shared.permitted(PART, target);
        let content: Vec<u8> = (0..BLOCKS)
            .flat_map(|index| block(self.stamp + index))
            .collect();
        self.stamp += BLOCKS;
        ram.write(SOURCE, &content)?;
        ram.write(RESULT, &vec![Target::Ram.untouched(); content.len()])?;
        // Both ends of each copy, and which of them are in VRAM.
        let to_vram = Command::copy(0b10, SOURCE, AREA, BYTES);
        let from_vram = |to| Command::copy(0b01, AREA, to, BYTES);
        let by_disk = memory.address + AREA;
        let copies = match target {
            Target::Device(Part::Disk0) => {
                let from_disk = Command::copy(0, by_disk, RESULT, BYTES);
                vec![to_vram, from_vram(by_disk), from_disk]
            }
            _ => vec![to_vram, from_vram(RESULT)],
        };
        let copied = copies.iter().map(|copy| self.execute(copy));
        let copied: Result<Vec<bool>, Ended> = copied.collect();
        let is_copied = copied?.into_iter().all(|done| done);
        let found = self.shared.ram.bytes_at(RESULT, content.len())?;
        let permitted = begun.or(self.shared.permitted(PART, target));
        let context = || format!("copies by {target:?}");
        if is_copied {
            let is_right = permitted.is_right(&found, &content);
            if is_right.with_context(context)? {
                self.shared.pass(PART, target);
            }
        } else if !permitted.errors {
            return Err(anyhow!("{} fail", context()).into());
        }
        Ok(())
    }

    /// Returns `true` if the command is complete. If not, the channel is ready for another.
    fn execute(&mut self, command: &Command) -> Result<bool, Ended> {
        self.channel.put(command)?;
        let (begun, mut spins) = (Instant::now(), 0);
        loop {
            if self.shared.ends(PART) != self.ends {
                return Err(Ended::AsWanted);
            }
            if self.channel.result()?.is_some() {
                return Ok(true);
            }
            spins += 1;
            if spins < SPINS {
                thread::yield_now();
                continue;
            }
            if self.channel.fault()?.is_some() {
                self.channel.start()?;
                return Ok(false);
            }
            if begun.elapsed() > TIME_OUT {
                return Err(anyhow!("a command of the GPU does not end").into());
            }
            thread::park_timeout(PAUSE);
        }
    }
}
