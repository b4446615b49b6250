//! `peerbar` with the servers that `scripts/build` makes, mostly in real guests. `scripts/test`
//! runs it.

mod bisect;
mod chapter;
mod commands;
mod debug_packages;
mod devices;
mod disks;
mod dma_buf_ranges;
mod explain;
mod failures;
mod fetch;
mod foreign;
mod guest_root;
mod in_guest;
mod kernel;
mod kernel_modules;
mod launched;
mod libvirt;
mod matrix;
mod own_guest;
mod parallel;
mod persistent_memory;
mod report;
mod several_guests;
mod timeline;
mod twin;
mod your_program;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use anyhow::Context;
use peerbar_lab::programs::program;

/// The command.
#[allow(clippy::unwrap_used, reason = "without it no test can run")]
static PEERBAR: LazyLock<PathBuf> = LazyLock::new(|| program("peerbar").unwrap());

/// Returns a `peerbar` with these words, to be started in `folder`.
fn command(words: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(&*PEERBAR);
    command.args(words).current_dir(folder);
    command
}

/// Runs `peerbar` with these words in `folder`.
fn peerbar(words: &[&str], folder: &Path) -> anyhow::Result<Output> {
    let output = command(words, folder).output();
    output.context("peerbar does not start")
}
