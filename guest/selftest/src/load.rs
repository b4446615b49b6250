//! Shared parts of the tests: a load of copies, and the wait until all memory is free.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use peerbar_agent::gpus;
use peerbar_agent::guest_context::GuestContext;
use peerbar_gds::Gpu;

use crate::expect::same;

/// Pages of the GPU, in bytes.
pub(super) const GPU_PAGE: u64 = 64 << 10;

/// Time limit for memory to be free once its last handle is closed: its last user may be a worker
/// of the kernel.
pub(super) const TIME_OUT: Duration = Duration::from_secs(10);

/// Size of the buffers that a load copies between, in bytes.
const LOAD_BYTES: u64 = 2 << 20;

/// Waits until all memory of the GPU is free.
pub(super) fn memory_is_back(guest: &GuestContext, gpu: &gpus::Gpu) -> anyhow::Result<()> {
    guest
        .uevents
        .wait_for(TIME_OUT, || all_is_free(gpu))
        .context("memory of the GPU is lost")
}

fn all_is_free(gpu: &gpus::Gpu) -> anyhow::Result<()> {
    let opened = gpu.open()?;
    if opened.properties().window {
        opened.allocate(opened.properties().aperture_bytes)?;
        return Ok(());
    }
    let state = gpu.pool().state()?;
    ensure!(
        state.available == state.size,
        "{} of {} bytes are free",
        state.available,
        state.size
    );
    Ok(())
}

/// Threads that let the GPU copy and compare, until [`Load::end`].
#[derive(Debug)]
pub(super) struct Load {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<anyhow::Result<u64>>>,
}

impl Load {
    pub(super) fn start(gpu: &Gpu, threads: u64) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let work = |seed| {
            let (gpu, end) = (gpu.clone(), end.clone());
            thread::spawn(move || copy_and_compare(&gpu, &end, seed))
        };
        Load {
            threads: (1..=threads).map(work).collect(),
            end,
        }
    }

    /// Ends the load. Returns the number of rounds, or the first error.
    pub(super) fn end(self) -> anyhow::Result<u64> {
        self.end.store(true, Ordering::Release);
        self.threads.into_iter().try_fold(0_u64, |sum, thread| {
            let rounds = thread
                .join()
                .map_err(|_| anyhow!("a thread of the load panicked"))??;
            Ok(sum.saturating_add(rounds))
        })
    }
}

fn copy_and_compare(gpu: &Gpu, end: &AtomicBool, seed: u64) -> anyhow::Result<u64> {
    let (first, second) = (gpu.allocate(LOAD_BYTES)?, gpu.allocate(LOAD_BYTES)?);
    let host = gpu.allocate_host(LOAD_BYTES)?;
    let mut rounds = 0_u64;
    while !end.load(Ordering::Acquire) {
        gpu.fill(
            first.span(..)?,
            seed.wrapping_mul(rounds).wrapping_add(seed),
        )?;
        gpu.copy(first.span(..)?, host.span(..)?)?;
        gpu.copy(host.span(..)?, second.span(..)?)?;
        same(gpu, second.span(..)?, first.span(..)?)
            .with_context(|| format!("a copy to the host and back, round {rounds}"))?;
        rounds = rounds.saturating_add(1);
    }
    Ok(rounds)
}
