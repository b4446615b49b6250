//! Scatter Gather Lists: the descriptors of a command's data (NVMe Base 2.0, 4.1.2).

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An SGL descriptor (NVMe Base 2.0, 4.1.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Descriptor {
    /// The first byte of the data block or segment; reserved in a bit bucket.
    pub address: U64,
    /// Length in bytes: of the data block, of the discarded data, or of the segment.
    pub length: U32,
    _reserved_12: [u8; 3],
    /// SGL Identifier.
    pub id: DescriptorId,
}

impl Descriptor {
    /// Makes a descriptor.
    pub fn new(id: DescriptorId, address: u64, length: u32) -> Self {
        let mut descriptor = Self::new_zeroed();
        descriptor.id = id;
        descriptor.address = address.into();
        descriptor.length = length.into();
        descriptor
    }
}

/// The last byte of a descriptor: its type and sub type (NVMe Base 2.0, 4.1.2).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct DescriptorId {
    /// SGL Descriptor Sub Type: 0 if the address is one of memory.
    #[bits(4)]
    pub sub_type: u8,
    /// SGL Descriptor Type.
    #[bits(4)]
    pub kind: u8,
}

impl DescriptorId {
    /// SGL Data Block, by address.
    pub const DATA_BLOCK: Self = Self::new().with_kind(0);
    /// SGL Bit Bucket: data that the controller does not transfer to the host.
    pub const BIT_BUCKET: Self = Self::new().with_kind(1);
    /// SGL Segment: the next segment, by address, which is not the last one.
    pub const SEGMENT: Self = Self::new().with_kind(2);
    /// SGL Last Segment: the next segment, by address, which is the last one.
    pub const LAST_SEGMENT: Self = Self::new().with_kind(3);
}

#[cfg(test)]
mod tests {
    use core::mem::{align_of, offset_of};

    use super::*;

    #[test]
    fn descriptor_is_linux_nvme_sgl_desc() {
        assert_eq!(size_of::<Descriptor>(), 16);
        assert_eq!(align_of::<Descriptor>(), 1);
        assert_eq!(offset_of!(Descriptor, address), 0); // addr
        assert_eq!(offset_of!(Descriptor, length), 8); // length
        assert_eq!(offset_of!(Descriptor, id), 15); // type
        let descriptor = Descriptor::new(DescriptorId::LAST_SEGMENT, 0x0102_0304_0506_0708, 0x20);
        let bytes = [8, 7, 6, 5, 4, 3, 2, 1, 0x20, 0, 0, 0, 0, 0, 0, 0x30];
        assert_eq!(descriptor.as_bytes(), bytes);
    }

    #[test]
    fn types_are_those_of_linux() {
        let kinds = [
            (DescriptorId::DATA_BLOCK, 0x0),   // NVME_SGL_FMT_DATA_DESC
            (DescriptorId::BIT_BUCKET, 0x1),   // SPDK_NVME_SGL_TYPE_BIT_BUCKET
            (DescriptorId::SEGMENT, 0x2),      // NVME_SGL_FMT_SEG_DESC
            (DescriptorId::LAST_SEGMENT, 0x3), // NVME_SGL_FMT_LAST_SEG_DESC
        ];
        for (id, number) in kinds {
            assert_eq!(id.into_bits(), number << 4);
        }
    }
}
