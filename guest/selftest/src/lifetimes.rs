//! Processes that die, pass descriptors on or release resources in any order leak nothing.

use anyhow::{Context, ensure};
use peerbar_agent::devices::Controller;
use peerbar_agent::gpus::Gpu;
use peerbar_agent::guest_context::GuestContext;

use crate::Test;
use crate::load::{GPU_PAGE, memory_is_back};
use crate::user::GpuUser;

/// Number of processes that are killed one after the other, and of those at once.
const KILLS: u32 = 4;

const MARK: u64 = 0x6b6b_6b6b_6b6b_6b6b;

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let (gpu, disk) = (test.gpu()?, test.disk()?);
    for number in 1..=KILLS {
        kill_under_load(gpu, disk).with_context(|| format!("kill {number}"))?;
        memory_is_back(guest, gpu).with_context(|| format!("after kill {number}"))?;
    }
    let outlived = a_mapping_outlives_the_files(guest, gpu);
    outlived.context("a descriptor that was passed over a socket")?;
    channels_run_out_and_come_back(gpu).context("more files than channels")?;
    closed_with_commands_under_way(guest, gpu).context("a file closed with commands under way")?;
    Ok(())
}

fn kill_under_load(gpu: &Gpu, disk: &Controller) -> anyhow::Result<()> {
    let node = disk.disk.node.to_string_lossy();
    let users = [
        GpuUser::load(gpu.node(), &node)?,
        GpuUser::load(gpu.node(), &node)?,
    ];
    users.into_iter().try_for_each(GpuUser::kill)
}

/// Checks that a process that received the GPU's descriptor and mapped a buffer keeps the memory
/// when all files are closed.
fn a_mapping_outlives_the_files(guest: &GuestContext, gpu: &Gpu) -> anyhow::Result<()> {
    let opened = gpu.open()?;
    let buffer = opened.allocate(GPU_PAGE)?;
    opened.fill(buffer.span(..)?, MARK)?;
    let offset = buffer.placement(0)?.vram_offset;
    let mut mapper = GpuUser::mapper(&opened, offset, usize::try_from(GPU_PAGE)?)?;
    drop((buffer, opened));
    let other = gpu.open()?;
    let new = other.allocate(GPU_PAGE)?;
    other.fill(new.span(..)?, 0)?;
    for index in [0, GPU_PAGE - 1] {
        let (seen, [right, ..]) = (mapper.byte_at(index)?, MARK.to_le_bytes());
        ensure!(
            seen == right,
            "the mapping shows {seen:x} at {index}, not {right:x}: its memory is another buffer's"
        );
    }
    drop((new, other));
    mapper.kill()?;
    memory_is_back(guest, gpu)
}

fn channels_run_out_and_come_back(gpu: &Gpu) -> anyhow::Result<()> {
    let channels = gpu.open()?.properties().channels;
    for round in 1..=2 {
        let mut files = Vec::new();
        for number in 1..=channels {
            let opened = gpu.open()?;
            let buffer = opened.allocate(GPU_PAGE)?;
            opened
                .fill(buffer.span(..)?, MARK)
                .with_context(|| format!("file {number} in round {round}"))?;
            files.push((buffer, opened));
        }
        let opened = gpu.open()?;
        let buffer = opened.allocate(GPU_PAGE)?;
        ensure!(
            opened.fill(buffer.span(..)?, MARK).is_err(),
            "there is a channel beyond the {channels} for files"
        );
    }
    Ok(())
}

/// Checks commands that nothing waits for, and whose buffers are freed at once.
fn closed_with_commands_under_way(guest: &GuestContext, gpu: &Gpu) -> anyhow::Result<()> {
    const BYTES: u64 = 8 << 20;
    let opened = gpu.open()?;
    let (from, to) = (opened.allocate(BYTES)?, opened.allocate_host(BYTES)?);
    let command = peerbar_gds::Command::Copy {
        from: from.span(..)?,
        to: to.span(..)?,
    };
    for _ in 0..32 {
        // The fence is dropped on purpose.
        let _ = opened.submit(&command)?;
    }
    drop((from, to, opened));
    memory_is_back(guest, gpu)
}
