//! How a driver reaches a controller.

use std::io;

/// The registers of a controller (NVMe over PCIe 1.0, 3.1).
pub trait Registers {
    /// Reads `data.len()` bytes at `offset`.
    fn read_register(&self, offset: u64, data: &mut [u8]) -> io::Result<()>;

    /// Writes `data` at `offset`.
    fn write_register(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Writes the doorbell at `offset`, which may be reached in another way than other registers.
    fn write_doorbell(&self, offset: u64, value: u32) -> io::Result<()> {
        self.write_register(offset, &value.to_le_bytes())
    }
}

/// Memory that host and controller share, by the addresses that the controller uses.
///
/// Where [`DmaMemory::read`] and [`DmaMemory::write`] transfer an aligned word in one access and in order, as pread(2) and pwrite(2) of a
/// memory file do, nothing else need be implemented.
pub trait DmaMemory {
    /// Copies from the memory at `address`.
    fn read(&self, address: u64, data: &mut [u8]) -> io::Result<()>;

    /// Copies to the memory at `address`.
    fn write(&self, address: u64, data: &[u8]) -> io::Result<()>;

    /// Reads the 4 bytes at `address`, a multiple of 4, in one access. What is read after it is not older.
    fn load32(&self, address: u64) -> io::Result<u32> {
        let mut word = [0; 4];
        self.read(address, &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    /// Writes the 4 bytes at `address`, a multiple of 4, in one access. What was written before it is seen before it.
    fn store32(&self, address: u64, value: u32) -> io::Result<()> {
        self.write(address, &value.to_le_bytes())
    }

    /// Reads the 8 bytes at `address`, a multiple of 8, in one access. What is read after it is not older.
    fn load64(&self, address: u64) -> io::Result<u64> {
        let mut word = [0; 8];
        self.read(address, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
}
