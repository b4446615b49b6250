//! Commands of a GPU and the offsets of its channels' registers, by `devices/gpu/INTERFACE.md`.

/// Bytes of an entry of a ring.
pub const ENTRY_BYTES: u64 = 128;

/// A command without its fence.
#[derive(Clone, Copy, Debug, Default)]
pub struct Command {
    /// Its opcode.
    pub opcode: u8,
    /// A bit for each operand that is an offset in VRAM, not a bus address.
    pub spaces: u16,
    /// The kernel of a launch.
    pub kernel: u32,
    /// Its operands.
    pub operands: [u64; 13],
}

impl Command {
    /// Makes a command whose operands in VRAM are those of the bits of `spaces`.
    pub fn new(opcode: u8, spaces: u16, operands: &[u64]) -> Self {
        let mut command = Self {
            opcode,
            spaces,
            ..Self::default()
        };
        command.operands[..operands.len()].copy_from_slice(operands);
        command
    }

    /// Makes a copy of `bytes` bytes.
    pub fn copy(spaces: u16, from: u64, to: u64, bytes: u64) -> Self {
        Self::new(1, spaces, &[from, to, bytes])
    }

    /// Makes a launch of a kernel.
    pub fn launch(kernel: u32, spaces: u16, operands: &[u64], (grid, block): (u64, u64)) -> Self {
        let mut command = Self::new(5, spaces, operands);
        command.kernel = kernel;
        [command.operands[11], command.operands[12]] = [grid, block];
        command
    }

    /// Returns its bytes with these flags, and with the address and the value of its fence.
    pub fn encode(&self, flags: u8, (fence, value): (u64, u64)) -> [u8; ENTRY_BYTES as usize] {
        let mut bytes = [0; ENTRY_BYTES as usize];
        bytes[..2].copy_from_slice(&[self.opcode, flags]);
        bytes[2..4].copy_from_slice(&self.spaces.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.kernel.to_le_bytes());
        let numbers = [fence, value].into_iter().chain(self.operands);
        for (to, number) in bytes[8..].chunks_mut(8).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }
}

/// Returns the offset of a channel's register.
pub fn channel_register(channel: u8, offset: u64) -> u64 {
    0x1000 + 0x100 * u64::from(channel) + offset
}

/// Returns the offset of a channel's doorbell.
pub fn doorbell(channel: u8) -> u64 {
    0x8000 + 0x40 * u64::from(channel)
}
