//! Buffers: GPU memory, memory of others that the GPU reaches, and dma-bufs.

use std::fs::File;
use std::ops::{Range, RangeBounds};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use crate::buffer_handle::BufferHandle;
use crate::driver::Driver;
use crate::export_policy::ExportPolicy;
use crate::span::{Span, resolve};
use crate::uapi::{self, Space};
use crate::{Error, Mapping, Result};

/// A range of GPU memory, mapped into this process. Clones are the same range, which is freed with
/// the last of them.
///
/// Memory in use by a transfer is not given to another owner before the transfer has ended, even if
/// it is freed earlier.
#[derive(Clone, Debug)]
pub struct Buffer {
    shared: Arc<SharedBuffer>,
}

/// The state that the clones share.
#[derive(Debug)]
struct SharedBuffer {
    /// Before the memory, so that it is unmapped when the memory is freed.
    mapping: Mapping,
    memory: BufferHandle,
    mmap_offset: u64,
}

/// The location of a part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Offset in VRAM in bytes.
    pub vram_offset: u64,
    /// Its bus address, by which peers access it.
    pub bus_address: u64,
    /// Number of bytes at consecutive addresses from there.
    pub length: u64,
}

impl Buffer {
    /// Allocates with `flags` of [`uapi::Alloc`].
    pub(crate) fn allocate(driver: &Arc<dyn Driver>, size: u64, flags: u32) -> Result<Self> {
        let mut alloc = uapi::Alloc {
            size,
            flags,
            ..uapi::Alloc::default()
        };
        driver
            .alloc(&mut alloc)
            .map_err(|source| Error::driver(format!("allocate {size} bytes of VRAM"), source))?;
        let memory = BufferHandle::new(driver, Space::Vram, alloc.handle, alloc.size);
        let mapping = map(&memory, alloc.mmap_offset)?;
        let shared = SharedBuffer {
            mapping,
            memory,
            mmap_offset: alloc.mmap_offset,
        };
        Ok(Buffer {
            shared: Arc::new(shared),
        })
    }

    /// Returns the size in bytes: the requested size, rounded up to whole pages of the GPU.
    pub fn size(&self) -> u64 {
        self.shared.memory.size
    }

    /// Returns `range` of it, for the GPU's commands.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::Freed`].
    pub fn span(&self, range: impl RangeBounds<u64>) -> Result<Span<'_>> {
        self.shared.memory.span(range)
    }

    /// Returns the mapping through which files are read and written, and through which the
    /// processor loads and stores.
    pub fn mapping(&self) -> &Mapping {
        &self.shared.mapping
    }

    /// Maps it once more, independently of other mappings.
    ///
    /// # Errors
    /// [`Error::Map`]; [`Error::Freed`].
    pub fn map_again(&self) -> Result<Mapping> {
        self.shared.memory.live()?;
        map(&self.shared.memory, self.shared.mmap_offset)
    }

    /// Returns the driver's handle of it. With the descriptor of the [`Gpu`](crate::Gpu) it tells
    /// other drivers which memory to pin.
    ///
    /// # Errors
    /// [`Error::Freed`].
    pub fn handle(&self) -> Result<u32> {
        Ok(self.shared.memory.live()?.handle)
    }

    /// Returns the location of the byte at `offset`.
    ///
    /// # Errors
    /// [`Error::Driver`]; [`Error::Freed`].
    pub fn placement(&self, offset: u64) -> Result<Placement> {
        let memory = &self.shared.memory;
        let mut query = uapi::Query {
            handle: memory.live()?.handle,
            offset,
            ..uapi::Query::default()
        };
        memory.driver.query(&mut query).map_err(|source| {
            Error::driver(
                format!("say where byte {offset} of {memory:?} lies"),
                source,
            )
        })?;
        Ok(Placement {
            vram_offset: query.vram_offset,
            bus_address: query.bus_address,
            length: query.length,
        })
    }

    /// Frees it now, even if there are clones. Mappings stay, and the driver decides the effect of
    /// an access to them: it never reaches memory of another owner. Its spans are refused from now
    /// on. A command that another thread submits at this moment must not use it.
    ///
    /// # Errors
    /// [`Error::Driver`]; [`Error::Freed`].
    pub fn free(&self) -> Result<()> {
        self.shared.memory.free()
    }

    /// Revokes the memory from all its users: mappings, dma-bufs and pins of other drivers.
    ///
    /// # Errors
    /// [`Error::Driver`], with EBUSY and without any effect if an importer holds it by a dma-buf
    /// that is not [`ExportPolicy::Revocable`], with ETIMEDOUT if an importer's fence is late;
    /// [`Error::Freed`].
    pub fn revoke(&self) -> Result<()> {
        let memory = &self.shared.memory;
        memory
            .driver
            .revoke(memory.live()?)
            .map_err(|source| Error::driver(format!("revoke {memory:?}"), source))
    }

    /// Exports it as a dma-buf that is [`ExportPolicy::Revocable`], for other drivers and
    /// processes.
    ///
    /// # Errors
    /// [`Error::Driver`]; [`Error::Freed`].
    pub fn export(&self) -> Result<OwnedFd> {
        self.export_as(ExportPolicy::Revocable)
    }

    /// Exports it as a dma-buf for the importers that `policy` permits. The dma-buf keeps the
    /// memory, even when the buffer is freed.
    ///
    /// # Errors
    /// [`Error::Driver`], with EOPNOTSUPP for a policy other than [`ExportPolicy::Revocable`] if
    /// the aperture is a window: after a reset the driver has to restore the window, and an
    /// importer that cannot be notified would reach nothing until then; [`Error::Freed`].
    pub fn export_as(&self, policy: ExportPolicy) -> Result<OwnedFd> {
        let memory = &self.shared.memory;
        let mut export = uapi::Export {
            handle: memory.live()?.handle,
            policy: policy.code(),
            fd: -1,
            pad: 0,
        };
        memory
            .driver
            .export(&mut export)
            .map_err(|source| Error::driver(format!("export {memory:?}"), source))?;
        Ok(take_descriptor(export.fd))
    }

    /// Returns `range` of it for file I/O, a part of which `driver` may have to do.
    pub(crate) fn resolve(
        &self,
        driver: &Arc<dyn Driver>,
        range: impl RangeBounds<u64>,
    ) -> Result<Range<u64>> {
        self.shared.memory.live_for(driver)?;
        resolve(range, self.size())
    }
}

