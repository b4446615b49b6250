//! The parts of a kernel build that are kept: the kernel, and the files for building modules.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::make::Make;
use crate::ImageError;
use crate::error::io_error;
use crate::kernel_tree::BUILT_IMAGE;

/// The file in a kept build that names the tree of the tools it was built with.
pub(crate) const TOOLS: &str = "peerbar-tools";

/// Headers of the kernel's own drivers that a module of this project includes.
pub(super) const PRIVATE_HEADERS: [&str; 1] = ["drivers/nvme/host/nvme.h"];

/// Makes the folder `entry` a build tree for modules (Linux,
/// `scripts/package/install-extmod-build`), with the kernel, its symbols and its configuration.
pub(super) fn export(make: &Make<'_>, tools: &Path, entry: &Path) -> Result<(), ImageError> {
    fs::create_dir(entry).map_err(io_error("create", entry))?;
    let script = make.source.join("scripts/package/install-extmod-build");
    if script.is_file() {
        install(make, &script, entry)?;
    }
    for name in [
        BUILT_IMAGE,
        "vmlinux",
        ".config",
        "System.map",
        "modules.builtin",
        "modules.order",
    ] {
        keep(&make.build.join(name), &entry.join(name))?;
    }
    // From the source, for modules that extend the kernel's own drivers.
    for name in PRIVATE_HEADERS {
        keep(&make.source.join(name), &entry.join(name))?;
    }
    // Links into the folder of the build, which is removed.
    for name in ["vmlinux-gdb.py", "scripts/gdb"] {
        let from = make.build.join(name);
        if from.exists() {
            copy_followed(&from, &entry.join(name))?;
        }
    }
    let path = entry.join(TOOLS);
    fs::write(&path, tools.as_os_str().as_encoded_bytes()).map_err(io_error("write", &path))
}

/// Runs the kernel's own script, which is meant for packages of distributions. With compilers of
/// one name it builds nothing.
fn install(make: &Make<'_>, script: &Path, entry: &Path) -> Result<(), ImageError> {
    let output = Command::new("sh")
        .arg(script)
        .arg(entry)
        .current_dir(&make.build)
        .env("srctree", &make.source)
        .env("SRCARCH", "x86")
        .env("CC", "cc")
        .env("HOSTCC", "cc")
        .stdin(Stdio::null())
        .output()
        .map_err(io_error("run", script))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(ImageError::ModuleBuild {
        status: output.status.to_string(),
        reason: message
            .lines()
            .last()
            .unwrap_or("it printed nothing")
            .to_owned(),
        log: make.log.clone(),
    })
}

fn keep(from: &Path, to: &Path) -> Result<(), ImageError> {
    if !from.exists() {
        return Ok(());
    }
    let folder = to.parent().unwrap_or(to);
    fs::create_dir_all(folder).map_err(io_error("create", folder))?;
    fs::copy(from, to).map(drop).map_err(io_error("copy", from))
}

/// Copies a file, or a whole folder; links are followed.
fn copy_followed(from: &Path, to: &Path) -> Result<(), ImageError> {
    if to.symlink_metadata().is_ok_and(|old| !old.is_dir()) {
        fs::remove_file(to).map_err(io_error("remove", to))?;
    }
    if !from.is_dir() {
        return keep(from, to);
    }
    fs::create_dir_all(to).map_err(io_error("create", to))?;
    for found in fs::read_dir(from).map_err(io_error("list", from))? {
        let name = found.map_err(io_error("list", from))?.file_name();
        copy_followed(&from.join(&name), &to.join(&name))?;
    }
    Ok(())
}
