//! A GPU under load: it copies from RAM to its own memory, and through the memory of a disk back to
//! RAM (`devices/gpu/INTERFACE.md`).

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use peerbar_nvme_driver::DmaMemory;

use crate::channel::{Channel, Command, CommandAddress};
use crate::client::DeviceClient;
use crate::machine::{RAM, RAM_BYTES, VRAM};
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
    client: DeviceClient,
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
        let client = DeviceClient::connect(&gpu.socket, &shared.ram, RAM_BYTES)?;
        shared.publish(PART, client.set_memory_bar(VRAM)?);
        let channel = Channel::enable(client.clone(), shared.ram.clone(), 0, RING)?;
        Ok(Self {
            shared,
            ends,
            client,
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
        let own = [
            CommandAddress::Bus(SOURCE),
            CommandAddress::Vram(AREA),
            CommandAddress::Bus(RESULT),
        ];
        let by_disk = [
            own[0],
            own[1],
            CommandAddress::Bus(memory.address + AREA),
            own[2],
        ];
        let way: &[CommandAddress] = match target {
            Target::Device(Part::Disk0) => &by_disk,
            _ => &own,
        };
        let copied = way.iter().zip(way.iter().skip(1));
        let copied = copied.map(|(from, to)| self.copy(*from, *to));
        let copied: Result<Vec<bool>, Ended> = copied.collect();
        let is_copied = copied?.into_iter().all(|done| done);
        let found = self.shared.ram.bytes(RESULT, content.len())?;
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

    /// Returns `true` if the copy is complete. If not, the channel is ready for another.
    fn copy(&mut self, from: CommandAddress, to: CommandAddress) -> Result<bool, Ended> {
        self.channel.put(&Command::copy(from, to, BYTES))?;
        let (begun, mut spins) = (Instant::now(), 0);
        loop {
            if self.shared.ends(PART) != self.ends {
                return Err(Ended::AsWanted);
            }
            if self.channel.result()?.is_some() {
                return Ok(true);
            }
            spins += 1;
            self.client.answer_requests()?;
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