fn map(memory: &BufferHandle, mmap_offset: u64) -> Result<Mapping> {
    let mapped = Mapping::of_file(memory.driver.file(), mmap_offset, memory.size);
    mapped.map_err(|source| Error::Map {
        what: "VRAM",
        length: memory.size,
        source,
    })
}

#[expect(unsafe_code)]
fn take_descriptor(fd: i32) -> OwnedFd {
    // SAFETY: the driver has made this descriptor for the request that has just succeeded, so
    // nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Memory outside the GPU that its engines can access: the host's own, or p2pmem of another device.
#[derive(Clone, Debug)]
pub struct HostBuffer {
    shared: Arc<SharedHostBuffer>,
}

/// The state that the clones share.
#[derive(Debug)]
struct SharedHostBuffer {
    /// Before the mapping: the GPU must lose the memory before this process returns it.
    memory: BufferHandle,
    mapping: Mapping,
}

impl HostBuffer {
    pub(crate) fn allocate(driver: &Arc<dyn Driver>, size: u64) -> Result<Self> {
        let mapping = Mapping::anonymous(size).map_err(|source| Error::Map {
            what: "host memory",
            length: size,
            source,
        })?;
        HostBuffer::register(driver, mapping)
    }

    pub(crate) fn of_file(driver: &Arc<dyn Driver>, file: &File, size: u64) -> Result<Self> {
        let mapping = Mapping::of_file(file, 0, size).map_err(|source| Error::Map {
            what: "another device's memory",
            length: size,
            source,
        })?;
        HostBuffer::register(driver, mapping)
    }

    #[expect(unsafe_code)]
    fn register(driver: &Arc<dyn Driver>, mapping: Mapping) -> Result<Self> {
        let mut register = uapi::Register {
            address: mapping.address(),
            size: mapping.size(),
            ..uapi::Register::default()
        };
        // SAFETY: there are no references into a `Mapping`, and this one is unmapped after the
        // handle is freed.
        let registered = unsafe { driver.register(&mut register) };
        registered.map_err(|source| {
            Error::driver(
                format!("take {} bytes of memory for its DMA", mapping.size()),
                source,
            )
        })?;
        let memory = BufferHandle::new(driver, Space::Host, register.handle, mapping.size());
        Ok(HostBuffer {
            shared: Arc::new(SharedHostBuffer { memory, mapping }),
        })
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.shared.memory.size
    }

    /// Returns `range` of it, for the GPU's commands.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn span(&self, range: impl RangeBounds<u64>) -> Result<Span<'_>> {
        self.shared.memory.span(range)
    }

    /// Returns the mapping through which the processor loads and stores.
    pub fn mapping(&self) -> &Mapping {
        &self.shared.mapping
    }
}

/// Memory behind a dma-buf of another exporter. This process has no mapping of it.
#[derive(Clone, Debug)]
pub struct ImportedBuffer {
    memory: Arc<BufferHandle>,
}

impl ImportedBuffer {
    pub(crate) fn import(driver: &Arc<dyn Driver>, dma_buf: impl AsFd) -> Result<Self> {
        let mut import = uapi::Import {
            fd: dma_buf.as_fd().as_raw_fd(),
            ..uapi::Import::default()
        };
        driver
            .import(&mut import)
            .map_err(|source| Error::driver("import the dma-buf", source))?;
        let memory = BufferHandle::new(driver, Space::DmaBuf, import.handle, import.size);
        Ok(ImportedBuffer {
            memory: Arc::new(memory),
        })
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.memory.size
    }

    /// Returns `range` of it, for the GPU's commands.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn span(&self, range: impl RangeBounds<u64>) -> Result<Span<'_>> {
        self.memory.span(range)
    }
}
