//! Limits of the number of objects, and of the sizes of objects and transfers. The adapter reports
//! them to its driver.

use std::ops::RangeInclusive;

pub use peerbar_efa_spec::work::{INLINE_BYTES, LONG_INLINE_BYTES, RDMA_BUFFERS, SEND_BUFFERS};

use crate::memory_bar;

/// UARs.
pub const UARS: u16 = memory_bar::UARS;
/// Protection domains.
pub const PROTECTION_DOMAINS: u16 = 256;
/// Address handles.
pub const ADDRESS_HANDLES: u16 = 1024;
/// Event queues: one for each interrupt vector except that of the admin queue.
pub const EVENT_QUEUES: u16 = 32;
/// Completion queues.
pub const COMPLETION_QUEUES: u16 = memory_bar::COMPLETION_QUEUES;
/// Queue pairs.
pub const QUEUE_PAIRS: u16 = memory_bar::QUEUE_PAIRS;
/// Event counters. For each counter of user space, Linux creates two.
pub const EVENT_COUNTERS: u16 = 1024;
/// Memory regions.
pub const MEMORY_REGIONS: usize = 1 << 16;
/// Pages of one memory region.
pub const PAGES_PER_REGION: usize = 1 << 20;
/// Pages of all memory regions.
pub const PAGES: usize = 1 << 22;
/// Memory regions that are allocated for fast registration.
pub const FAST_REGIONS: usize = 1 << 12;
/// Pages of each of them.
pub const FAST_PAGES: usize = 1 << 12;
/// Sizes of the pages of a memory region, as powers of two.
pub const PAGE_SHIFTS: RangeInclusive<u8> = 12..=30;
/// Bytes of all entries of a send queue.
pub const SEND_QUEUE_BYTES: u32 = 128 << 10;
/// Entries of a send queue.
pub const SEND_QUEUE_ENTRIES: u32 = SEND_QUEUE_BYTES / 64;
/// Descriptors of a receive queue.
pub const RECEIVE_QUEUE_DESCRIPTORS: u32 = 8192;
/// Descriptors of one receive work request.
pub const RECEIVE_BUFFERS: usize = 2;
/// Entries of a completion queue.
pub const COMPLETION_QUEUE_ENTRIES: u16 = 32768;
/// Entries of an event queue.
pub const EVENT_QUEUE_ENTRIES: u16 = 4096;
/// Bytes of a message.
pub const MESSAGE_BYTES: u32 = 8928;
/// Bytes of an RDMA transfer.
pub const RDMA_BYTES: u32 = 1 << 30;

const _: () = assert!(SEND_QUEUE_BYTES as u64 == memory_bar::SEND_QUEUE_BYTES);
