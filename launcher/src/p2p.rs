//! `peerbar p2p`: the crate `p2p` as a command.

use std::process::ExitCode;

use peerbar_p2p::cli::{CliError, Options, answer};

use peerbar_lab::exit::Failure;
use peerbar_lab::terminal::{columns, print};

/// Prints the verdicts that `options` ask for.
pub(crate) fn p2p(options: &Options) -> Result<ExitCode, Failure> {
    let text = answer(options, columns()).map_err(|error| match error {
        CliError::Usage(error) => Failure::Usage(error),
        CliError::Failed(error) => Failure::Failed(error),
    })?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
