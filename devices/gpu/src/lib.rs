//! A GPU whose memory is a PCI BAR, as `INTERFACE.md` describes it.
//!
//! # Emulated
//! A 3D controller with VRAM behind an aperture, either the start of VRAM, which the guest maps, or
//! a window of 64 KiB pages that the driver maps to VRAM and unmaps again at run time. Sixteen
//! command channels with rings in guest memory or in VRAM, doorbells in a page that the guest maps,
//! fences, an MSI-X vector each. Copy, fill, compare, CRC-32C and a few compute kernels over VRAM,
//! guest memory and peers. Writes to registers of peers and waits for words, and a kernel that
//! drives the queues of an NVMe controller with them. Errors that stop one channel and are
//! recorded.
//!
//! # Not emulated
//! No shaders, no display, no GPU address spaces: a command names bus addresses, IOVAs and VRAM
//! offsets. One command is executed at a time, in slices that the channels have in turn; threads of
//! a kernel run one after the other. No INTx, no coherence with the CPU other than that of a BAR.
//!
//! # Design
//! The thread that answers the guest's accesses touches [`registers`](Gpu), doorbells and the
//! window; it notifies the engine, a separate thread, which alone does DMA. A DMA that fails stops
//! its channel: no fence, no result, and a fault record.
#![forbid(unsafe_code)]

mod aperture;
mod command;
mod config;
mod doorbells;
mod engine;
mod executor;
mod faults;
mod gpu;
mod gpu_memory;
mod kernels;
mod nvme_io;
mod nvme_queue;
mod operations;
mod registers;
mod ring;
#[cfg(feature = "stepped")]
mod stepped;
mod synchronization;
mod word;

pub use config::{Config, ConfigError, Mode};
pub use gpu::{Gpu, VECTORS};
#[cfg(feature = "stepped")]
pub use stepped::SteppedGpu;
