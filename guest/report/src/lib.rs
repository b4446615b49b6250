//! What the launcher and the guest's agent say to each other.
//!
//! Both ends of one virtio-serial port named [`PORT`]. The launcher writes one line, the [`Plan`] as JSON. The
//! agent answers with KTAP version 1: a plan line, one result line for each check, and before each result
//! line the check's [`Measure`] as a diagnostic line. A check may
//! ask for the death of a device's server by a line of its own.

#![forbid(unsafe_code)]

mod evidence;
mod gpu;
mod ktap;
mod measure;
mod plan;
mod probe;

pub use evidence::{
    AcsRegisters, Evidence, GuestPlatform, IommuGroup, KernelDecision, PciFunction,
};
pub use gpu::{Calls, Gpu, GpuCopy, GpuFile, Medium};
pub use ktap::{KtapError, KtapReader, KtapWriter, Line, Verdict};
pub use measure::{Measure, Route};
pub use plan::{Buffer, Check, Command, Copy, Device, Module, Plan};
pub use probe::{Probe, Probed, Record, Transfer};

/// Name of the virtio-serial port.
pub const PORT: &str = "org.peerbar.report";
