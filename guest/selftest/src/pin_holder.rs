//! `/dev/peerbar-gpu-pin-test`: a kernel driver that holds pinned GPU memory and executes requests
//! (guest/gpu-driver/include/peerbar_gpu_pin_test.h).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use peerbar_agent::pci_function::PciFunction;
use peerbar_agent::test_module::TestModule;
use zerocopy::{FromBytes, IntoBytes};

const NODE: &str = "/dev/peerbar-gpu-pin-test";

/// The pin has no callback.
pub(crate) const PERSISTENT: u32 = 1 << 0;
/// The callback does not return before [`Pin::release`].
pub(crate) const HOLD: u32 = 1 << 1;
/// The callback leaves the table for [`Pin::free_table`].
pub(crate) const KEEP_TABLE: u32 = 1 << 2;

#[repr(C)]
#[derive(Debug, Default, FromBytes, IntoBytes)]
struct PinRequest {
    gpu: i32,
    handle: u32,
    offset: u64,
    length: u64,
    flags: u32,
    id: u32,
    bus_address: u64,
    entries: u32,
    page_size: u32,
}

#[repr(C)]
#[derive(Debug, Default, FromBytes, IntoBytes)]
struct MapRequest {
    id: u32,
    result: i32,
    domain: u32,
    bus: u32,
    devfn: u32,
    entries: u32,
    dma_address: u64,
}

#[repr(C)]
#[derive(Debug, Default, FromBytes, IntoBytes)]
struct IoRequest {
    id: u32,
    disk: i32,
    disk_offset: u64,
    offset: u64,
    length: u64,
    write: u32,
    pad: u32,
}

/// The holder's record of a pin.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub(crate) struct HolderState {
    id: u32,
    /// Number of calls of the callback.
    pub(crate) callbacks: u32,
    /// 1 if it has been called and has not returned.
    pub(crate) in_callback: u32,
    /// Number of transfers that were in flight when it was called.
    pub(crate) in_flight: u32,
    /// Number of transfers that were submitted.
    pub(crate) started: u32,
    /// The error of the last transfer that failed, a negative errno.
    pub(crate) error: i32,
    /// The driver's answer to a put in the callback.
    pub(crate) put_in_callback: i32,
    pad: u32,
}

/// The holder, opened. Dropping it releases its pins.
#[derive(Debug)]
pub(crate) struct Holder {
    module: TestModule,
}

impl Holder {
    pub(crate) fn open() -> anyhow::Result<Self> {
        let module = TestModule::open(NODE, "peerbar_gpu_pin_test")?;
        Ok(Holder { module })
    }

    /// Pins `length` bytes at `offset` of the buffer that is `handle` of the open file `gpu`.
    pub(crate) fn pin(
        &self,
        gpu: impl AsFd,
        handle: u32,
        (offset, length): (u64, u64),
        flags: u32,
    ) -> io::Result<Pin<'_>> {
        let mut request = PinRequest {
            gpu: gpu.as_fd().as_raw_fd(),
            handle,
            offset,
            length,
            flags,
            ..PinRequest::default()
        };
        self.module.ask(0x60, &mut request)?;
        Ok(Pin {
            module: &self.module,
            id: request.id,
            bus_address: request.bus_address,
            entries: request.entries,
            page_size: request.page_size,
        })
    }
}

/// A pin. Answers of the driver are 0 or a negative errno.
#[derive(Debug)]
pub(crate) struct Pin<'a> {
    module: &'a TestModule,
    id: u32,
    /// Bus address of its first page.
    pub(crate) bus_address: u64,
    /// Number of pages in its table.
    pub(crate) entries: u32,
    /// Size of each page in bytes.
    pub(crate) page_size: u32,
}

impl Pin<'_> {
    fn ask(&self, number: u8) -> io::Result<i32> {
        self.module.ask_about(number, self.id)
    }

    /// Makes the holder put the pages, also after the callback, when the driver must refuse.
    pub(crate) fn put(&self) -> io::Result<i32> {
        self.ask(0x61)
    }

    /// Makes the holder free the table.
    pub(crate) fn free_table(&self) -> io::Result<i32> {
        self.ask(0x62)
    }

    /// Maps the pages for `peer`. Returns the answer and the first page's address.
    pub(crate) fn map(&self, peer: PciFunction) -> io::Result<(i32, u64)> {
        let mut request = MapRequest {
            id: self.id,
            domain: peer.domain,
            bus: peer.bus,
            devfn: peer.devfn,
            ..MapRequest::default()
        };
        self.module.ask(0x63, &mut request)?;
        Ok((request.result, request.dma_address))
    }

    /// Undoes the mapping.
    pub(crate) fn unmap(&self) -> io::Result<i32> {
        self.ask(0x64)
    }

    /// Starts a read of `length` bytes at `disk_offset` into the pages from `offset` on, without
    /// waiting for it.
    pub(crate) fn read(
        &self,
        disk: &File,
        disk_offset: u64,
        (offset, length): (u64, u64),
    ) -> io::Result<()> {
        let mut request = IoRequest {
            id: self.id,
            disk: disk.as_raw_fd(),
            disk_offset,
            offset,
            length,
            ..IoRequest::default()
        };
        self.module.ask(0x65, &mut request)
    }

    /// Returns its state.
    pub(crate) fn state(&self) -> io::Result<HolderState> {
        let mut state = HolderState {
            id: self.id,
            ..HolderState::default()
        };
        self.module.ask(0x66, &mut state)?;
        Ok(state)
    }

    /// Lets a waiting callback return.
    pub(crate) fn release(&self) -> io::Result<()> {
        self.ask(0x67).map(drop)
    }

    /// Waits until nothing is in flight.
    pub(crate) fn drain(&self) -> io::Result<()> {
        self.ask(0x68).map(drop)
    }
}
