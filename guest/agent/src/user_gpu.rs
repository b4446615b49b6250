//! A command channel of a GPU that this process drives, by vfio-pci (devices/gpu/INTERFACE.md).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use peerbar_nvme_driver::{DmaMemory, Registers};
use peerbar_vfio_nvme::{DmaSpace, RegisterAccess, RegisterBar, VfioDevice};

/// Offset of the registers of channel 0, distance to those of the next channel, and offsets in
/// them.
const CHANNELS: u64 = 0x1000;
const CHANNEL_BYTES: u64 = 0x100;
const RING_SPACE: u64 = 0x08;
const RING_ENTRIES: u64 = 0x0c;
const CONTROL: u64 = 0x10;
const STATUS: u64 = 0x14;
/// A register of the device.
const KICK: u64 = 0x2c;
/// Offset of the doorbell of channel 0, and distance to that of the next channel.
const DOORBELLS: u64 = 0x8000;
const DOORBELL_BYTES: u64 = 0x40;
/// STATUS: error.
const ERROR: u32 = 2;

const ENTRIES: u32 = 32;
/// Bytes of the ring, and of the page behind it with the fence.
const RING_BYTES: u64 = 4096;
/// Time limit of a command.
pub(crate) const TIME_OUT: Duration = Duration::from_secs(60);
/// Pause of this thread between two polls of a fence: this part of the time that it has waited,
/// within these bounds.
const PAUSE_PART: u32 = 32;
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// Operands of a command.
pub(crate) type Operands = [u64; 13];

/// A failed command, with the code of its fault (devices/gpu/INTERFACE.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuFault(pub(crate) u8);

impl fmt::Display for GpuFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the GPU ends its command with fault {}", self.0)
    }
}

impl std::error::Error for GpuFault {}

/// An enabled channel, with its ring and its fence in memory of this process.
pub(crate) struct UserGpu {
    registers: RegisterBar,
    space: DmaSpace,
    /// The number of the channel.
    channel: u8,
    ring: u64,
    /// Number of commands so far.
    put: u32,
}

impl UserGpu {
    /// Enables this channel, 0 to 15, of a GPU that is open in the address space of `space`.
    pub(crate) fn start(
        device: Arc<VfioDevice>,
        space: &DmaSpace,
        channel: u8,
    ) -> anyhow::Result<Self> {
        device.master(true)?;
        let gpu = Self {
            registers: RegisterBar::new(device, RegisterAccess::Mapped)?,
            space: space.clone(),
            channel,
            ring: space.allocate(2 * RING_BYTES)?,
            put: 0,
        };
        let ring = gpu.ring.to_le_bytes();
        gpu.registers.write_register(gpu.register(0), &ring)?;
        gpu.set(gpu.register(RING_SPACE), 0)?;
        gpu.set(gpu.register(RING_ENTRIES), ENTRIES)?;
        gpu.set(gpu.register(CONTROL), 1)?;
        Ok(gpu)
    }

    /// Launches a kernel. Operand i is an offset in VRAM if bit i of `spaces` is set.
    pub(crate) fn launch(
        &mut self,
        kernel: u32,
        spaces: u16,
        operands: &Operands,
    ) -> anyhow::Result<()> {
        const LAUNCH: u8 = 5;
        const WITH_FENCE: u8 = 1;
        self.put = self.put.wrapping_add(1);
        let mut entry = vec![LAUNCH, WITH_FENCE];
        entry.extend(spaces.to_le_bytes());
        entry.extend(kernel.to_le_bytes());
        let numbers = [self.fence(), self.put.into()];
        let numbers = numbers.iter().chain(operands);
        entry.extend(numbers.flat_map(|number| number.to_le_bytes()));
        let index = self.put.wrapping_sub(1) % ENTRIES;
        let at = self.ring.saturating_add(u64::from(index) * 128);
        self.space.write(at, &entry)?;
        self.set(self.doorbell(), self.put)?;
        // The GPU announces that it sleeps and then reads the doorbell: at least one side sees the
        // other's store.
        fence(Ordering::SeqCst);
        match self.get(self.doorbell().saturating_add(4))? {
            0 => Ok(()),
            _ => self.set(KICK, 1),
        }
    }

    /// Waits for the last command, and returns its result. This thread sleeps in between.
    ///
    /// # Errors
    /// [`GpuFault`] if a command fails.
    pub(crate) fn wait(&self) -> anyhow::Result<u64> {
        let begun = Instant::now();
        while self.space.load64(self.fence())? != u64::from(self.put) {
            let [state, code, ..] = self.get(self.register(STATUS))?.to_le_bytes();
            if u32::from(state) == ERROR {
                bail!(GpuFault(code));
            }
            ensure!(
                begun.elapsed() < TIME_OUT,
                "the GPU does not end its command"
            );
            let pause = begun.elapsed() / PAUSE_PART;
            thread::sleep(pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
        }
        Ok(self.space.load64(self.fence().saturating_add(8))?)
    }

    /// Returns the offset of a register of the channel.
    fn register(&self, offset: u64) -> u64 {
        let channel = u64::from(self.channel).saturating_mul(CHANNEL_BYTES);
        CHANNELS.saturating_add(channel).saturating_add(offset)
    }

    /// Returns the offset of the channel's doorbell. The word behind it says if the GPU sleeps.
    fn doorbell(&self) -> u64 {
        DOORBELLS.saturating_add(u64::from(self.channel).saturating_mul(DOORBELL_BYTES))
    }

    fn fence(&self) -> u64 {
        self.ring.saturating_add(RING_BYTES)
    }

    fn get(&self, register: u64) -> anyhow::Result<u32> {
        let mut value = [0; 4];
        self.registers.read_register(register, &mut value)?;
        Ok(u32::from_le_bytes(value))
    }

    fn set(&self, register: u64, value: u32) -> anyhow::Result<()> {
        Ok(self
            .registers
            .write_register(register, &value.to_le_bytes())?)
    }
}

impl Drop for UserGpu {
    /// Stops the device's DMA at once; closing it resets it.
    fn drop(&mut self) {
        // A device that is gone does no DMA either.
        let _ = self.registers.device().master(false);
    }
}
