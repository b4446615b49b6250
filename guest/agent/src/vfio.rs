//! A PCI device in the hands of vfio-pci, as a program that drives it has it (Linux, include/uapi/linux/vfio.h).

#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::mapped_buffer::MappedBuffer;

const fn request(number: libc::c_ulong) -> libc::c_ulong {
    (b';' as libc::c_ulong) << 8 | number
}

const SET_IOMMU: libc::c_ulong = request(102);
const GROUP_GET_STATUS: libc::c_ulong = request(103);
const GROUP_SET_CONTAINER: libc::c_ulong = request(104);
const GROUP_GET_DEVICE: libc::c_ulong = request(106);
const GET_REGION_INFO: libc::c_ulong = request(108);
const RESET: libc::c_ulong = request(111);
const FEATURE: libc::c_ulong = request(117);

/// `VFIO_TYPE1v2_IOMMU`.
const TYPE1: i32 = 3;
/// `VFIO_GROUP_FLAGS_VIABLE`.
const VIABLE: u32 = 1;
/// `VFIO_DEVICE_FEATURE_GET | VFIO_DEVICE_FEATURE_DMA_BUF`.
const GET_DMA_BUF: u32 = 1 << 16 | 11;

/// Regions: BAR 2, where a GPU has its aperture, and configuration space.
const APERTURE: u32 = 2;
const CONFIG: u32 = 7;

/// Command register, and its bit that has BARs decoded (PCI Local Bus 3.0, 6.2.2).
const COMMAND: u64 = 4;
const MEMORY_SPACE: u8 = 1 << 1;

#[repr(C)]
#[derive(Debug, Default)]
struct GroupStatus {
    size: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Debug, Default)]
struct RegionInfo {
    size_of_this: u32,
    flags: u32,
    index: u32,
    capabilities: u32,
    size: u64,
    offset: u64,
}

/// `struct vfio_device_feature` with a `struct vfio_device_feature_dma_buf` of one range.
#[repr(C)]
#[derive(Debug, Default)]
struct DmaBufFeature {
    size: u32,
    flags: u32,
    region: u32,
    open_flags: u32,
    reserved: u32,
    ranges: u32,
    offset: u64,
    length: u64,
}

/// A device that vfio-pci has in place of its own driver.
#[derive(Debug)]
pub(crate) struct Lent {
    pci: PathBuf,
}

impl Lent {
    /// Takes the device with this directory in sysfs away from its driver.
    pub(crate) fn take(pci: &Path) -> anyhow::Result<Self> {
        let lent = Lent {
            pci: pci.to_path_buf(),
        };
        lent.bind("vfio-pci")?;
        let driver = fs::read_link(pci.join("driver")).unwrap_or_default();
        ensure!(
            driver.ends_with("vfio-pci"),
            "vfio-pci does not take {}",
            pci.display()
        );
        Ok(lent)
    }

    /// Gives it back. It must not be open.
    pub(crate) fn give_back(self) -> anyhow::Result<()> {
        self.bind("\n")
    }

    /// Unbinds it, and has the driver of that name take it; a line's end stands for any that knows the device.
    fn bind(&self, driver: &str) -> anyhow::Result<()> {
        let address = self.address()?;
        write(&self.pci.join("driver_override"), driver)?;
        write(&self.pci.join("driver/unbind"), &address)?;
        write(Path::new("/sys/bus/pci/drivers_probe"), &address)
    }

    fn address(&self) -> anyhow::Result<String> {
        let name = self
            .pci
            .file_name()
            .context("a device without an address")?;
        Ok(name.to_string_lossy().into_owned())
    }

    /// Opens it. It is one user's alone, as is all of its IOMMU group.
    pub(crate) fn open(&self) -> anyhow::Result<VfioDevice> {
        let container = open(Path::new("/dev/vfio/vfio"))?;
        let group = self.open_group()?;
        set(&group, GROUP_SET_CONTAINER, &container.as_raw_fd())
            .context("the group gets no container")?;
        // SAFETY: the request takes a plain number.
        answer(unsafe { libc::ioctl(container.as_raw_fd(), SET_IOMMU, TYPE1) })
            .context("the container gets no IOMMU of type 1")?;
        let name = CString::new(self.address()?)?;
        // SAFETY: the request reads a string up to its final zero.
        let device = unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE, name.as_ptr()) };
        let device = take(device).with_context(|| format!("the group does not open {name:?}"))?;
        Ok(VfioDevice {
            device: File::from(device),
            _group: group,
            _container: container,
        })
    }

    fn open_group(&self) -> anyhow::Result<File> {
        let link = self.pci.join("iommu_group");
        let group = fs::read_link(&link)
            .context("the device has no IOMMU group: vfio-pci needs an IOMMU in the guest")?;
        let number = group.file_name().context("a group without a number")?;
        let file = open(&Path::new("/dev/vfio").join(number))?;
        let mut status = GroupStatus {
            size: u32::try_from(size_of::<GroupStatus>())?,
            ..GroupStatus::default()
        };
        ask(&file, GROUP_GET_STATUS, &mut status).context("cannot get the group's status")?;
        ensure!(
            status.flags & VIABLE != 0,
            "IOMMU group {} has other devices with drivers of their own; vfio-pci needs all of a group: put the device below \
             a port of its own",
            number.display()
        );
        Ok(file)
    }
}

