//! The configuration space: a type 0 header (PCI Local Bus 3.0, 6.1), a PCI Express capability
//! with function-level reset, and MSI-X with one vector.

use crate::registers::{MEMORY_BAR, MEMORY_BYTES};

/// Size of the configuration space in bytes.
pub(crate) const BYTES: usize = 4096;
/// Size of BAR 0: the registers, then the table and the pending bits of MSI-X.
pub(crate) const REGISTER_BAR_BYTES: u32 = 8 << 10;

const COMMAND: usize = 0x04;
const MASTER: u8 = 1 << 2;
const BAR0: usize = 0x10;
const BAR2: usize = BAR0 + 4 * MEMORY_BAR as usize;
const EXPRESS: usize = 0x40;
const DEVICE_CONTROL: usize = EXPRESS + 8;
const MSI_X: usize = 0x80;
/// Device Control bit 15, in its second byte: Initiate Function Level Reset (PCIe Base 6.0,
/// 7.5.3.4).
const RESET: u8 = 1 << 7;

/// The configuration space, and the bits of it that a client may write.
pub(crate) struct ConfigSpace {
    bytes: [u8; BYTES],
    writable: [u8; BYTES],
}

/// Returns a configuration space in its state after a reset.
impl Default for ConfigSpace {
    fn default() -> Self {
        let mut space = Self {
            bytes: [0; BYTES],
            writable: [0; BYTES],
        };
        // Vendor 1234 is not assigned; class 12 is a processing accelerator.
        space.set(0x00, &[0x34, 0x12, 0xcc, 0xc0]);
        space.set(COMMAND, &[0, 0, 0x10, 0]);
        space.set(0x08, &[1, 0, 0, 0x12]);
        space.set(0x2c, &[0x34, 0x12, 1, 0]);
        space.set(0x34, &[0x40]);
        // Memory that can be prefetched, with a 64-bit address.
        space.set(BAR2, &[0b1100]);
        // PCI Express: version 2, an endpoint, with function-level reset.
        space.set(EXPRESS, &[0x10, 0x80, 0x02, 0, 0, 0, 0, 0x10]);
        // MSI-X: one vector; its table is in BAR 0 at 4 KiB, its pending bits at 6 KiB.
        space.set(MSI_X, &[0x11, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x18, 0, 0]);
        space.let_write(COMMAND, &[0b110, 0b100]);
        space.let_write(0x3c, &[0xff]);
        space.let_write(BAR0, &(!(REGISTER_BAR_BYTES - 1)).to_le_bytes());
        space.let_write(BAR2, &(!u64::from(MEMORY_BYTES - 1)).to_le_bytes());
        space.let_write(DEVICE_CONTROL, &[0xff, 0x7f]);
        space.let_write(MSI_X + 2, &[0, 0xc0]);
        space
    }
}

impl ConfigSpace {
    fn set(&mut self, at: usize, values: &[u8]) {
        for (byte, value) in self.bytes.iter_mut().skip(at).zip(values) {
            *byte = *value;
        }
    }

    fn let_write(&mut self, at: usize, bits: &[u8]) {
        for (mask, bits) in self.writable.iter_mut().skip(at).zip(bits) {
            *mask = *bits;
        }
    }

    /// Reads from `offset` on. There are zeros behind the end.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let at = usize::try_from(offset).unwrap_or(BYTES);
        for (byte, value) in data.iter_mut().zip(self.bytes.iter().skip(at)) {
            *byte = *value;
        }
    }

    /// Writes the bits that can be written. Returns `true` if they request a function-level reset.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> bool {
        let at = usize::try_from(offset).unwrap_or(BYTES);
        let places = self.bytes.iter_mut().zip(&self.writable).skip(at);
        for ((byte, mask), value) in places.zip(data) {
            *byte = (*byte & !mask) | (value & mask);
        }
        let control = (DEVICE_CONTROL + 1).checked_sub(at);
        let control = control.and_then(|control| data.get(control));
        control.is_some_and(|control| control & RESET != 0)
    }

    /// Returns `true` if bus mastering is on.
    pub(crate) fn is_master(&self) -> bool {
        self.bytes.get(COMMAND).is_some_and(|low| low & MASTER != 0)
    }

    /// Returns the bus address of the device's own memory.
    pub(crate) fn memory_address(&self) -> u64 {
        let mut address = [0; 8];
        self.read(BAR2 as u64, &mut address);
        u64::from_le_bytes(address) & !0xf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_answers_sizing_with_its_size() {
        let mut space = ConfigSpace::default();
        assert!(!space.write(BAR0 as u64, &[0xff; 4]));
        assert!(!space.write(BAR2 as u64, &[0xff; 8]));
        let mut bars = [0; 16];
        space.read(BAR0 as u64, &mut bars);
        let expected = [
            0x00, 0xe0, 0xff, 0xff, 0, 0, 0, 0, 0x0c, 0, 0xe0, 0xff, 0xff, 0xff, 0xff, 0xff,
        ];
        assert_eq!(bars, expected);
    }

    #[test]
    fn bit_of_device_control_requests_a_reset_and_is_not_kept() {
        let mut space = ConfigSpace::default();
        assert!(!space.write(DEVICE_CONTROL as u64, &[0x10, 0x20]));
        assert!(space.write(DEVICE_CONTROL as u64, &[0x10, 0xa0]));
        assert!(space.write(DEVICE_CONTROL as u64 + 1, &[0x80]));
        let mut control = [0; 2];
        space.read(DEVICE_CONTROL as u64, &mut control);
        assert_eq!(control, [0x10, 0]);
    }
}
