//! GPU-direct file I/O: transfers between a file and the memory of a GPU without a copy in host memory.
//!
//! The disk's controller writes into the GPU's memory by itself, as Linux's p2pdma arranges it, when a program reads a
//! file past the page cache into a mapping of GPU memory. This library makes such mappings, does such reads and
//! writes, and says plainly what did not go that way and why.
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
//! # Shapes
//! - [`Gpu`]: the device, opened; [`Buffer`]: a range of its memory, mapped; [`HostBuffer`]: memory outside of the GPU
//!   that its engines reach; [`ImportedBuffer`]: a dma-buf of another exporter. Clones of them are the same thing, and a buffer is
//!   freed with its last clone.
//! - [`ExportPolicy`]: which other drivers may import a buffer as a dma-buf, and what they may rely on.
//! - [`GpuFile`]: a file or a block device, opened past the page cache. [`GpuFile::read_at`] and [`GpuFile::write_at`]
//!   block, [`Queue`] is the asynchronous way (io_uring), [`batch`] does a list of requests at once.
//! - [`Command`]: what the GPU itself can do, submitted with [`Gpu::submit`], done when its [`Fence`] says so.
//! - [`GpuQueue`]: queues of a disk that the GPU drives by itself, without the processor.
//! - [`DiskQueues`]: such queues of a disk that Linux' own driver keeps.
//! - [`Policy`] says whether data may take a detour through host memory, [`Traffic`] counts what did and what did not.
//!
//! # Units and alignment
//! Sizes, lengths, offsets are bytes, any number of them: see [`Alignment`] for what is peer to peer and what is
//! left for a bounce.
//!
//! # What is not done here
//! A file that is written is on the disk when [`GpuFile::sync`] has returned. Nothing here locks files: two writers
//! must not share a block. There are no registered buffers of io_uring, for the kernel refuses peer-to-peer memory
//! there.

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
mod options;
mod queue;
mod span;
mod traffic;
// For tests that ask the driver for what this library cannot express.
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
pub use file::{Direction, GpuFile};
pub use gpu::{Gpu, Properties};
pub use gpu_queue::{Doorbells, GpuQueue, GpuRequest, QueueStatistics};
pub use options::FileOptions;
pub use peerbar_mapping::{Mapping, OutOfBounds};
pub use queue::{Completion, Queue, Request, Ticket, batch};
pub use span::Span;
pub use traffic::{Policy, Traffic};
