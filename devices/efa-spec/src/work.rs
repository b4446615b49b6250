//! Work requests (efa_io_defs.h), which user space writes into a send queue, in memory of the
//! device, and into a receive queue, in memory of the host.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::admin::memory_region::Permissions;

/// Length of the entries of a send queue with short inline data.
pub const SEND_ENTRY_BYTES: usize = 64;
/// Length of the entries of a send queue with long inline data (`efa_io_tx_wqe_128`).
pub const LONG_SEND_ENTRY_BYTES: usize = 128;
/// Bytes of inline data that fit into a short entry. For sends only.
pub const INLINE_BYTES: usize = 32;
/// Bytes of inline data that fit into a long entry.
pub const LONG_INLINE_BYTES: usize = 80;
/// Maximum number of buffers of a send.
pub const SEND_BUFFERS: usize = 2;
/// Maximum number of local buffers of an RDMA request.
pub const RDMA_BUFFERS: usize = 1;
/// Length of a descriptor of a receive queue.
pub const RECEIVE_DESCRIPTOR_BYTES: usize = size_of::<ReceiveDescriptor>();

/// The operation of a work request (`efa_io_send_op_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Sends a message.
    Send = 0,
    /// Reads remote memory.
    RdmaRead = 1,
    /// Writes remote memory.
    RdmaWrite = 2,
    /// Adds memory to a region that was allocated for it.
    FastRegister = 3,
    /// Removes the memory again.
    FastInvalidate = 4,
}

impl Operation {
    /// Returns the operation of this number, or `None` if there is none.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Send),
            1 => Some(Self::RdmaRead),
            2 => Some(Self::RdmaWrite),
            3 => Some(Self::FastRegister),
            4 => Some(Self::FastInvalidate),
            _ => None,
        }
    }
}

/// The start of every work request in a send queue (`efa_io_tx_meta_desc`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SendMeta {
    /// Number that the completion repeats.
    pub req_id: U16,
    /// Its operation.
    pub control: SendControl,
    /// Its flags.
    pub flags: SendFlags,
    /// Number of the destination's queue pair.
    pub dest_qp_num: U16,
    /// Bytes of inline data, or otherwise the number of buffers.
    pub length: U16,
    /// Immediate data, if present.
    pub immediate_data: U32,
    /// Address handle of the destination.
    pub ah: U16,
    /// Hints for processing the request. Any value is valid.
    pub hints: u8,
    /// Not used.
    pub reserved: u8,
    /// Queue key of the destination's queue pair.
    pub qkey: U32,
    /// Not used.
    pub reserved2: [u8; 6],
    /// Upper part of a number of 64 bits, which the completion repeats.
    pub req_id_ex: [U16; 3],
}

/// Field `ctrl1` of [`SendMeta`].
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct SendControl {
    /// Number of an [`Operation`].
    #[bits(4)]
    pub operation: u8,
    /// Immediate data is present.
    pub has_immediate: bool,
    /// The data is in the entry.
    pub is_inline: bool,
    /// Zero.
    pub meta_extension: bool,
    /// Always set.
    pub is_meta: bool,
}

/// Field `ctrl2` of [`SendMeta`].
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct SendFlags {
    /// Toggles with each pass through the queue.
    pub phase: bool,
    #[bits(1)]
    __: u8,
    /// First descriptor of the request: always set.
    pub first: bool,
    /// Last descriptor of the request: always set.
    pub last: bool,
    /// Requests a completion.
    pub completion: bool,
    #[bits(3)]
    __: u8,
}

/// A local buffer (`efa_io_tx_buf_desc`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LocalBuffer {
    /// Its length in bytes.
    pub length: U32,
    /// Local key of its memory region, in 24 bits.
    pub lkey: U32,
    /// Its address, as the region was registered.
    pub address: U64,
}

/// A remote buffer (`efa_io_remote_mem_addr`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RemoteBuffer {
    /// Its length in bytes.
    pub length: U32,
    /// Remote key of its memory region.
    pub rkey: U32,
    /// Its address, as the region was registered.
    pub address: U64,
}

