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

/// Writes the template as `file`, which must not be there unless `force` is given.
pub(crate) fn init(file: &Path, force: bool) -> Result<ExitCode, Failure> {
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
    let written = opened.write_all(Scenario::TEMPLATE.as_bytes());
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
