//! The checks, one module for each kind.

mod buffered_read;
mod command;
mod controller_reset;
mod copy;
mod gpu_atomics;
mod gpu_batch;
mod gpu_beyond_aperture;
mod gpu_compute;
mod gpu_copy;
mod gpu_dma_buf;
mod gpu_driver;
mod gpu_faults;
mod gpu_file;
mod gpu_lost;
mod gpu_mapping;
mod gpu_refused;
mod gpu_unaligned;
mod layout;
mod pool_exhausted;
mod probe;
mod provider;
mod queues_in_cmb;
mod way;

use peerbar_report::{Check, Measure};

use crate::lab::Lab;

pub(crate) use way::Share;

/// How a check ended that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It passed.
    Passed,
    /// It passed, and what it said is wanted.
    Said(String),
    /// It could not be run, and why.
    Skipped(String),
}

/// Page size of the guest in bytes.
const PAGE: u64 = 4096;

/// Runs one check; `measure` holds its figures also if it fails.
///
/// # Errors
/// Why it failed: what was expected, what was seen, what to look at.
pub(crate) fn run(lab: &Lab, check: &Check, measure: &mut Measure) -> anyhow::Result<Outcome> {
    let outcome = carry_out(lab, check, measure)?;
    if lab.one_switch {
        way::stayed_below(measure)?;
    }
    Ok(outcome)
}

fn carry_out(lab: &Lab, check: &Check, measure: &mut Measure) -> anyhow::Result<Outcome> {
    match check {
        Check::Provider { device } => provider::run(lab, device)?,
        Check::QueuesInCmb { device } => queues_in_cmb::run(lab, device, measure)?,
        Check::Copy(copy) => copy::run(lab, copy, measure)?,
        Check::BufferedRead { from, provider } => buffered_read::run(lab, from, provider, measure)?,
        Check::PoolExhausted { provider } => pool_exhausted::run(lab, provider)?,
        Check::Probe(probe) => probe::run(lab, probe, measure)?,
        Check::ControllerReset { device } => controller_reset::run(lab, device)?,
        Check::Command(command) => return command::run(lab, command, measure),
        Check::GpuFile(file) => return gpu_file::run(lab, file, measure),
        Check::GpuUnaligned { gpu, disk } => gpu_unaligned::run(lab, gpu, disk, measure)?,
        Check::GpuBatch { gpu, disk } => gpu_batch::run(lab, gpu, disk, measure)?,
        Check::GpuRefused { gpu, disk } => gpu_refused::run(lab, gpu, disk, measure)?,
        Check::GpuCompute { gpu, from, to } => gpu_compute::run(lab, gpu, from, to, measure)?,
        Check::GpuAtomics { gpu } => gpu_atomics::run(lab, gpu, measure)?,
        Check::GpuCopy(copy) => gpu_copy::run(lab, copy, measure)?,
        Check::GpuDmaBuf { gpu, with } => gpu_dma_buf::run(lab, gpu, with, measure)?,
        Check::GpuVirtio { gpu } => gpu_dma_buf::virtio::run(lab, gpu, measure)?,
        Check::GpuFaults { gpu } => gpu_faults::run(lab, gpu)?,
        Check::GpuBeyondAperture { gpu } => gpu_beyond_aperture::run(lab, gpu)?,
        Check::GpuMapping { gpu } => gpu_mapping::run(lab, gpu)?,
        Check::GpuPins { gpu, disk } => gpu_driver::pins::run(lab, gpu, disk)?,
        Check::GpuLifetimes { gpu, disk } => gpu_driver::lifetimes::run(lab, gpu, disk)?,
        Check::GpuReset { gpu } => gpu_driver::reset::run(lab, gpu)?,
        Check::GpuLong { gpu } => gpu_driver::long::run(lab, gpu)?,
        Check::GpuOwners { gpu } => gpu_driver::owners::run(lab, gpu)?,
        Check::GpuLost { gpu, disk } => gpu_lost::run(lab, gpu, disk)?,
        Check::GpuUnload { gpu, disk } => gpu_driver::unload::run(lab, gpu, disk)?,
    }
    Ok(Outcome::Passed)
}
