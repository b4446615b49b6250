//! The options of `peerbar kernel` and `peerbar bisect`.

use std::fs;
use std::num::NonZero;
use std::path::PathBuf;

use crate::completion;
use clap::{Args, Subcommand};
use peerbar_lab::count::count;

/// Builds kernels.
#[derive(Args)]
pub(crate) struct KernelCommand {
    /// What to do.
    #[command(subcommand)]
    pub action: KernelAction,
}

/// What to do about kernels.
#[derive(Subcommand)]
pub(crate) enum KernelAction {
    /// Builds a kernel with the smallest configuration that the scenarios need, and prints its folder. It is built once.
    #[command(
        before_help = "Examples:\n  peerbar kernel build --tree linux\n  peerbar kernel build --version 7.3 --debug"
    )]
    Build(KernelBuildOptions),
}

/// Which kernel is built.
#[derive(Args)]
pub(crate) struct KernelBuildOptions {
    /// Kernel tree to build, with all that is changed in it; nothing is written there [default: that around the current folder,
    /// else Debian's source of the kernel that peerbar boots].
    #[arg(long, value_name = "DIR")]
    pub tree: Option<PathBuf>,
    /// Commit of the tree to build, in place of its files.
    #[arg(long, value_name = "COMMIT", requires = "tree")]
    pub commit: Option<String>,
    /// Version of Debian's source to build, as `7.3`.
    #[arg(long = "version", value_name = "VERSION", conflicts_with = "tree", value_parser = kernel_version)]
    pub kernel_version: Option<String>,
    /// The configuration.
    #[command(flatten)]
    pub configuration: KernelConfiguration,
}

/// How a kernel is built.
#[derive(Args, Clone, Debug)]
pub(crate) struct KernelConfiguration {
    /// Add what finds mistakes of drivers (KASAN, PROVE_LOCKING, DMA_API_DEBUG, DMABUF_DEBUG, DEBUG_VM, kmemleak), and
    /// symbols for a debugger.
    #[arg(long)]
    pub debug: bool,
    /// File with further options, as `CONFIG_BTRFS_FS=y`; repeat it for more.
    #[arg(long = "fragment", value_name = "FILE", value_parser = readable_file)]
    pub fragments: Vec<PathBuf>,
    /// Jobs of make at once [default: one for each processor].
    #[arg(short, long, value_name = "N", value_parser = count::<NonZero<usize>>)]
    pub jobs: Option<NonZero<usize>>,
}

/// Which commits are searched, and what for.
#[derive(Args)]
pub(crate) struct Bisect {
    /// Commit with which the scenario passes.
    pub good: String,
    /// Later commit with which it fails.
    pub bad: String,
    /// What is done for each commit.
    #[command(flatten)]
    pub step: BisectStep,
}

/// What is done for one commit.
#[derive(Args, Clone)]
pub(crate) struct BisectStep {
    /// Kernel tree with the commits, a git repository. It stays as it is.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub tree: PathBuf,
    /// Scenario file [default: the built-in demo].
    #[arg(last = true, add = completion::scenarios())]
    pub scenario: Option<PathBuf>,
    /// How the kernels are built.
    #[command(flatten)]
    pub configuration: KernelConfiguration,
    /// Program that builds the commit it is given, and prints what `--kernel` takes.
    #[arg(long, value_name = "PROGRAM")]
    pub builder: Option<PathBuf>,
    /// Folder that gets a folder for each run.
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub runs: PathBuf,
}

/// Takes the path of a file that can be read.
fn readable_file(path: &str) -> Result<PathBuf, String> {
    match fs::read_to_string(path) {
        Ok(_) => Ok(path.into()),
        Err(error) => Err(format!("it cannot be read ({error})")),
    }
}

/// Takes a version as the names of Debian's source packages have it: two numbers.
fn kernel_version(text: &str) -> Result<String, String> {
    let is_number =
        |part: &str| !part.is_empty() && part.bytes().all(|digit| digit.is_ascii_digit());
    match text.split_once('.') {
        Some((major, minor)) if is_number(major) && is_number(minor) => Ok(text.to_owned()),
        _ => Err("write two numbers, as 7.3".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_of_debian_s_source_is_two_numbers() {
        assert_eq!(kernel_version("7.3"), Ok("7.3".to_owned()));
        for wrong in ["v7.3", "7", "7.3.1", "7.", "", "7.3-rc1"] {
            assert!(kernel_version(wrong).is_err(), "{wrong}");
        }
    }
}
