//! Requests to VFIO and iommufd (Linux, include/uapi/linux/vfio.h and iommufd.h).

#![expect(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use crate::error::{Error, Result};

/// A request: its name in the kernel's headers, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    name: &'static str,
    number: libc::c_ulong,
}

impl Request {
    /// Makes a request `_IO(';', number)`, which both use.
    pub(crate) const fn new(name: &'static str, number: u8) -> Self {
        let number = (b';' as libc::c_ulong) << 8 | number as libc::c_ulong;
        Self { name, number }
    }

    fn failed(self, source: io::Error) -> Error {
        Error::Request {
            request: self.name,
            source,
        }
    }

    fn answer(self, status: i32) -> Result<i32> {
        match status {
            0.. => Ok(status),
            _ => Err(self.failed(io::Error::last_os_error())),
        }
    }

    /// Sends it without an argument.
    pub(crate) fn send(self, file: &File) -> Result<()> {
        self.send_number(file, 0)
    }

    /// Sends it with a plain number.
    pub(crate) fn send_number(self, file: &File, number: libc::c_ulong) -> Result<()> {
        // SAFETY: the kernel takes the argument of these requests as a number, not as an address.
        let status = unsafe { libc::ioctl(file.as_raw_fd(), self.number, number) };
        self.answer(status).map(drop)
    }

    /// Sends `argument`, which the kernel may change.
    pub(crate) fn exchange<T: Argument>(self, file: &File, argument: &mut T) -> Result<()> {
        self.call(file, argument).map(drop)
    }

    /// Like [`Request::exchange`], for a request that returns a new descriptor.
    pub(crate) fn descriptor<T: Argument>(self, file: &File, argument: &mut T) -> Result<OwnedFd> {
        let descriptor = self.call(file, argument)?;
        // SAFETY: the kernel has made it for the request that has just succeeded, so nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    fn call<T: Argument>(self, file: &File, argument: &mut T) -> Result<i32> {
        // SAFETY: `Argument` promises a layout that the kernel's structure has, and the value lives until the call returns.
        let status = unsafe { libc::ioctl(file.as_raw_fd(), self.number, &raw mut *argument) };
        self.answer(status)
    }
}

/// The argument of a request.
///
/// # Safety
/// The layout is that of the kernel's structure for each request that it is used with. Its first
/// field gives its size if that structure has such a field. Memory at addresses in it stays mapped
/// as long as the kernel uses it.
pub(crate) unsafe trait Argument {}

// SAFETY: requests with a single 32-bit number in memory, such as a descriptor.
unsafe impl Argument for i32 {}

// SAFETY: requests that read a string, which always ends with a zero here.
unsafe impl Argument for [u8; 16] {}

/// Returns the size of an argument, for its own first field.
pub(crate) fn size_of_argument<T>() -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(u32::MAX)
}

/// Opens a device file for reading and writing.
pub(crate) fn open(path: &Path) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.map_err(|source| Error::File {
        action: "open",
        path: path.to_path_buf(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_that_of_the_kernel_s_headers() {
        assert_eq!(Request::new("VFIO_DEVICE_FEATURE", 117).number, 0x3b75);
        assert_eq!(Request::new("IOMMU_IOAS_MAP", 0x85).number, 0x3b85);
    }

    #[test]
    fn refused_request_is_named() {
        let file = tempfile::tempfile().unwrap();
        let error = Request::new("VFIO_DEVICE_RESET", 111)
            .send(&file)
            .unwrap_err();
        assert_eq!(error.to_string(), "VFIO_DEVICE_RESET failed");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }
}
