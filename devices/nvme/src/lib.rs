//! An NVMe 2.0 controller with a Controller Memory Buffer and a Persistent Memory Region.
//!
//! # Emulated
//! One I/O controller of one NVM subsystem with the NVM command set: admin queues and up to 64 I/O
//! queue pairs, each with its own MSI-X vector (or all of them on the INTx pin), data by PRPs and,
//! if configured, by SGLs, controller reset, function-level reset, shutdown, asynchronous events,
//! the log pages and features that Linux, nvme-cli and fio use, Read, Write, Flush, Write Zeroes,
//! Dataset Management, Compare, Verify, and Sanitize by Block Erase, on namespaces in RAM or in raw
//! images. The buffer holds data, PRP lists and SGL segments and, if configured, queues; the region
//! holds data, and is kept in a file. A vendor log page ([`peerbar_nvme_spec::dma_log`]) reports the
//! route of every byte of DMA.
//!
//! # Not emulated
//! SGLs of more than 8192 descriptors of data or 256 segments, metadata and protection information,
//! fused commands, weighted arbitration, namespace management, firmware update, format, other ways to
//! sanitize, security, reservations. Abort only ends Asynchronous Event Requests: other commands
//! are executed as soon as they are fetched, or the kernel works on them.
//!
//! # Design
//! The thread that answers the guest's accesses only touches [`registers`](Controller) and
//! doorbells, and notifies the thread that owns the changed state (`notifier.rs`). The engine, a
//! separate thread, executes the requests of the registers and of the admin queue. Workers share
//! the I/O queues, and each queue has one worker as its owner: the engine adds and removes queues
//! by requests, and waits until these are confirmed. Only engine and workers do DMA. A DMA that
//! fails completes its command with Data Transfer Error; one that fails on a queue itself sets
//! CSTS.CFS. While bus mastering is off, doorbells, completions and interrupts stay pending; once
//! it is on, the function's bus notifies all threads.
//!
//! A worker fetches commands and posts completions in batches, and moves data with a single copy if
//! both sides are memory that is mapped here. The kernel (`peerbar_file_ring`) moves the data of an
//! image directly between the file and memory that is mapped here, for many commands at once, and
//! it also performs flushes and zeroing. In the meantime the worker executes other commands, and it
//! completes each command when the kernel has ended its work. A thread that takes such memory away,
//! or resets, waits for the kernel. The doorbells are in a page of
//! BAR0, which the guest may map if the workers poll indefinitely ([`PollPolicy::Always`]), or in
//! guest memory (Doorbell Buffer Config, for [`PollPolicy::Adaptive`]). A batch of completions
//! shares one interrupt; several batches do if the host configures Interrupt Coalescing, or while
//! the guest still works on the last one. `io_queue.rs` describes the path of a command;
//! `event_count.rs` and `io_queue/doorbell.rs` describe how a worker blocks without missing a
//! doorbell. The feature `loom` builds models of both, which try every order of events.
#![forbid(unsafe_code)]

mod admin;
mod cmb;
mod config;
mod controller;
mod data;
mod directory;
mod doorbell_page;
mod ended;
mod engine;
mod event_count;
mod health;
mod injected;
mod intx;
#[cfg(test)]
mod intx_tests;
mod io;
mod io_queue;
mod job;
mod late_data;
#[cfg(all(test, feature = "loom"))]
mod models;
mod namespace;
mod notifier;
#[cfg(test)]
mod notifier_tests;
mod pmr;
mod prp;
mod registers;
mod seeded_fault;
mod sgl;
#[cfg(feature = "stepped")]
mod stepped;
mod storage;
mod sync;
mod worker_pool;

pub use cmb::{CMB_UNIT, CmbError, LARGEST_CMB};
pub use config::{BLOCK_SIZES, Config, ConfigError, MDTS, MOST_SPARE_QUEUES, Source, WORKERS};
pub use controller::{Controller, VECTORS};
pub use io_queue::poll::{PollPolicy, UnknownPolicy};
pub use namespace::ImageError;
pub use pmr::{PMR_SIZES, PmrError};
pub use seeded_fault::{FaultKind, SeededFault, UnknownFault};
#[cfg(feature = "stepped")]
pub use stepped::{Disk, SteppedController};
