//! The layouts of the messages, little-endian as the protocol says (vfio-user, Header and the section of each command).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size of a [`Header`] in bytes.
pub(crate) const HEADER_SIZE: usize = size_of::<Header>();

/// The start of every message (vfio-user, Header).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Header {
    /// Chosen by the sender of a command, echoed in its reply.
    pub id: U16,
    /// The command, also in its reply.
    pub command: U16,
    /// Size of the whole message in bytes, this header included.
    pub size: U32,
    /// The type in bits 3:0, then `NO_REPLY` and `ERROR`.
    pub flags: U32,
    /// In a reply with `ERROR`: an errno, or 0 if it is unspecified.
    pub error: U32,
}

impl Header {
    /// Returns `true` if this begins a reply, not a command.
    pub fn is_reply(&self) -> bool {
        self.flags.get() & flags::TYPE == flags::REPLY
    }

    /// Returns `true` if this begins a command.
    pub fn is_command(&self) -> bool {
        self.flags.get() & flags::TYPE == flags::COMMAND
    }

    /// Returns `true` if the sender of this command wants no reply.
    pub fn no_reply(&self) -> bool {
        self.flags.get() & flags::NO_REPLY != 0
    }

    /// Returns `true` if this reply reports a failure.
    pub fn is_error(&self) -> bool {
        self.flags.get() & flags::ERROR != 0
    }
}

/// Bits of [`Header::flags`].
pub(crate) mod flags {
    pub(crate) const TYPE: u32 = 0xf;
    pub(crate) const COMMAND: u32 = 0;
    pub(crate) const REPLY: u32 = 1;
    pub(crate) const NO_REPLY: u32 = 1 << 4;
    pub(crate) const ERROR: u32 = 1 << 5;
}

/// Numbers of the commands (vfio-user, Commands).
pub(crate) mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const DEVICE_GET_INFO: u16 = 4;
    pub(crate) const DEVICE_GET_REGION_INFO: u16 = 5;
    pub(crate) const DEVICE_GET_REGION_IO_FDS: u16 = 6;
    pub(crate) const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub(crate) const DEVICE_SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const DMA_READ: u16 = 11;
    pub(crate) const DMA_WRITE: u16 = 12;
    pub(crate) const DEVICE_RESET: u16 = 13;
    /// No longer in the specification; QEMU still reserves the number.
    pub(crate) const DIRTY_PAGES: u16 = 14;
    pub(crate) const REGION_WRITE_MULTI: u16 = 15;
    pub(crate) const DEVICE_FEATURE: u16 = 16;
    pub(crate) const MIG_DATA_READ: u16 = 17;
    pub(crate) const MIG_DATA_WRITE: u16 = 18;
}

/// vfio-user, VERSION. The capabilities follow as JSON with a NUL at the end.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Version {
    pub(crate) major: U16,
    pub(crate) minor: U16,
}

/// vfio-user, DMA_MAP.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DmaMap {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    /// Offset of the span in the descriptor.
    pub(crate) offset: U64,
    pub(crate) iova: U64,
    pub(crate) size: U64,
}

/// Bits of [`DmaMap::flags`].
pub(crate) mod dma_map {
    pub(crate) const READ: u32 = 1 << 0;
    pub(crate) const WRITE: u32 = 1 << 1;
}

/// vfio-user, DMA_UNMAP.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DmaUnmap {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) iova: U64,
    pub(crate) size: U64,
}

/// Bits of [`DmaUnmap::flags`].
pub(crate) mod dma_unmap {
    pub(crate) const GET_DIRTY_BITMAP: u32 = 1 << 0;
    /// Unmap all; IOVA and size are 0.
    pub(crate) const ALL: u32 = 1 << 1;
}

/// vfio-user, DEVICE_GET_INFO.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DeviceInfo {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) regions: U32,
    pub(crate) irqs: U32,
}

impl DeviceInfo {
    pub(crate) const SIZE: u32 = 16;
}

/// Bits of [`DeviceInfo::flags`].
pub(crate) mod device_info {
    pub(crate) const RESET: u32 = 1 << 0;
    pub(crate) const PCI: u32 = 1 << 1;
}

/// vfio-user, DEVICE_GET_REGION_INFO.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RegionInfo {
    /// In a command: space for this structure and its capabilities. In a reply: the size that they need.
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) index: U32,
    /// From the start of this structure.
    pub(crate) cap_offset: U32,
    pub(crate) size: U64,
    pub(crate) offset: U64,
}

impl RegionInfo {
    pub(crate) const SIZE: u32 = 32;
}

/// Bits of [`RegionInfo::flags`].
pub(crate) mod region_info {
    pub(crate) const READ: u32 = 1 << 0;
    pub(crate) const WRITE: u32 = 1 << 1;
    pub(crate) const MMAP: u32 = 1 << 2;
    pub(crate) const CAPS: u32 = 1 << 3;
}

/// The capability that lists the mappable parts of a region (vfio-user, VFIO sparse mmap). The
/// areas follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SparseMmap {
    pub(crate) id: U16,
    pub(crate) version: U16,
    /// From the start of the [`RegionInfo`]; 0 ends the list.
    pub(crate) next: U32,
    pub(crate) areas: U32,
    pub(crate) reserved: U32,
}

impl SparseMmap {
    pub(crate) const ID: u16 = 1;
    pub(crate) const VERSION: u16 = 1;
}

/// The start of every capability of a region (vfio-user, VFIO cap header format).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RegionCapability {
    pub(crate) id: U16,
    pub(crate) version: U16,
    /// From the start of the [`RegionInfo`]; 0 ends the list.
    pub(crate) next: U32,
}

