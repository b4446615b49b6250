//! The memory that the GPU's engines can access: VRAM, and everything else by DMA.

use std::sync::Arc;

use peerbar_dma::{
    Buffer, DoorbellEvent, MemoryFile, Origin, Purpose, RegisterValue, Requester, Tag,
};
use peerbar_fault::{Action, Kind};
use peerbar_pci::Iova;

use crate::faults::{Fault, FaultCode};

/// An address in one of the two address spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuAddress {
    /// An offset in VRAM.
    Vram(u64),
    /// An IOVA, which is reached by DMA.
    Bus(Iova),
}

impl GpuAddress {
    /// Returns the number itself.
    pub(crate) fn raw(self) -> u64 {
        match self {
            Self::Vram(offset) => offset,
            Self::Bus(address) => address.0,
        }
    }

    /// Returns the address `bytes` further on. The caller has checked that it exists.
    pub(crate) fn after(self, bytes: u64) -> Self {
        match self {
            Self::Vram(offset) => Self::Vram(offset.saturating_add(bytes)),
            Self::Bus(address) => Self::Bus(address.saturating_add(bytes)),
        }
    }

    /// Returns `true` if it is reached by DMA.
    pub(crate) fn is_bus(self) -> bool {
        matches!(self, Self::Bus(_))
    }

    /// Returns `true` if `len` bytes from here on are all inside VRAM, or inside the address space.
    pub(crate) fn holds(self, len: u64, vram_bytes: u64) -> bool {
        match self {
            Self::Vram(offset) => offset.checked_add(len).is_some_and(|end| end <= vram_bytes),
            Self::Bus(address) => len == 0 || address.checked_add(len - 1).is_some(),
        }
    }
}

/// VRAM, and DMA by the requester.
pub(crate) struct GpuMemory {
    vram: Arc<MemoryFile>,
    requester: Arc<Requester>,
    origin: Origin,
}

impl GpuMemory {
    pub(crate) fn new(vram: Arc<MemoryFile>, requester: Arc<Requester>) -> Self {
        Self {
            vram,
            requester,
            origin: Origin::Device,
        }
    }

    /// Sets the command for which memory is used from now on.
    pub(crate) fn begin(&mut self, origin: Origin) {
        self.origin = origin;
    }

    /// Returns the command for which memory is used.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Records a new value of a channel's doorbell.
    pub(crate) fn note_doorbell(&self, event: impl FnOnce() -> DoorbellEvent) {
        self.requester.ledger().doorbell(event);
    }

    /// Returns the fault that a rule injects into the command with this opcode, of this channel.
    pub(crate) fn injected(&self, opcode: u8, channel: u8) -> Option<Action> {
        let faults = self.requester.faults();
        if !faults.is_armed(Kind::GpuCommand) {
            return None;
        }
        let fired = faults.gpu_command(opcode, channel)?;
        self.requester.note_injected(self.origin, &fired);
        Some(fired.action)
    }

    /// Records the begin of the command in progress.
    pub(crate) fn note_begin(&self, opcode: u8) {
        self.requester.ledger().begin(self.origin, opcode);
    }

    /// Records the end of that command; the status is 0 if it succeeded.
    pub(crate) fn note_end(&self, status: u16) {
        self.requester.ledger().end(self.origin, status);
    }

    /// Returns VRAM.
    #[cfg(feature = "stepped")]
    pub(crate) fn vram(&self) -> &Arc<MemoryFile> {
        &self.vram
    }

    /// Returns the size of VRAM in bytes.
    pub(crate) fn vram_bytes(&self) -> u64 {
        self.vram.size()
    }

    /// Returns the requester of its DMA.
    pub(crate) fn requester(&self) -> &Requester {
        &self.requester
    }

