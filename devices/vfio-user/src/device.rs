//! The interface between the server loop and a device.

use std::os::fd::{BorrowedFd, OwnedFd};

use peerbar_pci::{Iova, Range};
use rustix::io::Errno;

use crate::{Client, Event};

/// The region that is configuration space, after six BARs and the ROM (Linux, VFIO_PCI_CONFIG_REGION_INDEX).
pub const CONFIG_REGION: u32 = 7;

/// A device that the server loop serves to one client at a time.
///
/// All methods are called from the thread that reads the socket, in the order of the client's
/// messages. No method may wait for a request to the client ([`Client`]): QEMU answers such a
/// request only after its own access is answered.
pub trait Device {
    /// A client has agreed on a version; `client` accepts requests until [`Device::detached`].
    fn attached(&mut self, client: Client);
    /// The client has gone. Its DMA mappings are gone with it.
    fn detached(&mut self);
    /// vfio-user, DEVICE_GET_INFO.
    fn info(&self) -> DeviceInfo;
    /// vfio-user, DEVICE_GET_REGION_INFO. Returns `None` if there is no such region (EINVAL).
    fn region(&self, index: u32) -> Option<Region<'_>>;
    /// vfio-user, DEVICE_GET_IRQ_INFO. Returns `None` if there is no such interrupt (EINVAL).
    fn irq(&self, index: u32) -> Option<Irq>;
    /// vfio-user, REGION_READ. The range lies inside the region.
    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno>;
    /// vfio-user, REGION_WRITE and each part of REGION_WRITE_MULTI. The range lies inside the region.
    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;
    /// vfio-user, DEVICE_SET_IRQS. `start` and `count` lie inside the interrupt index.
    fn set_irqs(
        &mut self,
        index: u32,
        start: u32,
        count: u32,
        action: IrqAction,
    ) -> Result<(), Errno>;
    /// vfio-user, DMA_MAP.
    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno>;
    /// vfio-user, DMA_UNMAP. The range may cover any number of mappings, even 0.
    fn dma_unmap(&mut self, range: Range<Iova>) -> Result<(), Errno>;
    /// vfio-user, DEVICE_RESET.
    fn reset(&mut self) -> Result<(), Errno>;
    /// [`Client::wake`] has been called at least once since the last call of this method.
    fn woken(&mut self) {}
}

/// vfio-user, DEVICE_GET_INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Number of regions; PCI has 9 (VFIO_PCI_NUM_REGIONS).
    pub regions: u32,
    /// Number of interrupt indexes; PCI has 5 (VFIO_PCI_NUM_IRQS).
    pub irqs: u32,
    /// The device supports DEVICE_RESET.
    pub can_reset: bool,
}

/// vfio-user, DEVICE_GET_REGION_INFO.
#[derive(Clone, Debug)]
pub struct Region<'a> {
    /// Size in bytes.
    pub size: u64,
    /// The client may read it.
    pub readable: bool,
    /// The client may write it.
    pub writable: bool,
    /// The part that the client may map.
    pub mapping: RegionMapping<'a>,
    /// The offset of the region in the descriptor of its mapping.
    pub offset: u64,
}

/// The part of a region that the client may map.
#[derive(Clone, Debug)]
pub enum RegionMapping<'a> {
    /// No part. If this holds for all regions of a device, QEMU's client writes to them without
    /// waiting for the answers.
    Nothing,
    /// No part, expressed as an empty list of areas: QEMU's client waits for the answer to each
    /// write to the device.
    NoArea,
    /// The whole region.
    Whole(BorrowedFd<'a>),
    /// These areas (offset, size).
    Areas(BorrowedFd<'a>, Vec<(u64, u64)>),
}

/// vfio-user, DEVICE_GET_IRQ_INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Irq {
    /// Number of vectors.
    pub count: u32,
    /// Level-triggered: masked by the server at each trigger, unmasked by the client (INTx).
    pub automasked: bool,
    /// The client can mask and unmask it.
    pub maskable: bool,
    /// Vectors can only be set up all together, not one after the other.
    pub fixed_count: bool,
}

/// vfio-user, DEVICE_SET_IRQS.
#[derive(Debug)]
pub enum IrqAction {
    /// Mask the vectors.
    Mask,
    /// Unmask the vectors.
    Unmask,
    /// Trigger the vectors at once, for testing.
    Trigger,
    /// Signal these from now on, one entry for each vector; `None` removes a vector's event.
    Events(Vec<Option<Event>>),
    /// Remove every vector of the index.
    Disable,
}

/// vfio-user, DMA_MAP.
#[derive(Debug)]
pub struct DmaMap {
    /// Its addresses.
    pub range: Range<Iova>,
    /// The device may read it.
    pub readable: bool,
    /// The device may write it.
    pub writable: bool,
    /// The memory behind it, if the client shares it, and the offset of the range in it. A regular
    /// file or a character device.
    pub memory: Option<(OwnedFd, u64)>,
}
