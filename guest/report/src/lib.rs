//! What the launcher and the guest's agent say to each other.
//!
//! Both ends of one virtio-serial port named [`PORT`]. The launcher writes one line, the [`Plan`] as JSON. The
//! agent answers with KTAP version 1: a plan line, one result line for each check, and before each result
//! line the check's [`Measure`] as a diagnostic line. A check may
//! ask for the death of a device's server by a line of its own.

#![forbid(unsafe_code)]

mod check;
mod evidence;
mod ktap;
mod measure;
mod plan;
mod probe;
mod size;

pub use check::{
    Buffer, BufferedRead, Calls, Check, CheckKind, CheckTable, Command, ControllerReset, Copy,
    GpuAtomics, GpuBatch, GpuBeyondAperture, GpuCompute, GpuCopy, GpuDmaBuf, GpuFaults, GpuFile,
    GpuLifetimes, GpuLong, GpuLost, GpuMapping, GpuOwners, GpuPins, GpuRefused, GpuReset,
    GpuUnaligned, GpuUnload, GpuVirtio, Inventory, KINDS, Key, Keys, Kind, Medium, Pair,
    PoolExhausted, Probe, Provider, QueuesInCmb, TableError, check_reference,
};
pub use evidence::{
    AcsRegisters, Evidence, GuestPlatform, IommuGroup, KernelDecision, PciFunction,
};
pub use ktap::{KtapError, KtapReader, KtapWriter, Line, Verdict};
pub use measure::{Measure, Route};
pub use plan::{Gpu, Module, NvmeDevice, Plan};
pub use probe::{Probed, Record, Transfer};
pub use size::{Size, SizeError};

/// Name of the virtio-serial port.
pub const PORT: &str = "org.peerbar.report";
