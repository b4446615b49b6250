//! Work requests as a driver posts them, their progress, and the packets and shared memory by which
//! they reach other adapters. Nothing here does DMA or sends anything.

pub(crate) mod job;
pub(crate) mod next_packet;
pub(crate) mod packet;
pub(crate) mod request;
pub(crate) mod staging;