/// A device that is open. Closing it revokes what was exported of it.
#[derive(Debug)]
pub(crate) struct VfioDevice {
    device: File,
    /// After the device, which belongs to it.
    _group: File,
    _container: File,
}

impl VfioDevice {
    /// The first `length` bytes of its aperture as a dma-buf.
    pub(crate) fn export(&self, length: u64) -> anyhow::Result<OwnedFd> {
        let mut feature = DmaBufFeature {
            size: u32::try_from(size_of::<DmaBufFeature>())?,
            flags: GET_DMA_BUF,
            region: APERTURE,
            open_flags: u32::try_from(libc::O_RDWR | libc::O_CLOEXEC)?,
            ranges: 1,
            length,
            ..DmaBufFeature::default()
        };
        // SAFETY: as for `ask`; the request answers with a new descriptor.
        let made = unsafe { libc::ioctl(self.device.as_raw_fd(), FEATURE, &raw mut feature) };
        take(made)
            .context("vfio-pci exports no dma-buf; it takes Linux 6.19 with CONFIG_VFIO_PCI_DMABUF")
    }

    /// The first `length` bytes of its aperture, mapped.
    pub(crate) fn aperture(&self, length: usize) -> anyhow::Result<MappedBuffer> {
        let offset = self.region(APERTURE)?.offset;
        MappedBuffer::shared(&self.device, offset, length).context("cannot map the aperture")
    }

    /// Resets it.
    pub(crate) fn reset(&self) -> anyhow::Result<()> {
        // SAFETY: the request takes no argument.
        answer(unsafe { libc::ioctl(self.device.as_raw_fd(), RESET) })
            .context("vfio-pci does not reset the device")
    }

    /// Turns the decoding of its BARs on or off.
    pub(crate) fn decode(&self, on: bool) -> anyhow::Result<()> {
        let at = self.region(CONFIG)?.offset.saturating_add(COMMAND);
        let mut command = [0];
        self.device.read_exact_at(&mut command, at)?;
        let [old] = command;
        let new = if on {
            old | MEMORY_SPACE
        } else {
            old & !MEMORY_SPACE
        };
        self.device
            .write_all_at(&[new], at)
            .context("cannot write the command register")
    }

    fn region(&self, index: u32) -> anyhow::Result<RegionInfo> {
        let mut info = RegionInfo {
            size_of_this: u32::try_from(size_of::<RegionInfo>())?,
            index,
            ..RegionInfo::default()
        };
        ask(&self.device, GET_REGION_INFO, &mut info)
            .with_context(|| format!("vfio-pci gives no information on region {index}"))?;
        Ok(info)
    }
}

fn open(path: &Path) -> anyhow::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.with_context(|| format!("cannot open {}", path.display()))
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {text:?} to {}", file.display()))
}

/// A request that reads and writes `argument`, which says itself how long it is.
fn ask<T>(file: &File, number: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    // SAFETY: the structures above are laid out as the kernel's, give it their size, and live until the call returns.
    answer(unsafe { libc::ioctl(file.as_raw_fd(), number, &raw mut *argument) })
}

/// A request that reads one number.
fn set(file: &File, number: libc::c_ulong, argument: &i32) -> io::Result<()> {
    // SAFETY: the kernel reads four bytes at the address.
    answer(unsafe { libc::ioctl(file.as_raw_fd(), number, &raw const *argument) })
}

fn answer(status: i32) -> io::Result<()> {
    match status {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A descriptor that the kernel has just made.
fn take(descriptor: i32) -> io::Result<OwnedFd> {
    answer(descriptor)?;
    // SAFETY: the kernel has made it for the request that has just succeeded, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernel_s() {
        assert_eq!(size_of::<GroupStatus>(), 8);
        assert_eq!(size_of::<RegionInfo>(), 32);
        assert_eq!(size_of::<DmaBufFeature>(), 8 + 16 + 16);
        assert_eq!((SET_IOMMU, FEATURE), (0x3b66, 0x3b75));
    }

    #[test]
    fn a_device_that_is_not_there_cannot_be_taken() {
        let error = Lent::take(Path::new("/nowhere/0000:00:00.0")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot write \"vfio-pci\" to /nowhere/0000:00:00.0/driver_override"
        );
    }
}
