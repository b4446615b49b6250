//! An open device of vfio-pci.

#![expect(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use peerbar_gds::Mapping;

use crate::address_space::AddressSpace;
use crate::binding::Binding;
use crate::error::{Error, Result};
use crate::request::{Argument, Request, size_of_argument};

const GET_REGION_INFO: Request = Request::new("VFIO_DEVICE_GET_REGION_INFO", 108);
const RESET: Request = Request::new("VFIO_DEVICE_RESET", 111);
const FEATURE: Request = Request::new("VFIO_DEVICE_FEATURE", 117);

/// `VFIO_DEVICE_FEATURE_GET | VFIO_DEVICE_FEATURE_DMA_BUF`.
const GET_DMA_BUF: u32 = 1 << 16 | 11;

/// `VFIO_PCI_CONFIG_REGION_INDEX`.
const CONFIG: u32 = 7;

/// Command register, and its bits that decode BARs and let the device start DMA (PCI Local Bus 3.0, 6.2.2).
const COMMAND: u64 = 4;
const MEMORY_SPACE: u8 = 1 << 1;
const BUS_MASTER: u8 = 1 << 2;

/// `struct vfio_region_info`.
#[repr(C)]
#[derive(Debug, Default)]
struct RegionInfo {
    argsz: u32,
    flags: u32,
    index: u32,
    capabilities: u32,
    size: u64,
    offset: u64,
}

/// A part of a dma-buf: bytes of a BAR, in whole pages (`struct vfio_region_dma_range`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaRange {
    /// Its start in the BAR, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// `struct vfio_device_feature` with a `struct vfio_device_feature_dma_buf` of `N` ranges.
#[repr(C)]
#[derive(Debug)]
struct DmaBufFeature<const N: usize> {
    argsz: u32,
    flags: u32,
    region: u32,
    open_flags: u32,
    reserved: u32,
    count: u32,
    ranges: [DmaRange; N],
}

// SAFETY: laid out as the structures that the comments name, with their sizes in their first fields.
unsafe impl Argument for RegionInfo {}
// SAFETY: as above.
unsafe impl<const N: usize> Argument for DmaBufFeature<N> {}

/// A part of a BAR, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarRange {
    /// The BAR, 0 to 5.
    pub bar: u32,
    /// Its start, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// An open device. Closing it resets it and revokes its exports.
#[derive(Debug)]
pub struct VfioDevice {
    file: File,
    /// Closed after the device.
    _space: AddressSpace,
}

impl AddressSpace {
    /// Opens a device, which has this address space until it is closed. Opening and closing reset it.
    ///
    /// # Errors
    /// [`Error::NoGroup`], [`Error::NotViable`], [`Error::NoCharacterDevice`], [`Error::Request`].
    pub fn open(&self, binding: &Binding) -> Result<VfioDevice> {
        Ok(VfioDevice {
            file: self.open_file(binding)?,
            _space: self.clone(),
        })
    }
}

impl VfioDevice {
    /// Returns the size of a BAR in bytes, or 0 if there is none.
    ///
    /// # Errors
    /// [`Error::Request`].
    pub fn bar_size(&self, bar: u32) -> Result<u64> {
        Ok(self.region(bar)?.size)
    }

    /// Maps a part of a BAR.
    ///
    /// # Errors
    /// [`Error::Request`], and [`Error::Memory`].
    pub fn map(&self, range: BarRange) -> Result<Mapping> {
        let offset = self.region(range.bar)?.offset.saturating_add(range.offset);
        let length = range.length;
        Mapping::of_file(&self.file, offset, length)
            .map_err(|source| Error::Memory { length, source })
    }

    /// Exports a part of a BAR as a dma-buf (Linux 6.19 and later with `CONFIG_VFIO_PCI_DMABUF`).
    ///
    /// # Errors
    /// [`Error::Request`].
    pub fn export(&self, range: BarRange) -> Result<OwnedFd> {
        let BarRange {
            bar,
            offset,
            length,
        } = range;
        self.export_ranges(bar, [DmaRange { offset, length }])
    }

    /// Like [`VfioDevice::export`], for several parts of a BAR, which follow each other in the
    /// dma-buf.
    ///
    /// # Errors
    /// [`Error::Request`].
    pub fn export_ranges<const N: usize>(
        &self,
        bar: u32,
        ranges: [DmaRange; N],
    ) -> Result<OwnedFd> {
        let mut feature = DmaBufFeature {
            argsz: size_of_argument::<DmaBufFeature<N>>(),
            flags: GET_DMA_BUF,
            region: bar,
            open_flags: u32::try_from(libc::O_RDWR | libc::O_CLOEXEC).unwrap_or_default(),
            reserved: 0,
            count: u32::try_from(N).unwrap_or(u32::MAX),
            ranges,
        };
        FEATURE.descriptor(&self.file, &mut feature)
    }

    /// Resets it, by a function-level reset if it has one.
    ///
    /// # Errors
    /// [`Error::Request`].
    pub fn reset(&self) -> Result<()> {
        RESET.send(&self.file)
    }

    /// Turns the decoding of its BARs on or off.
    ///
    /// # Errors
    /// [`Error::Request`], and [`Error::File`].
    pub fn decode(&self, on: bool) -> Result<()> {
        self.set_command(MEMORY_SPACE, on)
    }

    /// Allows or forbids it to start DMA.
    ///
    /// # Errors
    /// As for [`VfioDevice::decode`].
    pub fn master(&self, on: bool) -> Result<()> {
        self.set_command(BUS_MASTER, on)
    }

    fn set_command(&self, bit: u8, on: bool) -> Result<()> {
        let at = self.region(CONFIG)?.offset.saturating_add(COMMAND);
        let mut command = [0];
        let read = self.file.read_exact_at(&mut command, at);
        let [old] = command;
        let new = if on { old | bit } else { old & !bit };
        let written = read.and_then(|()| self.file.write_all_at(&[new], at));
        written.map_err(|source| Error::File {
            action: "change the command register by",
            path: "/dev/vfio".into(),
            source,
        })
    }

    /// Reads registers of a BAR by a system call.
    pub(crate) fn read_bar(&self, bar: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let start = self.region(bar).map_err(io::Error::other)?.offset;
        self.file.read_exact_at(data, start.saturating_add(offset))
    }

    /// Writes registers of a BAR by a system call.
    pub(crate) fn write_bar(&self, bar: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        let start = self.region(bar).map_err(io::Error::other)?.offset;
        self.file.write_all_at(data, start.saturating_add(offset))
    }

    fn region(&self, index: u32) -> Result<RegionInfo> {
        let mut info = RegionInfo {
            argsz: size_of_argument::<RegionInfo>(),
            index,
            ..RegionInfo::default()
        };
        GET_REGION_INFO.exchange(&self.file, &mut info)?;
        Ok(info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernel_s() {
        assert_eq!(size_of::<RegionInfo>(), 32);
        assert_eq!(size_of::<DmaBufFeature<1>>(), 8 + 16 + 16);
        assert_eq!(size_of::<DmaBufFeature<3>>(), 8 + 16 + 3 * 16);
    }
}
