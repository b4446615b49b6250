//! Memory regions.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ControlBuffer;

/// Number of page addresses in a [`RegMr`] itself.
pub const INLINE_PAGES: usize = 4;
/// Length of an address in a list of pages.
pub const PAGE_ADDRESS_BYTES: usize = 8;
/// Length of a page of an indirect list of pages, and of the pages that it points to.
pub const LIST_PAGE_BYTES: usize = 4096;
/// Number of addresses in a page of an indirect list, before the [`ControlBuffer`] of the next
/// page.
pub const LIST_PAGE_ADDRESSES: usize =
    (LIST_PAGE_BYTES - size_of::<ControlBuffer>()) / PAGE_ADDRESS_BYTES;

/// Flags and page size of a memory region.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RegMrFlags {
    /// Page size, as a power of two.
    #[bits(6)]
    pub page_shift: u8,
    pub reserved: bool,
    /// The region is physical memory, without translation.
    pub physical: bool,
}

/// Permitted accesses to a memory region.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Permissions {
    /// The adapter itself may write to it: received messages, results of RDMA reads.
    pub local_write: bool,
    /// Peers may write to it.
    pub remote_write: bool,
    /// Peers may read from it.
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
    /// Addresses of the pages, or the location of a list of them; see [`RegMr::list`].
    pub inline_pages: [U64; INLINE_PAGES],
    /// Length in bytes.
    pub length: U64,
    /// Flags and page size.
    pub flags: RegMrFlags,
    /// Permitted accesses.
    pub permissions: Permissions,
    /// Zero.
    pub reserved_after: U16,
    /// Number of pages. Linux' driver leaves it 0.
    pub pages: U32,
    /// Address of the region in work requests.
    pub iova: U64,
}

impl RegMr {
    /// Returns the location of the list of pages, if they are not inline.
    pub fn list(&self) -> Option<ControlBuffer> {
        let (list, _) = ControlBuffer::read_from_prefix(self.inline_pages.as_bytes()).ok()?;
        Some(list)
    }
}

/// Answer to Reg MR (`efa_admin_reg_mr_resp`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RegisteredMr {
    /// Key of the region in the adapter's own work requests.
    pub local_key: U32,
    /// Key of the region in peers' work requests.
    pub remote_key: U32,
    /// The following fields that are valid.
    pub validity: u8,
    /// Interconnect for receives.
    pub receive_interconnect: u8,
    /// Interconnect for RDMA reads by the adapter.
    pub read_interconnect: u8,
    /// Interconnect for RDMA writes by peers.
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
    /// Maximum number of its pages.
    pub max_pages: U32,
}

/// Answer to Alloc MR (`efa_admin_alloc_mr_resp`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AllocatedMr {
    /// Key of the region in the adapter's own work requests. Its driver chooses the lowest 8 bits,
    /// and changes them with each registration.
    pub local_key: U32,
    /// Key of the region in peers' work requests. Its lowest 8 bits are those of the local key.
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
