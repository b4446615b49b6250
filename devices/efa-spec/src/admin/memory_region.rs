//! Memory regions.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ControlBuffer;

/// How many addresses of pages a [`RegMr`] has in itself.
pub const INLINE_PAGES: usize = 4;
/// Length of an address in a list of pages.
pub const PAGE_ADDRESS_BYTES: usize = 8;
/// Length of a page of an indirect list of pages, and of the pages whose addresses it has.
pub const LIST_PAGE_BYTES: usize = 4096;
/// How many addresses a page of an indirect list has before the [`ControlBuffer`] of the next one.
pub const LIST_PAGE_ADDRESSES: usize =
    (LIST_PAGE_BYTES - size_of::<ControlBuffer>()) / PAGE_ADDRESS_BYTES;

/// Flags and page size of a memory region.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RegMrFlags {
    /// A page has this power of two of bytes.
    #[bits(6)]
    pub page_shift: u8,
    pub reserved: bool,
    /// The region is physical memory, without a translation.
    pub physical: bool,
}

/// What may be done to a memory region.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Permissions {
    /// The adapter itself may write it: received messages, results of RDMA reads.
    pub local_write: bool,
    /// Peers may write it.
    pub remote_write: bool,
    /// Peers may read it.
    pub remote_read: bool,
    #[bits(5)]
    pub reserved: u8,
}

/// Reg MR (`efa_admin_reg_mr_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RegMr {
    /// Protection domain.
    pub pd: U16,
    /// Zero.
    pub reserved: U16,
    /// Addresses of the pages, or where a list of them is; see [`RegMr::list`].
    pub inline_pages: [U64; INLINE_PAGES],
    /// Length in bytes.
    pub length: U64,
    /// Flags and page size.
    pub flags: RegMrFlags,
    /// What may be done to it.
    pub permissions: Permissions,
    /// Zero.
    pub reserved_after: U16,
    /// Number of pages. Linux' driver leaves it 0.
    pub pages: U32,
    /// Address of the region as work requests have it.
    pub iova: U64,
}

impl RegMr {
    /// Where the list of pages is, if they are not inline.
    pub fn list(&self) -> Option<ControlBuffer> {
        let (list, _) = ControlBuffer::read_from_prefix(self.inline_pages.as_bytes()).ok()?;
        Some(list)
    }
}

/// Answer of Reg MR (`efa_admin_reg_mr_resp`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RegisteredMr {
    /// Key by which the adapter's own work requests name it.
    pub local_key: U32,
    /// Key by which those of peers name it.
    pub remote_key: U32,
    /// Which of the following fields are valid.
    pub validity: u8,
    /// By which interconnect the adapter reaches it to receive.
    pub receive_interconnect: u8,
    /// By which interconnect the adapter reaches it for RDMA reads.
    pub read_interconnect: u8,
    /// By which interconnect the adapter reaches it for RDMA writes of peers.
    pub write_interconnect: u8,
}

/// Dereg MR (`efa_admin_dereg_mr_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DeregMr {
    /// Its local key.
    pub local_key: U32,
}

/// Alloc MR (`efa_admin_alloc_mr_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AllocMr {
    /// Protection domain.
    pub pd: U16,
    /// Zero.
    pub reserved: U16,
    /// Most pages that it is going to have.
    pub max_pages: U32,
}

/// Answer of Alloc MR (`efa_admin_alloc_mr_resp`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AllocatedMr {
    /// Key by which the adapter's own work requests name it. Its lowest 8 bits are its driver's, which changes them with each registration.
    pub local_key: U32,
    /// Key by which those of peers name it. Its lowest 8 bits are those of the local key.
    pub remote_key: U32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_lengths_of_the_driver() {
        assert_eq!(size_of::<RegMr>(), 60);
        assert_eq!(size_of::<RegisteredMr>(), 12);
        assert_eq!((size_of::<AllocMr>(), size_of::<AllocatedMr>()), (8, 8));
        assert_eq!(LIST_PAGE_ADDRESSES, 510);
        assert_eq!(RegMrFlags::new().with_physical(true).into_bits(), 0x80);
        assert_eq!(Permissions::new().with_remote_read(true).into_bits(), 4);
    }

    #[test]
    fn list_of_pages_replaces_inline_pages() {
        let mut bytes = [0; 60];
        bytes[4..16].copy_from_slice(&[0x28, 0, 0, 0, 0, 0x10, 0, 0, 1, 0, 0, 0]);
        let command = RegMr::read_from_bytes(&bytes).unwrap();
        let list = command.list().unwrap();
        assert_eq!((list.length.get(), list.address.get()), (40, 0x1_0000_1000));
    }
}
