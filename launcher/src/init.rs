//! `peerbar init`: a scenario to begin with.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use peerbar_lab::exit::Failure;
use peerbar_lab::scenario::Scenario;
use peerbar_lab::shell_word::quoted;
use peerbar_lab::terminal::print;

use crate::{cli, twin};

/// The machine on which the command runs, for `--like`.
const HERE: &str = "here";

/// Writes the template, or the twin of a machine. The file must not be there unless `--force` is
/// given.
pub(crate) fn init(options: &cli::Init) -> Result<ExitCode, Failure> {
    let (text, default) = match &options.like {
        None => (Scenario::TEMPLATE.to_owned(), "scenario.toml"),
        Some(source) => (twin(source, &options.only)?, "twin.toml"),
    };
    write(
        options.file.as_deref().unwrap_or(Path::new(default)),
        options.force,
        &text,
    )
}

/// Returns the scenario that imitates the machine of `source`.
fn twin(source: &Path, only: &[String]) -> Result<String, Failure> {
    let file = (source != Path::new(HERE)).then_some(source);
    let machine = peerbar_p2p::cli::machine(file).map_err(Failure::Usage)?;
    twin::scenario(&machine, &source.to_string_lossy(), only).map_err(Failure::Usage)
}

fn write(file: &Path, force: bool, text: &str) -> Result<ExitCode, Failure> {
    let shown = file.display();
    let mut options = OpenOptions::new();
    options
        .write(true)
        .truncate(true)
        .create(true)
        .create_new(!force);
    let mut opened = options.open(file).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists | ErrorKind::IsADirectory if file.is_dir() => {
            Failure::Usage(anyhow!("{shown} is a folder: name a file"))
        }
        ErrorKind::AlreadyExists => Failure::Usage(anyhow!(
            "{shown} is there already: name another file, or use --force"
        )),
        _ => Failure::Usage(anyhow!(error).context(format!("cannot write {shown}"))),
    })?;
    let written = opened.write_all(text.as_bytes());
    if written.is_err() && !force {
        // The file is new, and half a scenario would be in the way of the next attempt.
        drop(fs::remove_file(file));
    }
    written.with_context(|| format!("cannot write {shown}"))?;
    print(&format!(
        "{shown}: change it, and run it by `peerbar run {}`\n",
        quoted(&file.to_string_lossy())
    ))?;
    Ok(ExitCode::SUCCESS)
}
