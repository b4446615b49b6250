//! The reasons why a device could not be driven.

use std::io;
use std::path::PathBuf;

use peerbar_nvme_driver::DriverError;
use thiserror::Error;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why a device could not be driven.
#[derive(Debug, Error)]
pub enum Error {
    /// A file of sysfs or a device file could not be used.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// vfio-pci refuses a device because there is no IOMMU.
    #[error(
        "vfio-pci rejects {}: the guest has no IOMMU for it (in a scenario: `iommu = \"intel\"` in [machine])",
        pci.display()
    )]
    NoIommu {
        /// Its directory in sysfs.
        pci: PathBuf,
        /// The kernel's reason, EINVAL.
        source: io::Error,
    },
    /// The kernel requires an IOMMU that remaps interrupts.
    #[error(
        "the IOMMU does not remap interrupts, on which {module} insists: load {module} with `allow_unsafe_interrupts=1` (in a \
         scenario: `parameters` of its [[module]])"
    )]
    NoInterruptRemapping {
        /// The module that requires it.
        module: &'static str,
        /// The kernel's reason, EPERM.
        source: io::Error,
    },
    /// A device has no IOMMU group.
    #[error("{} has no IOMMU group: VFIO needs an IOMMU in the guest", pci.display())]
    NoGroup {
        /// Its directory in sysfs.
        pci: PathBuf,
    },
    /// A group has devices that are bound to their own drivers.
    #[error(
        "IOMMU group {group} has other devices with drivers of their own: bind all of them to vfio-pci, or put the device \
         below a port of its own"
    )]
    NotViable {
        /// The group's number.
        group: String,
    },
    /// The kernel has no VFIO device file for a device.
    #[error("vfio shows no character device for {}: it requires CONFIG_VFIO_DEVICE_CDEV", pci.display())]
    NoCharacterDevice {
        /// Its directory in sysfs.
        pci: PathBuf,
    },
    /// A request to VFIO or iommufd failed.
    #[error("{request} failed")]
    Request {
        /// Its name in the kernel's headers.
        request: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// This kind of address space does not support dma-bufs.
    #[error("an address space of type 1 maps no dma-buf: use iommufd, or map the BAR")]
    NoDmaBufs,
    /// Memory could not be mapped into this process.
    #[error("cannot map {length} bytes into this process")]
    Memory {
        /// Length in bytes.
        length: u64,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The controller could not be brought up, or an admin command failed.
    #[error("the controller does not work as a driver expects")]
    Controller(#[from] DriverError),
    /// An I/O command failed.
    #[error("a command with opcode {opcode:#04x} ended with status {status:#06x}")]
    Status {
        /// Its opcode.
        opcode: u8,
        /// The status field without the phase (NVMe Base 2.0, 3.3.3.2.1).
        status: u16,
    },
    /// An I/O command did not complete.
    #[error("a command with opcode {opcode:#04x} did not complete within {seconds} s")]
    Late {
        /// Its opcode.
        opcode: u8,
        /// The limit.
        seconds: u64,
    },
    /// Commands are outstanding although there must be none, or as many as fit.
    #[error("{outstanding} commands are outstanding: take their completions first")]
    Busy {
        /// Their number.
        outstanding: usize,
    },
    /// The controller has completed a command that is not outstanding.
    #[error(
        "the controller completed command {cid:#06x} of the I/O queue, which is not outstanding"
    )]
    UnknownCommand {
        /// The command's identifier.
        cid: u16,
    },
    /// The queue pair is the driver's own.
    #[error("queue pair {id} is the driver's own: choose another number")]
    OwnQueue {
        /// Its number.
        id: u16,
    },
    /// The namespace does not meet this driver's requirements.
    #[error("namespace 1 cannot be used: {reason}")]
    Namespace {
        /// The reason.
        reason: String,
    },
    /// A transfer does not consist of whole blocks and pages of the namespace.
    #[error(
        "{length} bytes at block {block} are not whole blocks of {block_bytes} bytes below {blocks}, or not in whole pages"
    )]
    Transfer {
        /// The first block.
        block: u64,
        /// Length in bytes.
        length: u64,
        /// Bytes of a block.
        block_bytes: u64,
        /// Blocks of the namespace.
        blocks: u64,
    },
    /// The address space has no room left.
    #[error("no {length} bytes of I/O addresses are free below {end:#x}")]
    NoAddresses {
        /// Length in bytes.
        length: u64,
        /// End of the allocated addresses.
        end: u64,
    },
}

impl Error {
    /// Returns the underlying error number of the kernel, if there is one.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::File { source, .. }
            | Self::NoIommu { source, .. }
            | Self::NoInterruptRemapping { source, .. }
            | Self::Request { source, .. }
            | Self::Memory { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Returns the error of a request for which `module` requires an IOMMU that remaps interrupts.
    pub(crate) fn of_interrupts(self, module: &'static str) -> Self {
        match self {
            Self::Request { source, .. } if source.raw_os_error() == Some(libc::EPERM) => {
                Self::NoInterruptRemapping { module, source }
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_unsafe_interrupts_names_the_parameter() {
        let refused = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            let request = "VFIO_SET_IOMMU";
            Error::Request { request, source }.of_interrupts("vfio_iommu_type1")
        };
        let error = refused(libc::EPERM);
        let text = error.to_string();
        assert!(
            text.contains("load vfio_iommu_type1 with `allow_unsafe_interrupts=1`"),
            "{text}"
        );
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert_eq!(refused(libc::ENODEV).to_string(), "VFIO_SET_IOMMU failed");
    }
}
