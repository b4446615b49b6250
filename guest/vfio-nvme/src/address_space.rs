//! I/O address spaces, which provide the addresses for devices of vfio-pci.

use std::fs::File;
use std::os::fd::BorrowedFd;

use peerbar_gds::Mapping;

use crate::binding::Binding;
use crate::error::{Error, Result};
use crate::iommufd::Iommufd;
use crate::type1::Container;

/// An I/O address space, with the devices that were opened in it. All of them see the same memory
/// at the same addresses.
#[derive(Clone, Debug)]
pub struct AddressSpace(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Type1(Container),
    Iommufd(Iommufd),
}

impl AddressSpace {
    /// Makes a container of VFIO's type 1 (Linux, Documentation/driver-api/vfio.rst). Devices are
    /// opened by their groups.
    ///
    /// # Errors
    /// [`Error::File`], without vfio.
    pub fn type1() -> Result<Self> {
        Container::open().map(Kind::Type1).map(Self)
    }

    /// Makes an address space of iommufd (Linux, Documentation/userspace-api/iommufd.rst). Devices
    /// are opened by their character devices.
    ///
    /// # Errors
    /// [`Error::File`], without iommufd, and [`Error::Request`].
    pub fn iommufd() -> Result<Self> {
        Iommufd::open().map(Kind::Iommufd).map(Self)
    }

    /// Opens a device's file.
    pub(crate) fn open_file(&self, binding: &Binding) -> Result<File> {
        match &self.0 {
            Kind::Type1(container) => container.open_device(binding),
            Kind::Iommufd(iommufd) => iommufd.open_device(binding),
        }
    }

    /// Maps `memory` at `iova` on, until it is unmapped here, even once this process has dropped
    /// its mapping: the kernel pins memory, and keeps the addresses of a BAR. Memory of a BAR is
    /// possible with type 1 only.
    ///
    /// # Errors
    /// [`Error::Request`]: EEXIST for addresses that are in use, EINVAL for reserved ones, EFAULT
    /// or EINVAL for memory of a BAR with iommufd.
    pub fn map(&self, iova: u64, memory: &Mapping) -> Result<()> {
        match &self.0 {
            Kind::Type1(container) => container.map(iova, memory),
            Kind::Iommufd(iommufd) => iommufd.map(iova, memory),
        }
    }

    /// Maps the first `length` bytes of a dma-buf that vfio-pci has exported at `iova` on. The
    /// mapping is revoked together with the dma-buf.
    ///
    /// # Errors
    /// [`Error::NoDmaBufs`] with type 1, and [`Error::Request`].
    pub fn map_dma_buf(&self, iova: u64, dma_buf: BorrowedFd<'_>, length: u64) -> Result<()> {
        match &self.0 {
            Kind::Type1(_) => Err(Error::NoDmaBufs),
            Kind::Iommufd(iommufd) => iommufd.map_file(iova, dma_buf, length),
        }
    }

    /// Unmaps the `length` bytes from `iova` on. Once it returns, no device reaches the memory that
    /// was there.
    ///
    /// # Errors
    /// [`Error::Request`].
    pub fn unmap(&self, iova: u64, length: u64) -> Result<()> {
        match &self.0 {
            Kind::Type1(container) => container.unmap(iova, length),
            Kind::Iommufd(iommufd) => iommufd.unmap(iova, length),
        }
    }
}
