//! Memory of the host or of a GPU, registered with an adapter.

use std::fmt;
use std::rc::Rc;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use peerbar_gds::Mapping;
use peerbar_gds::{Buffer, ExportPolicy, Gpu};
use peerbar_rdma_end::Answer;
use peerbar_verbs::{AccessFlags, CompletionMemory, ProtectionDomain, Region};

/// Page size of the guest.
pub(crate) const PAGE: u64 = 4096;
/// Address of the first byte of a GPU's memory in work requests.
pub(crate) const VRAM_ADDRESS: u64 = 0x7000_0000_0000;

/// The same for spare memory, far from the first.
pub(crate) const SPARE_ADDRESS: u64 = 0x7100_0000_0000;

/// Path of the GPUs' device files, without their numbers.
const GPU_FILE: &str = "/dev/peerbar-gpu";

/// The owner of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    /// The guest's RAM.
    Host,
    /// The GPU with this number in the name of its device file.
    Vram(u32),
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Vram(number) => number.fmt(f),
        }
    }
}

impl FromStr for MemoryKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix(GPU_FILE).unwrap_or(text);
        match number.parse() {
            Ok(number) => Ok(Self::Vram(number)),
            Err(_) if text == "host" => Ok(Self::Host),
            Err(_) => Err(format!(
                "it is `host`, a GPU's device file such as {GPU_FILE}0, or its number"
            )),
        }
    }
}

/// Memory that the processor can read and write.
pub(crate) enum Memory {
    /// The guest's RAM.
    Host(Rc<Mapping>),
    /// A GPU's memory. The GPU stays open as long as its buffer.
    Vram(Buffer, Gpu),
}

impl Memory {
    /// Allocates at least `size` bytes.
    pub(crate) fn new(kind: MemoryKind, size: u64) -> anyhow::Result<Self> {
        let size = size.next_multiple_of(PAGE);
        Ok(match kind {
            MemoryKind::Host => Self::Host(Rc::new(Mapping::private(size)?)),
            MemoryKind::Vram(number) => {
                let gpu = Gpu::open(number)?;
                Self::Vram(gpu.allocate(size)?, gpu)
            }
        })
    }

    /// Returns the size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.mapping().size()
    }

    /// Registers all of it. A GPU's memory is pinned until the region is dropped.
    pub(crate) fn register(
        &self,
        domain: &ProtectionDomain,
        access: AccessFlags,
    ) -> anyhow::Result<Region> {
        self.register_at(VRAM_ADDRESS, domain, access)
    }

    /// Returns the same, with the address `first` of the first byte of a GPU's memory in work
    /// requests.
    pub(crate) fn register_at(
        &self,
        first: u64,
        domain: &ProtectionDomain,
        access: AccessFlags,
    ) -> anyhow::Result<Region> {
        Ok(match self {
            Self::Host(mapping) => Region::of_memory(domain, mapping.clone(), access)?,
            Self::Vram(buffer, _) => {
                let dma_buf = buffer.export_as(ExportPolicy::Pinned)?;
                let region = Region::of_dma_buf(domain, dma_buf, buffer.size(), first, access);
                region.context(
                    "the adapter's driver does not take the GPU's memory; if the kernel refuses peer-to-peer DMA between the \
                     two, `peerbar explain GPU NIC` says why",
                )?
            }
        })
    }

    /// Writes `bytes` at `offset`, by the processor.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.mapping().write(offset, bytes)?)
    }

    /// Checks that it contains `wanted` at `offset`, by the processor.
    pub(crate) fn expect(&self, offset: u64, wanted: &[u8]) -> anyhow::Result<()> {
        self.expect_either(offset, wanted, wanted)
    }

    /// Checks that each byte at `offset` is that of `one` or of `other`, by the processor.
    pub(crate) fn expect_either(
        &self,
        offset: u64,
        one: &[u8],
        other: &[u8],
    ) -> anyhow::Result<()> {
        let mut seen = vec![0; one.len()];
        self.mapping().read(offset, &mut seen)?;
        let differs = seen
            .iter()
            .zip(one.iter().zip(other))
            .position(|(seen, (one, other))| seen != one && seen != other);
        ensure!(
            differs.is_none(),
            "byte {} of {} is wrong",
            differs.unwrap_or(0),
            one.len()
        );
        Ok(())
    }

    /// Returns its GPU buffer.
    pub(crate) fn buffer(&self) -> anyhow::Result<&Buffer> {
        self.vram().map(|(buffer, _)| buffer)
    }

    /// Returns the GPU whose memory it is.
    pub(crate) fn gpu(&self) -> anyhow::Result<&Gpu> {
        self.vram().map(|(_, gpu)| gpu)
    }

    fn vram(&self) -> anyhow::Result<(&Buffer, &Gpu)> {
        match self {
            Self::Host(_) => bail!("files are read and written by memory of a GPU only"),
            Self::Vram(buffer, gpu) => Ok((buffer, gpu)),
        }
    }

    /// Returns its mapping.
    pub(crate) fn mapping(&self) -> &Mapping {
        match self {
            Self::Host(mapping) => mapping,
            Self::Vram(buffer, _) => buffer.mapping(),
        }
    }
}

impl CompletionMemory for Memory {
    fn mapping(&self) -> &Mapping {
        self.mapping()
    }
}

/// Converts the result of a comparison of memory.
pub(crate) fn compared(memory: anyhow::Result<()>) -> Answer {
    match memory {
        Ok(()) => Answer::Done,
        Err(error) => Answer::Differs {
            reason: format!("{error:#}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_the_host_s_or_of_a_numbered_gpu() {
        assert_eq!("host".parse(), Ok(MemoryKind::Host));
        assert_eq!("3".parse(), Ok(MemoryKind::Vram(3)));
        assert_eq!("/dev/peerbar-gpu3".parse(), Ok(MemoryKind::Vram(3)));
        assert!("gpu0".parse::<MemoryKind>().is_err());
        for kind in [MemoryKind::Host, MemoryKind::Vram(3)] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
    }

    #[test]
    fn byte_that_differs_is_named() {
        let memory = Memory::new(MemoryKind::Host, 100).unwrap();
        assert_eq!(memory.size(), PAGE);
        memory.write(10, &[1, 2, 3]).unwrap();
        memory.expect(10, &[1, 2, 3]).unwrap();
        let error = memory.expect(10, &[1, 2, 4]).unwrap_err().to_string();
        assert_eq!(error, "byte 2 of 3 is wrong");
    }
}
