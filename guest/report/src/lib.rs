//! The messages between the launcher and the guest's agent.
//!
//! They use one virtio-serial port named [`PORT`]. The launcher writes one line, the [`Plan`] as
//! JSON. The agent answers with KTAP version 1: a plan line, one result line for each check, and
//! before each result line the check's [`Measure`] as a diagnostic line. A check can send two
//! requests in between, as diagnostic lines: [`Line::Counters`], which the launcher answers with
//! the [`Counters`] of all devices as one line of JSON, and [`Line::Kill`], which has no answer.
//!
//! If the plan is interactive, the launcher continues with one [`Request`] per line once the agent
//! has reported `ready` and the results of the plan's checks. The agent then writes the plan line
//! last.

#![forbid(unsafe_code)]

mod check;
mod counters;
mod evidence;
pub mod exec;
mod kernel_warnings;
mod ktap;
mod measure;
mod placeholder;
mod plan;
mod probe;
mod rdma_rate;
mod request;
mod similar;
mod size_range;
mod steering;
mod timeout;
mod trace_line;

pub use check::*;
pub use counters::{Counters, DeviceCounters, inference};
pub use evidence::{
    AcsRegisters, Evidence, GuestPlatform, IommuGroup, KernelDecision, PciFunction,
};
pub use kernel_warnings::KnownWarnings;
pub use ktap::{
    KtapError, KtapReader, KtapWriter, Line, Nested, ProgramReport, Subtest, Verdict, reported_name,
};
pub use measure::{Measure, PayloadFlow};
pub use peerbar_dma_log::{Completer, Direction, Route};
pub use peerbar_host::{Size, SizeError};
pub use placeholder::{fill_in, unknown_placeholder};
pub use plan::{ForeignDevice, ForeignKind, Gpu, HostFolder, Module, Mount, Nic, NvmeDevice, Plan};
pub use probe::{ProbeOutcome, Probed, Record, Transfer};
pub use rdma_rate::RdmaRate;
pub use request::Request;
pub use similar::{similar, way_out, way_out_or};
pub use size_range::size_range;
pub use steering::steers;
pub use timeout::{Timeout, TimeoutError};
pub use trace_line::{ClockSample, TraceLine};

/// Name of the virtio-serial port.
pub const PORT: &str = "org.peerbar.report";

/// Name of the virtio-serial port for trace events, which a guest has if [`Plan::trace`] is set.
/// The agent writes the output of tracefs, with [`TraceLine`]s in between.
pub const TRACE_PORT: &str = "org.peerbar.trace";