/// The memory of a region that was allocated (`efa_io_fast_mr_reg_req`), which follows [`SendMeta`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FastRegistration {
    /// Local key, whose lowest 8 bits differ from those before.
    pub lkey: U32,
    /// Permitted accesses to the memory.
    pub permissions: Permissions,
    /// Pages and their list.
    pub flags: FastRegistrationFlags,
    /// Zero.
    pub reserved: [u8; 2],
    /// Address of the region in work requests.
    pub iova: U64,
    /// Length in bytes.
    pub length: U64,
    /// Address of the only page, or of the list of pages.
    pub pages: U64,
}

/// Field `flags` of [`FastRegistration`].
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct FastRegistrationFlags {
    /// Page size, as a power of two.
    #[bits(5)]
    pub page_shift: u8,
    /// 0: `pages` is the address of the only page. 1: it is the address of a list of pages.
    #[bits(2)]
    pub list_mode: u8,
    pub reserved: bool,
}

/// The region to invalidate (`efa_io_fast_mr_inv_req`), behind [`SendMeta`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FastInvalidation {
    /// Local key.
    pub lkey: U32,
    /// Zero.
    pub reserved: [u8; 28],
}

/// The bits of a descriptor that hold a key. The others have other meanings or none.
pub const LOCAL_KEY_MASK: u32 = 0x00ff_ffff;

/// A descriptor of a receive queue (`efa_io_rx_desc`). A receive work request is one or several of them.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReceiveDescriptor {
    /// Address of the buffer, as its region was registered.
    pub address: U64,
    /// Number that the completion repeats. The first descriptor's is used.
    pub req_id: U16,
    /// Length of the buffer in bytes.
    pub length: U16,
    /// Key, and flags of the first and the last descriptor of a request.
    pub key: ReceiveKey,
}

/// Field `lkey_ctrl` of [`ReceiveDescriptor`].
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ReceiveKey {
    /// Local key of the buffer's memory region.
    #[bits(24)]
    pub lkey: u32,
    #[bits(6)]
    __: u8,
    /// First descriptor of the request.
    pub first: bool,
    /// Last descriptor of the request.
    pub last: bool,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!(size_of::<SendMeta>(), 32);
        assert_eq!(offset_of!(SendMeta, immediate_data), 8);
        assert_eq!(offset_of!(SendMeta, qkey), 16);
        assert_eq!(offset_of!(SendMeta, req_id_ex), 26);
        assert_eq!(size_of::<LocalBuffer>(), 16);
        assert_eq!(size_of::<RemoteBuffer>(), 16);
        assert_eq!(size_of::<ReceiveDescriptor>(), 16);
        assert_eq!(offset_of!(ReceiveDescriptor, key), 12);
        assert_eq!(size_of::<FastRegistration>(), 32);
        assert_eq!(offset_of!(FastRegistration, iova), 8);
        assert_eq!(size_of::<FastInvalidation>(), 32);
        let meta = size_of::<SendMeta>();
        assert_eq!(meta + INLINE_BYTES, SEND_ENTRY_BYTES);
        assert_eq!(meta + 16 + LONG_INLINE_BYTES, LONG_SEND_ENTRY_BYTES);
    }

    #[test]
    fn bits_are_those_of_the_header() {
        let control = SendControl::new()
            .with_operation(2)
            .with_has_immediate(true)
            .with_is_meta(true);
        assert_eq!(control.into_bits(), 0x92);
        let flags = SendFlags::new()
            .with_first(true)
            .with_last(true)
            .with_completion(true);
        assert_eq!(flags.into_bits(), 0x1c);
        let pages = FastRegistrationFlags::new()
            .with_page_shift(12)
            .with_list_mode(1);
        assert_eq!(pages.into_bits(), 0x2c);
        let key = ReceiveKey::new()
            .with_lkey(0xab_cdef)
            .with_first(true)
            .with_last(true);
        assert_eq!(key.as_bytes(), 0xc0ab_cdef_u32.to_le_bytes());
    }

    #[test]
    fn operation_has_the_number_of_the_header() {
        use Operation::{FastInvalidate, FastRegister, RdmaRead, RdmaWrite, Send};
        for operation in [Send, RdmaRead, RdmaWrite, FastRegister, FastInvalidate] {
            assert_eq!(Operation::from_number(operation as u8), Some(operation));
        }
        assert_eq!(Operation::from_number(5), None);
    }
}
