//! A surprise removal of a GPU: the server behind it is killed.
//!
//! Disks write to its memory at that moment. Its own channels are idle, and commands are submitted
//! afterwards: QEMU 11.1 does not survive the death of a server in the middle of an exchange of
//! messages.

use std::fs;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use peerbar_agent::checks::route::judge;
use peerbar_agent::counters::TrafficWatch;
use peerbar_agent::devices::Controller;
use peerbar_agent::disk;
use peerbar_agent::guest_context::GuestContext;
use peerbar_gds::{Buffer, Error, FileOptions, Gpu, GpuFile};
use peerbar_report::Buffer as Through;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Test;
use crate::channel::{Channel, ChannelState};
use crate::expect::driver_refused;

const SIZE: u64 = 1 << 20;

/// Number of threads that read from the disk into VRAM.
const READERS: usize = 2;

/// Time limit for a program's error.
const TIME_OUT: Duration = Duration::from_secs(30);

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let (gpu, disk) = (test.gpu()?, test.disk()?);
    disk.disk.check(0, SIZE)?;
    let opened = gpu.open()?;
    let buffer = opened.allocate(SIZE)?;
    opened.fill(buffer.span(..)?, 1)?;
    let registers = Channel::of(&gpu.pci)?;
    let readers = start_readers(&opened, disk)?;

    guest.launcher.kill_server(&gpu.name)?;
    for reader in readers {
        reader.ends_with_an_error()?;
    }
    let state = registers.state()?;
    ensure!(
        state == ChannelState::Other(u32::MAX),
        "registers of a GPU that is gone read as {state:?}, not all-ones"
    );
    programs_get_errors(&opened, &buffer).context("programs that use it")?;
    the_disk_goes_on(guest, disk).context("the disk, with the GPU gone")?;

    fs::write(gpu.pci.join("remove"), "1").context("cannot remove it")?;
    drop((registers, buffer, opened));
    guest.uevents.wait_for(TIME_OUT, || {
        ensure!(!gpu.node_path().exists(), "its device file is still there");
        Ok(())
    })?;
    the_disk_goes_on(guest, disk).context("the disk, with the GPU removed")?;
    Ok(())
}

/// A thread that reads continuously.
struct Reader {
    thread: JoinHandle<anyhow::Result<Error>>,
    ended: Receiver<()>,
}

/// Starts the readers. Returns once each of them has read something.
fn start_readers(gpu: &Gpu, disk: &Controller) -> anyhow::Result<Vec<Reader>> {
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let file = FileOptions::new().open(gpu, &disk.disk.node)?;
        let buffer = gpu.allocate(SIZE)?;
        file.read_at(&buffer, .., 0)?;
        let (end, ended) = channel();
        let thread = thread::spawn(move || {
            let outcome = read_until_it_fails(&file, &buffer);
            // The receiver is gone if the check has failed.
            let _ = end.send(());
            outcome
        });
        readers.push(Reader { thread, ended });
    }
    Ok(readers)
}

fn read_until_it_fails(file: &GpuFile, buffer: &Buffer) -> anyhow::Result<Error> {
    loop {
        match file.read_at(buffer, .., 0) {
            Ok(SIZE) => {}
            Ok(read) => bail!("a read of {SIZE} bytes ends with {read}"),
            Err(error) => return Ok(error),
        }
    }
}

impl Reader {
    fn ends_with_an_error(self) -> anyhow::Result<()> {
        let ended = self.ended.recv_timeout(TIME_OUT);
        ended.context("reads into the memory of a GPU that is gone go on, or hang")?;
        let outcome = self.thread.join();
        match outcome.map_err(|_| anyhow!("a reading thread panicked"))?? {
            Error::Transfer { source, .. } if source.raw_os_error() == Some(libc::EIO) => Ok(()),
            other => {
                bail!("a read into memory that is gone should have failed with EIO, but: {other}")
            }
        }
    }
}

/// Checks that all waiters are woken, and new requests are refused.
fn programs_get_errors(gpu: &Gpu, buffer: &Buffer) -> anyhow::Result<()> {
    let fence = gpu.submit(&peerbar_gds::Command::Fill {
        to: buffer.span(..)?,
        pattern: 2,
    });
    let outcome = fence.and_then(|fence| fence.wait(TIME_OUT));
    driver_refused(outcome, libc::ENODEV).context("a command")?;
    driver_refused(gpu.allocate(SIZE), libc::ENODEV).context("an allocation")?;
    let mut polled = [PollFd::new(gpu, PollFlags::IN)];
    let ready = poll(&mut polled, Some(&Timespec::try_from(TIME_OUT)?))?;
    let events = polled.first().map(PollFd::revents);
    ensure!(
        ready == 1 && events.is_some_and(|events| events.contains(PollFlags::HUP)),
        "a poll sees {events:?}, not that it hung up"
    );
    Ok(())
}

/// Checks that the disk still moves data to and from guest RAM.
fn the_disk_goes_on(guest: &GuestContext, disk: &Controller) -> anyhow::Result<()> {
    let (pattern, length) = (guest.fresh_pattern(disk), usize::try_from(SIZE)?);
    let file = disk.disk.open_direct()?;
    let mut watch = TrafficWatch::new(guest);
    let seen = watch.watch(|| {
        disk::fill(&file, pattern, 0, length)?;
        disk::read(&file, 0, length)
    })?;
    pattern.verify(0, &seen)?;
    judge(
        &Through::GuestRam,
        &[disk.share(2 * SIZE)],
        watch.traffic()?,
    )
}
