//! Protection domains, user access regions and address handles.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The number of a protection domain or user access region: the answer to Alloc PD and Alloc UAR
/// (`efa_admin_alloc_pd_resp`, `efa_admin_alloc_uar_resp`), the payload of Dealloc PD and Dealloc
/// UAR (`efa_admin_dealloc_pd_cmd`, `efa_admin_dealloc_uar_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Numbered {
    /// The number.
    pub number: U16,
    /// Zero.
    pub reserved: U16,
}

/// Create AH (`efa_admin_create_ah_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CreateAh {
    /// GID of the destination, in network byte order.
    pub destination: [u8; 16],
    /// Protection domain.
    pub pd: U16,
    /// Zero.
    pub reserved: U16,
}

/// Answer to Create AH (`efa_admin_create_ah_resp`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CreatedAh {
    /// Number of the address handle.
    pub ah: U16,
    /// Zero.
    pub reserved: U16,
}

/// Destroy AH (`efa_admin_destroy_ah_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DestroyAh {
    /// Number of the address handle.
    pub ah: U16,
    /// Its protection domain.
    pub pd: U16,
}
