//! I/O address spaces of iommufd.

#![expect(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use peerbar_gds::Mapping;

use crate::binding::Binding;
use crate::error::Result;
use crate::request::{Argument, Request, open, size_of_argument};

const BIND: Request = Request::new("VFIO_DEVICE_BIND_IOMMUFD", 118);
const ATTACH: Request = Request::new("VFIO_DEVICE_ATTACH_IOMMUFD_PT", 119);
const ALLOCATE: Request = Request::new("IOMMU_IOAS_ALLOC", 0x81);
const MAP: Request = Request::new("IOMMU_IOAS_MAP", 0x85);
const UNMAP: Request = Request::new("IOMMU_IOAS_UNMAP", 0x86);
const MAP_FILE: Request = Request::new("IOMMU_IOAS_MAP_FILE", 0x8f);

/// `IOMMU_IOAS_MAP_FIXED_IOVA | IOMMU_IOAS_MAP_WRITEABLE | IOMMU_IOAS_MAP_READABLE`.
const FIXED_READ_AND_WRITE: u32 = 7;

/// `struct vfio_device_bind_iommufd`.
#[repr(C)]
#[derive(Debug, Default)]
struct Bind {
    argsz: u32,
    flags: u32,
    iommufd: i32,
    device: u32,
    token: u64,
}

/// `struct vfio_device_attach_iommufd_pt`.
#[repr(C)]
#[derive(Debug, Default)]
struct Attach {
    argsz: u32,
    flags: u32,
    space: u32,
    pasid: u32,
}

/// `struct iommu_ioas_alloc`.
#[repr(C)]
#[derive(Debug, Default)]
struct Allocate {
    size: u32,
    flags: u32,
    space: u32,
}

/// `struct iommu_ioas_map`.
#[repr(C)]
#[derive(Debug, Default)]
struct Map {
    size: u32,
    flags: u32,
    space: u32,
    reserved: u32,
    address: u64,
    length: u64,
    iova: u64,
}

/// `struct iommu_ioas_map_file`.
#[repr(C)]
#[derive(Debug, Default)]
struct MapFile {
    size: u32,
    flags: u32,
    space: u32,
    file: i32,
    start: u64,
    length: u64,
    iova: u64,
}

/// `struct iommu_ioas_unmap`.
#[repr(C)]
#[derive(Debug, Default)]
struct Unmap {
    size: u32,
    space: u32,
    iova: u64,
    length: u64,
}

// SAFETY: laid out as the structures that the comments name, with their sizes in their first fields; the memory of a `Map`
// is pinned by the kernel.
unsafe impl Argument for Bind {}
// SAFETY: as above.
unsafe impl Argument for Attach {}
// SAFETY: as above.
unsafe impl Argument for Allocate {}
// SAFETY: as above.
unsafe impl Argument for Map {}
// SAFETY: as above.
unsafe impl Argument for MapFile {}
// SAFETY: as above.
unsafe impl Argument for Unmap {}

/// An iommufd with one address space.
#[derive(Clone, Debug)]
pub(crate) struct Iommufd {
    file: Arc<File>,
    space: u32,
}

impl Iommufd {
    pub(crate) fn open() -> Result<Self> {
        let file = open(Path::new("/dev/iommu"))?;
        let mut allocate = Allocate {
            size: size_of_argument::<Allocate>(),
            ..Allocate::default()
        };
        ALLOCATE.exchange(&file, &mut allocate)?;
        Ok(Self {
            file: Arc::new(file),
            space: allocate.space,
        })
    }

    pub(crate) fn open_device(&self, binding: &Binding) -> Result<File> {
        let device = open(&binding.character_device()?)?;
        let mut bind = Bind {
            argsz: size_of_argument::<Bind>(),
            iommufd: self.file.as_raw_fd(),
            ..Bind::default()
        };
        BIND.exchange(&device, &mut bind)?;
        let mut attach = Attach {
            argsz: size_of_argument::<Attach>(),
            space: self.space,
            ..Attach::default()
        };
        let attached = ATTACH.exchange(&device, &mut attach);
        attached.map_err(|error| error.of_interrupts("iommufd"))?;
        Ok(device)
    }

    pub(crate) fn map(&self, iova: u64, memory: &Mapping) -> Result<()> {
        let mut map = Map {
            size: size_of_argument::<Map>(),
            flags: FIXED_READ_AND_WRITE,
            space: self.space,
            address: memory.address(),
            length: memory.size(),
            iova,
            ..Map::default()
        };
        MAP.exchange(&self.file, &mut map)
    }

    pub(crate) fn map_file(&self, iova: u64, file: BorrowedFd<'_>, length: u64) -> Result<()> {
        let mut map = MapFile {
            size: size_of_argument::<MapFile>(),
            flags: FIXED_READ_AND_WRITE,
            space: self.space,
            file: file.as_raw_fd(),
            start: 0,
            length,
            iova,
        };
        MAP_FILE.exchange(&self.file, &mut map)
    }

    pub(crate) fn unmap(&self, iova: u64, length: u64) -> Result<()> {
        let mut unmap = Unmap {
            size: size_of_argument::<Unmap>(),
            space: self.space,
            iova,
            length,
        };
        UNMAP.exchange(&self.file, &mut unmap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernel_s() {
        assert_eq!(size_of::<Bind>(), 24);
        assert_eq!(size_of::<Attach>(), 16);
        assert_eq!(size_of::<Allocate>(), 12);
        assert_eq!((size_of::<Map>(), size_of::<MapFile>()), (40, 40));
        assert_eq!(size_of::<Unmap>(), 24);
    }
}
