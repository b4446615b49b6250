//! The index of a kernel's modules that modprobe reads, made by the root's own depmod.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::ImageError;
use crate::error::io_error;

/// Writes the index into `base`, which has the modules in `lib/modules/RELEASE`. `root` is the tree
/// that contains depmod.
pub(crate) fn run(root: &Path, base: &Path, release: &str) -> Result<(), ImageError> {
    let mut command = Command::new(root.join("usr/lib64/ld-linux-x86-64.so.2"));
    command.arg("--library-path");
    command.arg(root.join("usr/lib/x86_64-linux-gnu"));
    // One program that acts according to its name.
    command.args(["--argv0", "depmod"]);
    command.arg(root.join("usr/bin/kmod"));
    command.arg("--basedir").arg(base).arg(release);
    let done = command
        .stdin(Stdio::null())
        .output()
        .map_err(io_error("run", Path::new("depmod")))?;
    if done.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&done.stderr);
    Err(ImageError::Depmod {
        release: release.to_owned(),
        status: done.status.to_string(),
        reason: words
            .lines()
            .next()
            .unwrap_or("it printed nothing")
            .to_owned(),
    })
}
