//! A command channel of a GPU, as its driver uses it (`devices/gpu/INTERFACE.md`).

use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use peerbar_nvme_driver::{DmaMemory, Registers};
use peerbar_rig::gpu::{Command, ENTRY_BYTES, channel_register, doorbell};
use peerbar_rig::{Client, GuestRam};

const ENTRIES: u32 = 32;
/// Offset of the fence from the ring.
const FENCE: u64 = 0x1000;
/// Registers of a channel.
const RING_ADDRESS: u64 = 0x00;
const RING_SPACE: u64 = 0x08;
const RING_ENTRIES: u64 = 0x0c;
const CONTROL: u64 = 0x10;
const STATUS: u64 = 0x14;
/// STATUS: error, and stopping.
const ERROR: u32 = 2;
const STOPPING: u32 = 1 << 16;
/// Time limit for a channel to stop.
const TIME_OUT: Duration = Duration::from_secs(30);

/// An enabled channel, with its ring and its fence in memory that the GPU reaches.
pub(crate) struct Channel {
    client: Client,
    memory: GuestRam,
    number: u8,
    ring: u64,
    /// Commands since the channel was enabled.
    put: u32,
    fences: u64,
}

impl Channel {
    /// Enables channel `number` with its ring at `ring` in `memory`, and its fence after the ring.
    pub(crate) fn enable(
        client: Client,
        memory: GuestRam,
        number: u8,
        ring: u64,
    ) -> anyhow::Result<Self> {
        let mut channel = Self {
            client,
            memory,
            number,
            ring,
            put: 0,
            fences: 0,
        };
        channel.start()?;
        Ok(channel)
    }

    /// Enables it, also after an error.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        self.set(CONTROL, 0)?;
        let begun = Instant::now();
        while self.status()? & STOPPING != 0 {
            ensure!(begun.elapsed() < TIME_OUT, "a channel does not stop");
            thread::yield_now();
        }
        let ring = self.register(RING_ADDRESS);
        self.client.write_register(ring, &self.ring.to_le_bytes())?;
        self.set(RING_SPACE, 0)?;
        self.set(RING_ENTRIES, ENTRIES)?;
        self.set(CONTROL, 1)?;
        self.put = 0;
        Ok(())
    }

    /// Puts a command into the ring and rings the doorbell. The command before has ended.
    pub(crate) fn put(&mut self, command: &Command) -> anyhow::Result<()> {
        let (doorbell, value) = self.put_silently(command)?;
        Ok(self.client.write_register(doorbell, &value.to_le_bytes())?)
    }

    /// Puts a command into the ring. Returns the register of its doorbell, and the value that
    /// announces it.
    pub(crate) fn put_silently(&mut self, command: &Command) -> anyhow::Result<(u64, u32)> {
        self.fences += 1;
        let bytes = command.encode(1, (self.ring + FENCE, self.fences));
        let entry = self.ring + u64::from(self.put % ENTRIES) * ENTRY_BYTES;
        self.memory.write(entry, &bytes)?;
        self.put = self.put.wrapping_add(1);
        Ok((self.doorbell(), self.put))
    }

    /// Returns `true` if the device does not poll doorbells.
    pub(crate) fn sleeps(&self) -> anyhow::Result<bool> {
        let mut word = [0; 4];
        self.client.read_register(self.doorbell() + 4, &mut word)?;
        Ok(u32::from_le_bytes(word) == 1)
    }

    fn doorbell(&self) -> u64 {
        doorbell(self.number)
    }

    /// Returns the result of the last command, once it is complete.
    pub(crate) fn result(&self) -> anyhow::Result<Option<u64>> {
        let is_done = self.memory.load64(self.ring + FENCE)? == self.fences;
        let result = self.memory.load64(self.ring + FENCE + 8)?;
        Ok(is_done.then_some(result))
    }

    /// Returns the code of the fault that has ended the last command, if one has.
    pub(crate) fn fault(&self) -> anyhow::Result<Option<u32>> {
        let status = self.status()?;
        Ok((status & 0xff == ERROR).then_some(status >> 8 & 0xff))
    }

    fn status(&self) -> anyhow::Result<u32> {
        let mut value = [0; 4];
        let register = self.register(STATUS);
        self.client.read_register(register, &mut value)?;
        Ok(u32::from_le_bytes(value))
    }

    fn set(&self, register: u64, value: u32) -> anyhow::Result<()> {
        let register = self.register(register);
        Ok(self.client.write_register(register, &value.to_le_bytes())?)
    }

    fn register(&self, offset: u64) -> u64 {
        channel_register(self.number, offset)
    }
}
