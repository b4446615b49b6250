//! Registers of a controller: its BAR 0.

use std::io;
use std::sync::Arc;

use peerbar_gds::Mapping;
use peerbar_nvme_driver::Registers;

use crate::device::{BarRange, VfioDevice};
use crate::error::Result;

/// The BAR with the registers and doorbells (NVMe over PCIe 1.0, 2.1.10).
pub(crate) const BAR: u32 = 0;

/// The way to access registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterAccess {
    /// By a mapping of the BAR: one load or store for each access.
    Mapped,
    /// By pread(2) and pwrite(2) on the device: one system call for each access.
    Calls,
}

/// BAR 0 of a controller.
#[derive(Clone, Debug)]
pub struct RegisterBar {
    device: Arc<VfioDevice>,
    mapping: Option<Arc<Mapping>>,
}

impl RegisterBar {
    /// Makes BAR 0 of `device`.
    ///
    /// # Errors
    /// [`Error::Request`](crate::Error::Request), and [`Error::Memory`](crate::Error::Memory).
    pub fn new(device: Arc<VfioDevice>, access: RegisterAccess) -> Result<Self> {
        let mapping = match access {
            RegisterAccess::Calls => None,
            RegisterAccess::Mapped => {
                let range = BarRange {
                    bar: BAR,
                    offset: 0,
                    length: device.bar_size(BAR)?,
                };
                Some(Arc::new(device.map(range)?))
            }
        };
        Ok(Self { device, mapping })
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &Arc<VfioDevice> {
        &self.device
    }
}

impl Registers for RegisterBar {
    fn read_register(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let Some(mapping) = &self.mapping else {
            return self.device.read_bar(BAR, offset, data);
        };
        for (register, part) in (offset..).step_by(4).zip(data.chunks_mut(4)) {
            for (byte, read) in part.iter_mut().zip(mapping.load32(register)?.to_le_bytes()) {
                *byte = read;
            }
        }
        Ok(())
    }

    fn write_register(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let Some(mapping) = &self.mapping else {
            return self.device.write_bar(BAR, offset, data);
        };
        for (register, part) in (offset..).step_by(4).zip(data.chunks(4)) {
            let word: [u8; 4] = part.try_into().map_err(io::Error::other)?;
            mapping.store32(register, u32::from_le_bytes(word))?;
        }
        Ok(())
    }
}
