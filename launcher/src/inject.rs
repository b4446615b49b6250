//! `peerbar inject`: faults for a device of a running guest.

use std::process::ExitCode;

use anyhow::anyhow;
use peerbar_fault::Rule;
use peerbar_lab::exit::Failure;
use peerbar_lab::injecting::{InjectError, clear_faults, inject as inject_into};
use peerbar_lab::port_error::{PortError, report_port_error};
use peerbar_lab::terminal::print;

use crate::cli::Inject;

/// Has the device take the rule, or forget all its rules, or its port report an error, and prints what was done.
pub(crate) fn inject(options: &Inject) -> Result<ExitCode, Failure> {
    let Inject {
        run, device, words, ..
    } = options;
    let done = if options.clear {
        clear_faults(run, device)
    } else if let Some(text) = &options.port_error {
        let error: PortError = text
            .parse()
            .map_err(|error| Failure::Usage(anyhow!("`{text}` {error}")))?;
        report_port_error(run, device, error)
    } else {
        let text = words.join(" ");
        let rule: Rule = text
            .parse()
            .map_err(|error| Failure::Usage(anyhow!("`{text}` {error}")))?;
        inject_into(run, device, &rule)
    };
    let done = done.map_err(|error| match error {
        InjectError::Socket { .. } => Failure::Environment(error.into()),
        _ => Failure::Usage(error.into()),
    })?;
    print(&format!("{device}: {done}\n"))?;
    Ok(ExitCode::SUCCESS)
}
