//! A user without privileges gets only some of the GPU's channels, and leaves the others to other
//! users.

#![expect(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

use anyhow::{Context, ensure};
use peerbar_agent::gpus;
use peerbar_gds::uapi::{SUBMIT, Submit};

use crate::fork::in_child;

/// `PB_CHANNELS_OF_A_USER` of the driver.
const MOST: u8 = 7;
/// The UID of a user without privileges.
const USER: libc::uid_t = 1000;
/// The child's exit code after a failure, in place of a count.
const FAILED: u8 = 255;

pub(super) fn of_a_user(gpu: &gpus::Gpu) -> anyhow::Result<()> {
    let path = gpu.node_path();
    let open = |_| File::options().read(true).write(true).open(&path);
    let files = (0..=MOST).map(open).collect::<Result<Vec<_>, _>>();
    let files = files.context("the device file")?;
    let ended = in_child(|| channels_as_a_user(&files))?;
    ensure!(
        ended.code() == Some(MOST.into()),
        "a user without rights should have got {MOST} channels and EBUSY for one more, but its process ended with {ended}"
    );
    // They are still open, and thus have their channels.
    let others = gpu.open()?;
    let buffer = others.allocate(super::GPU_PAGE)?;
    others.fill(buffer.span(..)?, 0)?;
    Ok(())
}

/// Returns the number of files that get a channel. Allocates nothing.
fn channels_as_a_user(files: &[File]) -> u8 {
    // SAFETY: changes only the user of this process, which has one thread.
    if unsafe { libc::setresuid(USER, USER, USER) } != 0 {
        return FAILED;
    }
    let mut count = 0;
    for file in files {
        let mut submit = Submit::default();
        // SAFETY: the structure of a command that does nothing, which the driver reads and writes.
        let outcome = unsafe { libc::ioctl(file.as_raw_fd(), SUBMIT.into(), &raw mut submit) };
        let error = std::io::Error::last_os_error().raw_os_error();
        match (outcome, error) {
            (0.., _) => count += 1,
            (_, Some(libc::EBUSY)) => return count,
            _ => return FAILED,
        }
    }
    count
}
