//! `peerbar kernel build`: a kernel for peerbar.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::anyhow;
use peerbar_images::{Cache, ImageError, KernelBuild, KernelSource, KernelTree, Root};
use peerbar_lab::exit::Failure;
use peerbar_lab::temporary_folder::temporary_folder;
use peerbar_lab::terminal::{print, say};

use crate::cli;

/// Runs `peerbar kernel`.
pub(crate) fn kernel(command: &cli::KernelCommand) -> Result<ExitCode, Failure> {
    match &command.action {
        cli::KernelAction::Build(options) => build(options),
    }
}

fn build(options: &cli::KernelBuildOptions) -> Result<ExitCode, Failure> {
    temporary_folder()?;
    let cache = Cache::open()?;
    let source = source(options, &cache)?;
    let folder = built(&cache, source, &options.configuration)?;
    let path = folder.display();
    say(format_args!(
        "peerbar: run it with: peerbar run --kernel {path}"
    ));
    print(&format!("{path}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the folder of a kernel with this source and configuration.
pub(crate) fn built(
    cache: &Cache,
    source: KernelSource,
    configuration: &cli::KernelConfiguration,
) -> Result<PathBuf, Failure> {
    let build = KernelBuild {
        source,
        debug: configuration.debug,
        fragments: configuration.fragments.clone(),
        jobs: configuration.jobs.map(usize::from),
    };
    build.run(cache).map_err(failure)
}

/// Returns the named tree, that of the current folder, or the version of the root's kernel.
fn source(options: &cli::KernelBuildOptions, cache: &Cache) -> Result<KernelSource, Failure> {
    let tree = |path: &Path| KernelSource::Tree {
        path: path.to_path_buf(),
        commit: options.commit.clone(),
    };
    if let Some(path) = &options.tree {
        return Ok(tree(path));
    }
    if let Some(version) = &options.kernel_version {
        return Ok(KernelSource::Debian(version.clone()));
    }
    let here = std::env::current_dir().ok();
    if let Some(here) = here.as_deref().and_then(KernelTree::around) {
        let path = here.path();
        say(format_args!(
            "peerbar: the source is the kernel tree {}; --version takes Debian's",
            path.display()
        ));
        return Ok(tree(path));
    }
    let root = Root::get(cache)?;
    let release = &root.manifest().kernel;
    let mut numbers = release.split('.');
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) => Ok(KernelSource::Debian(format!("{major}.{minor}"))),
        _ => Err(
            anyhow!("the root's kernel {release} has no version: name one with --version").into(),
        ),
    }
}

/// Classifies an error: wrong names are the user's mistake, the rest concerns the machine or the
/// source.
fn failure(error: ImageError) -> Failure {
    match error {
        ImageError::NoKernelTree { .. }
        | ImageError::NoRepository { .. }
        | ImageError::Git { .. }
        | ImageError::DroppedOptions { .. } => Failure::Usage(error.into()),
        _ => Failure::Environment(error.into()),
    }
}
