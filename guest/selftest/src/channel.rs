//! A command channel of a GPU that is driven from here, without its driver, so that it can be given
//! commands that no driver gives (devices/gpu/INTERFACE.md, Channels and Commands).

use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use anyhow::Context;
use peerbar_agent::registers::Registers;

/// The channel that is driven: the last, since the driver uses them from the first on.
pub(crate) const NUMBER: u32 = 15;

/// Its MSI-X vector, and that of the whole device.
pub(crate) const VECTOR: u32 = NUMBER + 1;
pub(crate) const DEVICE_VECTOR: u32 = 0;

/// Size of a ring's entry in bytes.
pub(crate) const ENTRY_BYTES: u64 = 128;

/// RING_SPACE of a ring that lies in VRAM, and of one that does not.
pub(crate) const IN_VRAM: u32 = 1;
pub(crate) const ON_BUS: u32 = 0;

/// FLAGS: the fence is written, and lies in VRAM; the channel's vector is raised.
pub(crate) const FENCE_IN_VRAM: u8 = 0b101;
pub(crate) const INTERRUPT: u8 = 0b010;

const FAULTS: usize = 0x28;
const KICK: usize = 0x2c;
const CHANNEL: usize = 0x1000 + 0x100 * NUMBER as usize;
const RING_ADDRESS: usize = CHANNEL;
const RING_SPACE: usize = CHANNEL + 0x08;
const RING_ENTRIES: usize = CHANNEL + 0x0c;
const CONTROL: usize = CHANNEL + 0x10;
const HEAD: usize = CHANNEL + 0x18;
const DOORBELL: usize = 0x8000 + 0x40 * NUMBER as usize;

/// The location of a ring, and its number of entries, valid or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub(crate) address: u64,
    pub(crate) space: u32,
    pub(crate) entries: u32,
}

/// The properties of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelState {
    Off,
    On,
    /// Error, with a fault code.
    Error(u8),
    /// Anything else, as it was read.
    Other(u32),
}

/// The channel.
#[derive(Debug)]
pub(crate) struct Channel {
    registers: Registers,
}

impl Channel {
    /// Takes the channel of the GPU whose directory in sysfs is `pci`. Nothing else may use it.
    pub(crate) fn of(pci: &Path) -> anyhow::Result<Self> {
        Ok(Channel {
            registers: Registers::map(pci)?,
        })
    }

    pub(crate) fn enable(&self, ring: Ring) -> anyhow::Result<()> {
        let [low, high] = halves(ring.address);
        for (register, value) in [
            (RING_ADDRESS, low),
            (RING_ADDRESS + 4, high),
            (RING_SPACE, ring.space),
            (RING_ENTRIES, ring.entries),
            (CONTROL, 1),
        ] {
            self.registers.write(register, value)?;
        }
        Ok(())
    }

    pub(crate) fn disable(&self) -> anyhow::Result<()> {
        self.registers.write(CONTROL, 0)
    }

    /// Rings the doorbell: this many entries have been written since the enable.
    pub(crate) fn ring(&self, entries: u32) -> anyhow::Result<()> {
        self.registers.write(DOORBELL, entries)?;
        fence(Ordering::SeqCst);
        let [_, asleep] = halves(self.registers.read(DOORBELL)?);
        match asleep {
            0 => Ok(()),
            _ => self.registers.write(KICK, 1),
        }
    }

    pub(crate) fn state(&self) -> anyhow::Result<ChannelState> {
        let [_, status] = halves(self.registers.read(CONTROL)?);
        Ok(match status.to_le_bytes() {
            [0, 0, 0, 0] => ChannelState::Off,
            [1, 0, 0, 0] => ChannelState::On,
            [2, code, 0, 0] => ChannelState::Error(code),
            _ => ChannelState::Other(status),
        })
    }

    /// Returns the number of entries taken since the enable.
    pub(crate) fn head(&self) -> anyhow::Result<u32> {
        let [head, _] = halves(self.registers.read(HEAD)?);
        Ok(head)
    }

    /// Returns the number of faults of the whole device since its reset.
    pub(crate) fn faults(&self) -> anyhow::Result<u32> {
        let [faults, _] = halves(self.registers.read(FAULTS)?);
        Ok(faults)
    }
}

/// A command as it lies in a ring, valid or not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) spaces: u16,
    pub(crate) kernel: u32,
    pub(crate) fence: u64,
    pub(crate) fence_value: u64,
    /// The first of the 13 operands.
    pub(crate) operands: [u64; 3],
}

impl Entry {
    pub(crate) fn bytes(&self) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![self.opcode, self.flags];
        bytes.extend(self.spaces.to_le_bytes());
        bytes.extend(self.kernel.to_le_bytes());
        bytes.extend(self.fence.to_le_bytes());
        bytes.extend(self.fence_value.to_le_bytes());
        let operands = self.operands.iter();
        bytes.extend(operands.flat_map(|operand| operand.to_le_bytes()));
        let length = usize::try_from(ENTRY_BYTES).context("an entry's length")?;
        bytes.resize(length, 0);
        Ok(bytes)
    }
}

fn halves(number: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = number.to_le_bytes();
    [
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    ]
}
