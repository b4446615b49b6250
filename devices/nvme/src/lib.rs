//! An NVMe 2.0 controller with a Controller Memory Buffer and a Persistent Memory Region.
//!
//! # What is emulated
//! One I/O controller of one NVM subsystem with the NVM command set: admin queues and up to 64 I/O queue pairs, each with
//! an MSI-X vector of its own (or all of them on the INTx pin), data by PRPs, controller reset, function-level reset,
//! shutdown, asynchronous events, the log pages and features that Linux, nvme-cli and fio use, Read, Write, Flush, Write
//! Zeroes, Dataset Management, Compare, Verify, and Sanitize by Block Erase, on namespaces in RAM or in raw images. The
//! buffer takes data and PRP lists and, if asked for, queues; the region takes data, and is kept in a file. A vendor log
//! page ([`peerbar_nvme_spec::dma_log`]) reports by which route every byte of DMA took.
//!
//! # What is not
//! SGLs, metadata and protection information, fused commands, weighted arbitration, namespace management, firmware
//! update, format, other ways to sanitize, security, reservations. Abort ends none but Asynchronous Event Requests: other
//! commands are carried out as soon as they are fetched, or are the kernel's to end.
//!
//! # How
//! The thread that answers the guest's accesses only touches [`registers`](Controller) and doorbells, and notifies the owner of
//! what has changed (`notifier.rs`). The engine, a thread of its own, does what the registers and the admin queue request.
//! Workers share the I/O queues, each of which is owned by one worker: the engine adds and removes queues by requests, and waits
//! until these are confirmed. Only engine and workers do DMA. A DMA that fails completes its command with Data Transfer Error;
//! one that fails on a queue itself sets CSTS.CFS. While bus mastering is off, doorbells, completions and interrupts are kept, and
//! the function's bus notifies all threads once it is on.
//!
//! A worker fetches commands and posts completions in batches, and moves data by one copy where both sides are memory that
//! is mapped here. Data of an image is moved by the kernel (`peerbar_file_ring`), many commands at once, straight between the
//! file and memory that is mapped here, and so are flushes and zeroes: the worker carries out other commands meanwhile, and
//! completes each when the kernel has ended its work. A thread that takes such memory away, or resets, waits for the kernel; a
//! late flush is dropped by a reset. The doorbells are in a page of BAR0, which the guest may map if the workers poll
//! indefinitely ([`PollPolicy::Always`]), or in the guest's own memory (Doorbell Buffer Config, for
//! [`PollPolicy::Adaptive`]). A batch of completions shares one interrupt; several do if the host configures Interrupt
//! Coalescing, or while it is still at work on the last one. `io_queue.rs` has the path of a command; `event_count.rs` and
//! `io_queue/doorbell.rs` how a worker blocks without missing a doorbell. The feature `loom` builds models of both, which try
//! every order of events.
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
