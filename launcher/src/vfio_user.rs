//! `peerbar vfio-user`: the protocol between any client and any server.

mod check;
mod in_flight;
mod json;
mod lines;
mod output;
mod session;
mod summary;
mod time_line;
mod tracer;

use std::process::ExitCode;

use peerbar_lab::exit::Failure;

use crate::cli::{VfioUserAction, VfioUserCommand};

/// Runs `peerbar vfio-user`.
pub(crate) fn vfio_user(command: &VfioUserCommand) -> Result<ExitCode, Failure> {
    match &command.action {
        VfioUserAction::Check(options) => check::check(options),
        VfioUserAction::Trace(options) => session::trace(options),
    }
}