/// One area of a [`SparseMmap`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SparseArea {
    pub(crate) offset: U64,
    pub(crate) size: U64,
}

/// vfio-user, DEVICE_GET_IRQ_INFO.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct IrqInfo {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) index: U32,
    pub(crate) count: U32,
}

impl IrqInfo {
    pub(crate) const SIZE: u32 = 16;
}

/// Bits of [`IrqInfo::flags`].
pub(crate) mod irq_info {
    pub(crate) const EVENTFD: u32 = 1 << 0;
    pub(crate) const MASKABLE: u32 = 1 << 1;
    pub(crate) const AUTOMASKED: u32 = 1 << 2;
    pub(crate) const NORESIZE: u32 = 1 << 3;
}

/// vfio-user, DEVICE_SET_IRQS. With `DATA_BOOL`, a byte for each vector follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SetIrqs {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) index: U32,
    pub(crate) start: U32,
    pub(crate) count: U32,
}

/// Bits of [`SetIrqs::flags`]: one kind of data, one action.
pub(crate) mod set_irqs {
    pub(crate) const DATA_NONE: u32 = 1 << 0;
    pub(crate) const DATA_BOOL: u32 = 1 << 1;
    pub(crate) const DATA_EVENTFD: u32 = 1 << 2;
    pub(crate) const DATA: u32 = DATA_NONE | DATA_BOOL | DATA_EVENTFD;
    pub(crate) const MASK: u32 = 1 << 3;
    pub(crate) const UNMASK: u32 = 1 << 4;
    pub(crate) const TRIGGER: u32 = 1 << 5;
    pub(crate) const ACTION: u32 = MASK | UNMASK | TRIGGER;
}

/// vfio-user, REGION_READ and REGION_WRITE. The data follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RegionAccess {
    pub(crate) offset: U64,
    pub(crate) region: U32,
    pub(crate) count: U32,
}

/// One write of a REGION_WRITE_MULTI.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RegionWrite {
    pub(crate) access: RegionAccess,
    pub(crate) data: [u8; 8],
}

/// vfio-user, DMA_READ and DMA_WRITE. The data follows. The count has 64 bits, as in QEMU 10.1.1 and later.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DmaAccess {
    pub(crate) address: U64,
    pub(crate) count: U64,
}

/// vfio-user, DEVICE_GET_REGION_IO_FDS. In a reply, the sub-regions follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RegionIoFds {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) index: U32,
    pub(crate) count: U32,
}

/// One sub-region of a [`RegionIoFds`], of either type.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SubRegion {
    pub(crate) offset: U64,
    pub(crate) size: U64,
    /// Index of its descriptor in the message.
    pub(crate) fd_index: U32,
    pub(crate) kind: U32,
    pub(crate) flags: U32,
    pub(crate) padding: U32,
    /// The data to match, or the user's data of an ioregionfd.
    pub(crate) data: U64,
}

/// vfio-user, DEVICE_FEATURE. The feature's data follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DeviceFeature {
    pub(crate) argsz: U32,
    /// The feature's index in bits 15:0, then the method.
    pub(crate) flags: U32,
}

/// Bits and features of [`DeviceFeature::flags`].
pub(crate) mod device_feature {
    pub(crate) const INDEX: u32 = 0xffff;
    pub(crate) const GET: u32 = 1 << 16;
    pub(crate) const SET: u32 = 1 << 17;
    pub(crate) const PROBE: u32 = 1 << 18;
    pub(crate) const MIGRATION: u32 = 1;
    pub(crate) const MIG_DEVICE_STATE: u32 = 2;
    pub(crate) const DMA_LOGGING_START: u32 = 6;
    pub(crate) const DMA_LOGGING_STOP: u32 = 7;
    pub(crate) const DMA_LOGGING_REPORT: u32 = 8;
}

/// vfio-user, MIG_DATA_READ and MIG_DATA_WRITE. The data follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct MigrationData {
    pub(crate) argsz: U32,
    pub(crate) size: U32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_protocol() {
        let sizes = [
            (size_of::<Header>(), 16),
            (size_of::<Version>(), 4),
            (size_of::<DmaMap>(), 32),
            (size_of::<DmaUnmap>(), 24),
            (size_of::<DeviceInfo>(), 16),
            (DeviceInfo::SIZE as usize, 16),
            (size_of::<RegionInfo>(), 32),
            (RegionInfo::SIZE as usize, 32),
            (size_of::<SparseMmap>(), 16),
            (size_of::<SparseArea>(), 16),
            (size_of::<IrqInfo>(), 16),
            (IrqInfo::SIZE as usize, 16),
            (size_of::<SetIrqs>(), 20),
            (size_of::<RegionAccess>(), 16),
            (size_of::<RegionWrite>(), 24),
            (size_of::<DmaAccess>(), 16),
            (size_of::<RegionCapability>(), 8),
            (size_of::<RegionIoFds>(), 16),
            (size_of::<SubRegion>(), 40),
            (size_of::<DeviceFeature>(), 8),
            (size_of::<MigrationData>(), 8),
        ];
        for (ours, protocol) in sizes {
            assert_eq!(ours, protocol);
        }
    }

    #[test]
    fn a_header_is_read_field_by_field() {
        let bytes = [0x34, 0x12, 9, 0, 32, 0, 0, 0, 0x31, 0, 0, 0, 22, 0, 0, 0];
        let header = Header::read_from_bytes(&bytes).unwrap();
        assert_eq!(header.id.get(), 0x1234);
        assert_eq!(header.command.get(), command::REGION_READ);
        assert_eq!(header.size.get(), 32);
        assert_eq!(header.error.get(), 22);
        assert!(header.is_reply() && header.no_reply() && header.is_error());
        assert!(!header.is_command());
    }
}
