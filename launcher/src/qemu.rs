//! `peerbar qemu`: the QEMU of the cache, for people whose own is too old.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::anyhow;
use peerbar_images::{Qemu, Root};
use peerbar_lab::artifacts::until_a_signal;
use peerbar_lab::exit::Failure;
use peerbar_lab::signals::Signals;

/// Becomes QEMU with these arguments. Returns only if that fails.
pub(crate) fn qemu(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let signals = Signals::new()?;
    let mut command = until_a_signal(&signals, |cache| {
        let root = Root::get(cache)?;
        // No other process removes the root while QEMU runs in it.
        cache.keep_marks_at_exec()?;
        Ok(Qemu::from_root(&root).command())
    })?;
    let error = command.args(arguments).exec();
    let program = command.get_program().to_string_lossy();
    Err(anyhow!(error)
        .context(format!("cannot start {program}"))
        .into())
}
