//! An NVMe 2.0 controller with a Controller Memory Buffer.
//!
//! # What is emulated
//! One I/O controller of one NVM subsystem with the NVM command set: admin queues and up to 64 I/O queue pairs, each with
//! an MSI-X vector of its own (or all of them on the INTx pin), data by PRPs, controller reset, function-level reset,
//! shutdown, asynchronous events, the log pages and features that Linux, nvme-cli and fio use, Read, Write, Flush, Write
//! Zeroes, Dataset Management, Compare and Verify, on namespaces in RAM or in raw images. The buffer takes data and PRP
//! lists and, if asked for, queues. A vendor log page ([`peerbar_nvme_spec::dma_log`]) tells which way every byte of DMA
//! went.
//!
//! # What is not
//! SGLs, metadata and protection information, fused commands, weighted arbitration, namespace management, firmware
//! update, format, sanitize, security, reservations, the Persistent Memory Region. Abort ends none but Asynchronous Event
//! Requests: other commands are carried out as soon as they are fetched, or are the kernel's to end.
//!
//! # How
//! The thread that answers the guest's accesses only ever touches [`registers`](Controller) and doorbells; it leaves word
//! in a mailbox. The engine, a thread of its own, does what the registers and the admin queue ask for. Workers share the I/O
//! queues, each of which is one worker's own: the engine gives them queues and takes them away by orders, and waits until
//! these have been carried out. Only engine and workers do DMA. A DMA that fails completes its command with Data Transfer
//! Error; one that fails on a queue itself sets CSTS.CFS.
//!
//! A worker fetches commands and posts completions in batches, and moves data by one copy where both sides are memory that
//! is mapped here. Data of an image goes by the kernel (`peerbar_file_ring`), many commands at once, straight between the
//! file and memory that is mapped here, and so do flushes and zeroes: the worker goes on with other commands, of the same
//! queue and others, and completes each when the kernel has. Whoever takes such memory away, or resets, waits for the
//! kernel; a flush that goes on is forgotten by a reset. Between batches it looks at its doorbells: in a page of BAR0, which
//! the guest may map if the workers never sleep ([`Poll::Always`]), or in the guest's own memory (Doorbell Buffer Config,
//! for [`Poll::Adaptive`]). A batch of completions shares one interrupt; several do if the host asks for that (Interrupt
//! Coalescing), or while it is still at work on the last one: `outbox.rs`, `messages.rs`. How a worker goes to sleep without
//! missing a ring is in `alarm.rs` and `shadow.rs`. That and the way of a completion is tried in every order of events by
//! `tests/models`.
#![forbid(unsafe_code)]

mod admin;
mod alarm;
mod bell;
mod cmb;
mod coalescing;
mod config;
mod controller;
mod crew;
mod data;
mod directory;
mod doorbells;
mod engine;
mod health;
mod io;
mod job;
mod mailbox;
#[cfg(test)]
mod mailbox_tests;
mod messages;
mod namespace;
mod outbox;
#[cfg(test)]
mod outbox_tests;
mod pending;
#[cfg(test)]
mod pending_tests;
mod poll;
mod prp;
mod queues;
mod registers;
mod seeded_fault;
mod shadow;
#[cfg(test)]
mod shadow_tests;
mod storage;
mod sync;
mod worker;

pub use cmb::CmbError;
pub use config::{Config, ConfigError, Source, WORKERS};
pub use controller::{Controller, Running, StartError};
pub use namespace::ImageError;
pub use poll::{Poll, UnknownPoll};
pub use seeded_fault::{FaultKind, SeededFault, UnknownFault};
