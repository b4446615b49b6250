//! Containers of VFIO's type 1, and groups.

#![expect(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use peerbar_gds::Mapping;

use crate::binding::Binding;
use crate::error::{Error, Result};
use crate::request::{Argument, Request, open, size_of_argument};

const SET_IOMMU: Request = Request::new("VFIO_SET_IOMMU", 102);
const GROUP_GET_STATUS: Request = Request::new("VFIO_GROUP_GET_STATUS", 103);
const GROUP_SET_CONTAINER: Request = Request::new("VFIO_GROUP_SET_CONTAINER", 104);
const GROUP_GET_DEVICE: Request = Request::new("VFIO_GROUP_GET_DEVICE_FD", 106);
const MAP_DMA: Request = Request::new("VFIO_IOMMU_MAP_DMA", 113);
const UNMAP_DMA: Request = Request::new("VFIO_IOMMU_UNMAP_DMA", 114);

/// `VFIO_TYPE1v2_IOMMU`.
const TYPE1_V2: libc::c_ulong = 3;
/// `VFIO_GROUP_FLAGS_VIABLE`.
const VIABLE: u32 = 1;
/// `VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE`.
const READ_AND_WRITE: u32 = 3;

/// `struct vfio_group_status`.
#[repr(C)]
#[derive(Debug)]
struct GroupStatus {
    argsz: u32,
    flags: u32,
}

/// `struct vfio_iommu_type1_dma_map`.
#[repr(C)]
#[derive(Debug)]
struct DmaMap {
    argsz: u32,
    flags: u32,
    address: u64,
    iova: u64,
    size: u64,
}

/// `struct vfio_iommu_type1_dma_unmap`.
#[repr(C)]
#[derive(Debug)]
struct DmaUnmap {
    argsz: u32,
    flags: u32,
    iova: u64,
    size: u64,
}

// SAFETY: laid out as the structures that the comments name, with their sizes in `argsz`; the memory of a `DmaMap` is
// pinned by the kernel, or a BAR's.
unsafe impl Argument for GroupStatus {}
// SAFETY: as above.
unsafe impl Argument for DmaMap {}
// SAFETY: as above.
unsafe impl Argument for DmaUnmap {}

/// A container with its groups.
#[derive(Clone, Debug)]
pub(crate) struct Container(Arc<Groups>);

#[derive(Debug)]
struct Groups {
    container: File,
    /// The open groups, by number: each can be opened once.
    groups: Mutex<BTreeMap<String, File>>,
}

impl Container {
    pub(crate) fn open() -> Result<Self> {
        let container = open(Path::new("/dev/vfio/vfio"))?;
        let groups = Mutex::default();
        Ok(Self(Arc::new(Groups { container, groups })))
    }

    pub(crate) fn open_device(&self, binding: &Binding) -> Result<File> {
        let mut groups = self.0.groups.lock();
        let number = binding.group()?;
        if !groups.contains_key(&number) {
            let group = self.open_group(&number)?;
            if groups.is_empty() {
                let set = SET_IOMMU.send_number(&self.0.container, TYPE1_V2);
                set.map_err(|error| error.of_interrupts("vfio_iommu_type1"))?;
            }
            groups.insert(number.clone(), group);
        }
        let group = groups
            .get(&number)
            .ok_or(Error::NotViable { group: number })?;
        let mut name = [0; 16];
        for (to, byte) in name.iter_mut().zip(binding.address().bytes().take(15)) {
            *to = byte;
        }
        GROUP_GET_DEVICE
            .descriptor(group, &mut name)
            .map(File::from)
    }

    fn open_group(&self, number: &str) -> Result<File> {
        let group = open(&Path::new("/dev/vfio").join(number))?;
        let mut status = GroupStatus {
            argsz: size_of_argument::<GroupStatus>(),
            flags: 0,
        };
        GROUP_GET_STATUS.exchange(&group, &mut status)?;
        if status.flags & VIABLE == 0 {
            return Err(Error::NotViable {
                group: number.to_owned(),
            });
        }
        let mut container = self.0.container.as_raw_fd();
        GROUP_SET_CONTAINER.exchange(&group, &mut container)?;
        Ok(group)
    }

    pub(crate) fn map(&self, iova: u64, memory: &Mapping) -> Result<()> {
        let mut map = DmaMap {
            argsz: size_of_argument::<DmaMap>(),
            flags: READ_AND_WRITE,
            address: memory.address(),
            iova,
            size: memory.size(),
        };
        MAP_DMA.exchange(&self.0.container, &mut map)
    }

    pub(crate) fn unmap(&self, iova: u64, size: u64) -> Result<()> {
        let mut unmap = DmaUnmap {
            argsz: size_of_argument::<DmaUnmap>(),
            flags: 0,
            iova,
            size,
        };
        UNMAP_DMA.exchange(&self.0.container, &mut unmap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernel_s() {
        assert_eq!(size_of::<GroupStatus>(), 8);
        assert_eq!(size_of::<DmaMap>(), 32);
        assert_eq!(size_of::<DmaUnmap>(), 24);
    }
}
