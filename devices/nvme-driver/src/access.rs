//! A driver's access to a controller.

use std::io;

/// The registers of a controller (NVMe over PCIe 1.0, 3.1).
pub trait Registers {
    /// Reads `data.len()` bytes at `offset`.
    fn read_register(&self, offset: u64, data: &mut [u8]) -> io::Result<()>;

    /// Writes `data` at `offset`.
    fn write_register(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Writes the doorbell at `offset`, which may be mapped differently from other registers.
    fn write_doorbell(&self, offset: u64, value: u32) -> io::Result<()> {
        self.write_register(offset, &value.to_le_bytes())
    }
}

/// Memory that host and controller share, addressed as the controller addresses it.
///
/// If [`DmaMemory::read`] and [`DmaMemory::write`] transfer an aligned word in one access and in
/// order, as pread(2) and pwrite(2) of a memory file do, the default methods suffice.
pub trait DmaMemory {
    /// Copies from the memory at `address`.
    fn read(&self, address: u64, data: &mut [u8]) -> io::Result<()>;

    /// Copies to the memory at `address`.
    fn write(&self, address: u64, data: &[u8]) -> io::Result<()>;

    /// Reads the 4 bytes at `address`, a multiple of 4, in one access. Later reads see memory that
    /// is no older.
    fn load32(&self, address: u64) -> io::Result<u32> {
        let mut word = [0; 4];
        self.read(address, &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    /// Writes the 4 bytes at `address`, a multiple of 4, in one access. The controller sees earlier
    /// writes first.
    fn store32(&self, address: u64, value: u32) -> io::Result<()> {
        self.write(address, &value.to_le_bytes())
    }

    /// Reads the 8 bytes at `address`, a multiple of 8, in one access. Later reads see memory that
    /// is no older.
    fn load64(&self, address: u64) -> io::Result<u64> {
        let mut word = [0; 8];
        self.read(address, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
}
