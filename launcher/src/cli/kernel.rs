//! The options of `peerbar kernel` and `peerbar bisect`.

use std::fs;
use std::num::NonZero;
use std::path::PathBuf;

use crate::completion;
use clap::{Args, Subcommand};
use peerbar_lab::count::count;

/// Build kernels.
#[derive(Args)]
pub(crate) struct KernelCommand {
    /// The command.
    #[command(subcommand)]
    pub action: KernelAction,
}

/// The command about kernels.
#[derive(Subcommand)]
pub(crate) enum KernelAction {
    /// Build a kernel once, with the smallest configuration that the scenarios need, and print its
    /// folder.
    #[command(
        before_help = "Examples:\n  peerbar kernel build --tree linux\n  peerbar kernel build --version 7.3 --debug"
    )]
    Build(KernelBuildOptions),
}

/// The kernel to build.
#[derive(Args)]
pub(crate) struct KernelBuildOptions {
    /// Kernel tree to build with all of its changes; it is not written to [default: the tree around
    /// the current folder, or Debian's source of peerbar's own kernel].
    #[arg(long, value_name = "DIR")]
    pub tree: Option<PathBuf>,
    /// Commit of the tree to build, instead of its files.
    #[arg(long, value_name = "COMMIT", requires = "tree")]
    pub commit: Option<String>,
    /// Version of Debian's source to build, such as `7.3`.
    #[arg(long = "version", value_name = "VERSION", conflicts_with = "tree", value_parser = kernel_version)]
    pub kernel_version: Option<String>,
    /// The configuration.
    #[command(flatten)]
    pub configuration: KernelConfiguration,
}

/// The options of a build.
#[derive(Args, Clone, Debug)]
pub(crate) struct KernelConfiguration {
    /// Add options that find mistakes of drivers (KASAN, PROVE_LOCKING, DMA_API_DEBUG,
    /// DMABUF_DEBUG, DEBUG_VM, kmemleak), and symbols for a debugger.
    #[arg(long)]
    pub debug: bool,
    /// File with further options, such as `CONFIG_BTRFS_FS=y`; repeat it for more.
    #[arg(long = "fragment", value_name = "FILE", value_parser = readable_file)]
    pub fragments: Vec<PathBuf>,
    /// Number of simultaneous jobs of make [default: one for each processor].
    #[arg(short, long, value_name = "N", value_parser = count::<NonZero<usize>>)]
    pub jobs: Option<NonZero<usize>>,
}

/// The range and the subject of the search.
#[derive(Args)]
pub(crate) struct Bisect {
    /// Commit with which the scenario passes.
    pub good: String,
    /// Later commit with which it fails.
    pub bad: String,
    /// The test of each commit.
    #[command(flatten)]
    pub step: BisectStep,
}

/// The test of one commit.
#[derive(Args, Clone)]
pub(crate) struct BisectStep {
    /// Kernel tree with the commits, a git repository. It is not changed.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub tree: PathBuf,
    /// Scenario file [default: the built-in demo].
    #[arg(last = true, add = completion::scenarios())]
    pub scenario: Option<PathBuf>,
    /// The options of the kernels' builds.
    #[command(flatten)]
    pub configuration: KernelConfiguration,
    /// Program that builds a given commit, and prints a value for `--kernel`.
    #[arg(long, value_name = "PROGRAM")]
    pub builder: Option<PathBuf>,
    /// Folder for the folders of the runs.
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub runs: PathBuf,
}

/// Parses the path of a readable file.
fn readable_file(path: &str) -> Result<PathBuf, String> {
    match fs::read_to_string(path) {
        Ok(_) => Ok(path.into()),
        Err(error) => Err(format!("it cannot be read ({error})")),
    }
}

/// Parses a version in the form of Debian's source packages: two numbers.
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
