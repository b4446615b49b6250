//! The GPU's copy engine: from GPU memory to other memory and back.

use anyhow::{Context, ensure};
use peerbar_agent::checks::route::judge;
use peerbar_agent::counters::TrafficWatch;
use peerbar_agent::guest_context::GuestContext;
use peerbar_gds::{Buffer, Command, Fence, Gpu, HostBuffer};
use peerbar_pattern::Pattern;
use peerbar_report::Buffer as With;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Test;

/// Sizes of the copies in KiB.
const SIZES: [u32; 4] = [4, 60, 1 << 10, 16 << 10];

/// Time limit for copies.
const TIME_OUT: std::time::Duration = std::time::Duration::from_secs(30);

/// Takes a GPU, a disk whose CMB is the other memory, if it is not guest RAM, and the size of the
/// largest copy in KiB.
pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let gpu = test.gpu()?;
    let opened = gpu.open()?;
    let with = match test.disk() {
        Ok(disk) => With::P2pmem(disk.name.clone()),
        Err(_) => With::GuestRam,
    };
    let [most] = test.numbers([16 << 10]);
    let largest = u64::from(most) << 10;
    let path = Path {
        gpu: &opened,
        vram: opened.allocate(largest)?,
        back: opened.allocate(largest)?,
        other: allocate(guest, &opened, &with, largest)?,
    };
    let mut bytes = 0;
    let mut watch = TrafficWatch::new(guest);
    for size in SIZES.into_iter().filter(|size| *size <= most) {
        let size = u64::from(size) << 10;
        let pattern = Pattern {
            disk: gpu.number,
            round: size,
        };
        path.fill(pattern, size)?;
        watch.watch(|| path.there_and_back(size))?;
        path.verify(pattern, size)
            .with_context(|| format!("a copy of {size} bytes to {with} and back"))?;
        bytes += 2 * size;
    }
    judge(&with, &[gpu.share(bytes)], watch.traffic()?)
}

fn allocate(guest: &GuestContext, gpu: &Gpu, with: &With, size: u64) -> anyhow::Result<HostBuffer> {
    match with {
        With::GuestRam => Ok(gpu.allocate_host(size)?),
        With::P2pmem(name) => {
            let allocate = guest.provider(name)?.pool.open()?;
            gpu.allocate_peer(&allocate, size)
                .with_context(|| format!("p2pmem of {name}"))
        }
    }
}

/// The path of the bytes: from one part of GPU memory through the other memory to another part of GPU memory.
struct Path<'a> {
    gpu: &'a Gpu,
    vram: Buffer,
    other: HostBuffer,
    back: Buffer,
}

impl Path<'_> {
    fn fill(&self, pattern: Pattern, size: u64) -> anyhow::Result<()> {
        let bytes = pattern.bytes(0, usize::try_from(size)?);
        self.vram.mapping().write(0, &bytes)?;
        self.gpu.fill(self.back.span(..size)?, 0)?;
        Ok(())
    }

    /// Submits both copies and waits as an event loop does, by a descriptor.
    fn there_and_back(&self, size: u64) -> anyhow::Result<()> {
        let events = self.gpu.eventfd()?;
        let (vram, back) = (self.vram.span(..size)?, self.back.span(..size)?);
        let other = self.other.span(..size)?;
        let fences = [(vram, other), (other, back)]
            .map(|(from, to)| self.gpu.submit(&Command::Copy { from, to }));
        let mut done = 0;
        while done < fences.len() as u64 {
            let timeout = Timespec::try_from(TIME_OUT)?;
            let ready = poll(&mut [PollFd::new(&events, PollFlags::IN)], Some(&timeout))?;
            ensure!(
                ready > 0,
                "{done} of 2 copies of {size} bytes are done after {} s",
                TIME_OUT.as_secs()
            );
            let mut count = [0; 8];
            rustix::io::read(&events, &mut count)?;
            done = done.saturating_add(u64::from_ne_bytes(count));
        }
        fences
            .into_iter()
            .try_for_each(|fence| Ok(finished(&fence?)?))
    }

    /// Checks the data after both copies, and the data in the other memory in between.
    fn verify(&self, pattern: Pattern, size: u64) -> anyhow::Result<()> {
        let mut seen = vec![0; usize::try_from(size)?];
        self.other.mapping().read(0, &mut seen)?;
        pattern.verify(0, &seen).context("on the way")?;
        self.back.mapping().read(0, &mut seen)?;
        Ok(pattern.verify(0, &seen)?)
    }
}

/// Returns the outcome of a command that is done according to the eventfd.
fn finished(fence: &Fence) -> peerbar_gds::Result<()> {
    fence.wait(std::time::Duration::ZERO).map(drop)
}
