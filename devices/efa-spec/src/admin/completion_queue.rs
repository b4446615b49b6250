//! Completion queues.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Address;

/// First capabilities of a completion queue.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct CqCaps1 {
    #[bits(5)]
    pub reserved_low: u8,
    /// The queue sends events to an event queue. Otherwise it is polled.
    pub interrupts: bool,
    /// Its address is an IOVA of a memory region.
    pub is_virtual: bool,
    pub reserved_high: bool,
}

/// Second capabilities of a completion queue.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct CqCaps2 {
    /// Length of an entry in words of 4 bytes: 4 or 8. The five bits hold at most 31, which is 124
    /// bytes.
    #[bits(5)]
    pub entry_words: u8,
    /// Completions of messages from unknown senders contain the sender's GID. Requires entries of 8
    /// words.
    pub source_address: bool,
    /// Completions of sends contain work request numbers of 64 bits.
    pub wide_request_id: bool,
    pub reserved: bool,
}

/// Create CQ (`efa_admin_create_cq_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CreateCq {
    /// First capabilities.
    pub caps_1: CqCaps1,
    /// Second capabilities.
    pub caps_2: CqCaps2,
    /// Entries of each of its parts, a power of two.
    pub depth: U16,
    /// Event queue for its events.
    pub eq: U16,
    /// Zero.
    pub reserved: U16,
    /// Its address.
    pub address: Address,
    /// Key of its memory region, if its address is an IOVA.
    pub key: U32,
    /// Number of its parts.
    pub parts: U16,
    /// User access region.
    pub uar: U16,
}

/// Answer to Create CQ (`efa_admin_create_cq_resp`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CreatedCq {
    /// Its number.
    pub cq: U16,
    /// Entries of each of its parts.
    pub depth: U16,
    /// Offset of its doorbell in the BAR of the doorbells.
    pub doorbell: U32,
    /// Bit 0: the doorbell is valid. Always set if the queue has events.
    pub flags: U32,
}

/// Destroy CQ (`efa_admin_destroy_cq_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DestroyCq {
    /// Its number.
    pub cq: U16,
    /// Zero.
    pub reserved: U16,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion::{ENTRY_BYTES, EXTENDED_ENTRY_BYTES};

    #[test]
    fn structs_have_the_lengths_of_the_driver() {
        assert_eq!(size_of::<CreateCq>(), 24);
        assert_eq!(size_of::<CreatedCq>(), 12);
        assert_eq!(CqCaps1::new().with_interrupts(true).into_bits(), 0x20);
        assert_eq!(CqCaps2::new().with_source_address(true).into_bits(), 0x20);
    }

    #[test]
    fn length_of_an_entry_ends_before_128_bytes() {
        let longest = CqCaps2::from_bits(0x1f);
        assert_eq!(longest.entry_words() * 4, 124);
        assert!(CqCaps2::new().with_entry_words_checked(128 / 4).is_err());
        for (words, bytes) in [(4, ENTRY_BYTES), (8, EXTENDED_ENTRY_BYTES)] {
            let caps = CqCaps2::new().with_entry_words(words);
            assert_eq!(caps.into_bits(), words);
            assert_eq!(usize::from(caps.entry_words()) * 4, bytes);
        }
    }
}