    /// Checks that a command may use `len` bytes at `address`.
    pub(crate) fn check(&self, address: GpuAddress, len: u64, write: bool) -> Result<(), Fault> {
        if address.holds(len, self.vram.size()) {
            return Ok(());
        }
        Err(Fault {
            code: match address {
                GpuAddress::Vram(_) => FaultCode::VramRange,
                GpuAddress::Bus(_) => FaultCode::Dma,
            },
            write,
            address: address.raw(),
        })
    }

    /// Reads all of `data`.
    pub(crate) fn read(
        &self,
        purpose: Purpose,
        address: GpuAddress,
        data: &mut [u8],
    ) -> Result<(), Fault> {
        self.access(purpose, address, Buffer::Read(data))
    }

    /// Writes all of `data`.
    pub(crate) fn write(
        &self,
        purpose: Purpose,
        address: GpuAddress,
        data: &[u8],
    ) -> Result<(), Fault> {
        self.access(purpose, address, Buffer::Write(data))
    }

    /// Writes a register of another device, or a word of memory, at a bus address.
    pub(crate) fn write_register(&self, address: Iova, value: RegisterValue) -> Result<(), Fault> {
        let written = self.requester.write_register(self.origin, address, value);
        written.map_err(|error| Fault {
            code: FaultCode::Dma,
            write: true,
            address: error.address.0,
        })
    }

    fn access(&self, purpose: Purpose, address: GpuAddress, data: Buffer<'_>) -> Result<(), Fault> {
        let write = matches!(data, Buffer::Write(_));
        let fault = |code, failed_at| Fault {
            code,
            write,
            address: failed_at,
        };
        match address {
            GpuAddress::Vram(offset) => {
                let done = self.vram.access(offset, data);
                done.map_err(|_| fault(FaultCode::VramRange, offset))
            }
            GpuAddress::Bus(address) => {
                let tag = Tag::new(purpose, self.origin);
                let done = self.requester.access(tag, address, data);
                done.map_err(|error| fault(FaultCode::Dma, error.address.0))
            }
        }
    }

    /// Zeroes memory of VRAM; whole pages free their host memory.
    pub(crate) fn zero(&self, offset: u64, len: u64) -> Result<(), Fault> {
        self.vram.zero(offset, len).map_err(|_| Fault {
            code: FaultCode::VramRange,
            write: true,
            address: offset,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> GpuMemory {
        let vram = Arc::new(MemoryFile::create("test", 4096).unwrap());
        GpuMemory::new(vram, Arc::new(Requester::new()))
    }

    #[test]
    fn a_range_that_leaves_vram_or_wraps_around_is_a_fault() {
        let memory = memory();
        for (address, len) in [
            (GpuAddress::Vram(0), 4096),
            (GpuAddress::Vram(4096), 0),
            (GpuAddress::Bus(Iova(u64::MAX)), 1),
            (GpuAddress::Bus(Iova(u64::MAX)), 0),
        ] {
            assert_eq!(
                memory.check(address, len, false),
                Ok(()),
                "{address:x?}+{len}"
            );
        }
        for (address, len, code) in [
            (GpuAddress::Vram(1), 4096, FaultCode::VramRange),
            (GpuAddress::Vram(u64::MAX), 2, FaultCode::VramRange),
            (GpuAddress::Vram(4097), 0, FaultCode::VramRange),
            (GpuAddress::Bus(Iova(u64::MAX)), 2, FaultCode::Dma),
        ] {
            let fault = memory.check(address, len, true).unwrap_err();
            assert_eq!((fault.code, fault.address), (code, address.raw()));
            assert!(fault.write);
        }
    }

    #[test]
    fn a_refused_dma_is_a_fault_at_its_address() {
        let fault = memory()
            .read(Purpose::Payload, GpuAddress::Bus(Iova(0x1000)), &mut [0; 8])
            .unwrap_err();
        assert_eq!(
            fault,
            Fault {
                code: FaultCode::Dma,
                write: false,
                address: 0x1000
            }
        );
    }
}
