//! `/dev/peerbar-gpu-import-test`: a kernel driver that imports dma-bufs for any PCI function on
//! request (guest/gpu-driver/include/peerbar_gpu_import_test.h).

#![expect(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use zerocopy::{FromBytes, IntoBytes};

use crate::pci_function::PciFunction;
use crate::test_module::TestModule;

const NODE: &str = "/dev/peerbar-gpu-import-test";

/// The domain of a device that is not a PCI function.
const NO_PCI: u32 = u32::MAX;

/// The kind of importer as which the driver attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Dynamic; releases everything when it is notified.
    Notified = 0,
    /// Dynamic, and cannot be notified.
    Pinning = 1,
    /// Attaches by `dma_buf_attach()`.
    Static = 2,
    /// Dynamic, but does not accept a peer's memory.
    HostOnly = 3,
}

#[repr(C)]
#[derive(Debug, Default, FromBytes, IntoBytes)]
struct AttachRequest {
    fd: i32,
    kind: u32,
    domain: u32,
    bus: u32,
    devfn: u32,
    id: u32,
    result: i32,
    pad: u32,
}

#[repr(C)]
#[derive(Debug, Default, FromBytes, IntoBytes)]
struct MapRequest {
    id: u32,
    result: i32,
    dma_address: u64,
    length: u64,
}

/// The state of an import.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct ImporterState {
    id: u32,
    /// Number of the exporter's notifications.
    pub notified: u32,
    /// Number of its pins of the dma-buf that it has not removed.
    pub pins: u32,
    /// 1 if it has the dma-buf mapped, otherwise 0.
    pub mapped: u32,
}

#[repr(C)]
#[derive(Debug, Default, FromBytes, IntoBytes)]
struct ReopenRequest {
    id: u32,
    fd: i32,
}

/// Converts the answer of the kernel or the exporter.
fn answer(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno.wrapping_neg())),
    }
}

/// The driver, opened.
#[derive(Debug)]
pub struct Importer {
    module: TestModule,
}

impl Importer {
    /// Opens the driver, whose module must be loaded.
    pub fn open() -> anyhow::Result<Self> {
        let module = TestModule::open(NODE, "peerbar_gpu_import_test")?;
        Ok(Importer { module })
    }

    /// Attaches to `dma_buf` for `function`, or for a device that is not a PCI function.
    pub fn attach(
        &self,
        dma_buf: impl AsFd,
        kind: Kind,
        function: Option<PciFunction>,
    ) -> io::Result<Import<'_>> {
        let mut request = AttachRequest {
            fd: dma_buf.as_fd().as_raw_fd(),
            kind: kind as u32,
            domain: function.map_or(NO_PCI, |function| function.domain),
            bus: function.map_or(0, |function| function.bus),
            devfn: function.map_or(0, |function| function.devfn),
            ..AttachRequest::default()
        };
        self.module.ask(0x70, &mut request)?;
        answer(request.result)?;
        Ok(Import {
            module: &self.module,
            id: request.id,
        })
    }
}

/// An attachment. It is unmapped, unpinned and detached when it is dropped.
#[derive(Debug)]
pub struct Import<'a> {
    module: &'a TestModule,
    id: u32,
}

impl Import<'_> {
    fn ask(&self, number: u8) -> io::Result<()> {
        answer(self.module.ask_about(number, self.id)?)
    }

    /// Pins the dma-buf, possibly once more.
    pub fn pin(&self) -> io::Result<()> {
        self.ask(0x72)
    }

    /// Removes one pin.
    pub fn unpin(&self) -> io::Result<()> {
        self.ask(0x73)
    }

    /// Maps the dma-buf. Returns the address for DMA of the first byte, and the number of bytes at
    /// consecutive addresses.
    pub fn map(&self) -> io::Result<(u64, u64)> {
        let mut request = MapRequest {
            id: self.id,
            ..MapRequest::default()
        };
        self.module.ask(0x74, &mut request)?;
        answer(request.result)?;
        Ok((request.dma_address, request.length))
    }

    /// Unmaps it.
    pub fn unmap(&self) -> io::Result<()> {
        self.ask(0x75)
    }

    /// Returns its state.
    pub fn state(&self) -> io::Result<ImporterState> {
        let mut state = ImporterState {
            id: self.id,
            ..ImporterState::default()
        };
        self.module.ask(0x76, &mut state)?;
        Ok(state)
    }

    /// Returns another descriptor of the dma-buf, after which all others may be closed.
    pub fn reopen(&self) -> io::Result<OwnedFd> {
        let mut request = ReopenRequest {
            id: self.id,
            fd: -1,
        };
        self.module.ask(0x77, &mut request)?;
        // SAFETY: the driver has made this descriptor for the request that has just succeeded, so
        // nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(request.fd) })
    }

    fn detach(&self) -> io::Result<()> {
        self.ask(0x71)
    }
}

impl Drop for Import<'_> {
    fn drop(&mut self) {
        // This fails only if there is no such import, and then there is nothing to release.
        let _ = self.detach();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_module::code;

    /// The results of `sizeof` and `_IOWR` of the header on x86-64.
    #[test]
    fn requests_are_those_of_the_header() {
        assert_eq!(code::<AttachRequest>(0x70), 0xc020_5070);
        assert_eq!(code::<MapRequest>(0x74), 0xc018_5074);
        assert_eq!(code::<ImporterState>(0x76), 0xc010_5076);
        assert_eq!(code::<ReopenRequest>(0x77), 0xc008_5077);
    }

    #[test]
    fn answer_of_the_driver_becomes_an_error() {
        assert!(answer(0).is_ok());
        let error = answer(-libc::EOPNOTSUPP).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
    }
}
