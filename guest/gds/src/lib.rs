//! GPU-direct file I/O: transfers between a file and the memory of a GPU without a copy in host
//! memory.
//!
//! The disk's controller writes into the GPU's memory by itself, as Linux' p2pdma arranges it, when
//! a program reads a file without the page cache into a mapping of GPU memory. This library makes
//! such mappings, executes such reads and writes, and reports which bytes did not go that way, and
//! why.
//!
//! ```no_run
//! use peerbar_gds::{FileOptions, Gpu, Policy};
//!
//! # fn main() -> Result<(), peerbar_gds::Error> {
//! let gpu = Gpu::open(0)?;
//! let buffer = gpu.allocate(1 << 20)?;
//! let file = FileOptions::new().policy(Policy::PeerOnly).open(&gpu, "/mnt/data")?;
//!
//! let read = file.read_at(&buffer, .., 0)?;
//! let crc = gpu.crc32c(buffer.span(..read)?)?;
//! println!("{read} bytes, CRC-32C {crc:08x}, {} of them peer to peer", file.traffic().peer_bytes);
//! # Ok(())
//! # }
//! ```
//!
//! # Types
//! - [`Gpu`]: the device, opened; [`Buffer`]: a range of its memory, mapped; [`HostBuffer`]: memory
//!   outside the GPU that its engines can access; [`ImportedBuffer`]: a dma-buf of another
//!   exporter. Clones of them are the same thing, and a buffer is freed with its last clone.
//! - [`ExportPolicy`]: the other drivers that may import a buffer as a dma-buf, and their
//!   guarantees.
//! - [`GpuFile`]: a file or a block device, opened without the page cache. [`GpuFile::read_at`] and
//!   [`GpuFile::write_at`] block, [`Queue`] is the asynchronous way (io_uring), [`batch`] executes
//!   a list of requests at once.
//! - [`Command`]: an action of the GPU itself, submitted with [`Gpu::submit`], done when its
//!   [`Fence`] says so.
//! - [`GpuQueue`]: queues of a disk that the GPU drives by itself, without the processor.
//! - [`DiskQueues`]: such queues of a disk that Linux' own driver keeps.
//! - [`Policy`] decides if data may take a detour through host memory, [`Traffic`] counts the bytes
//!   of both ways.
//!
//! # Units and alignment
//! Sizes, lengths and offsets are arbitrary numbers of bytes: see [`Alignment`] for the part that
//! is peer to peer and the part that is left for a bounce.
//!
//! # Limitations
//! Written data is on the disk when [`GpuFile::sync`] has returned. Nothing here locks files: two
//! writers must not share a block. There are no registered buffers of io_uring, since the kernel
//! refuses peer-to-peer memory for them.

#![deny(unsafe_code)]

mod alignment;
mod bounce;
mod buffer;
mod buffer_handle;
mod command;
mod disk_queues;
mod driver;
mod error;
mod export_policy;
mod fault;
mod fence;
mod file;
mod gpu;
mod gpu_queue;
mod mapping;
mod options;
mod out_of_bounds;
mod queue;
mod span;
mod traffic;
mod transfer;
// For tests whose driver requests this library cannot express.
#[doc(hidden)]
pub mod uapi;

#[cfg(test)]
mod fake;

pub use alignment::Alignment;
pub use buffer::{Buffer, HostBuffer, ImportedBuffer, Placement};
pub use command::{Command, Kernel, NvmeIo};
pub use disk_queues::uapi as disk_uapi;
pub use disk_queues::{DiskMemory, DiskQueues, QueuePair, QueueState};
pub use error::{Error, FileTransfer, Result};
pub use export_policy::ExportPolicy;
pub use fault::Fault;
pub use fence::Fence;
pub use file::GpuFile;
pub use gpu::{Gpu, Properties};
pub use gpu_queue::{Doorbells, GpuQueue, GpuRequest, QueueStatistics};
pub use mapping::Mapping;
pub use options::FileOptions;
pub use out_of_bounds::{OutOfBounds, WordError};
pub use queue::{Completion, Queue, Request, Ticket, batch};
pub use span::Span;
pub use traffic::{Policy, Traffic};
pub use transfer::Direction;
