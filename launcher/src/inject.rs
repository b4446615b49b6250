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
    let Inject { device, words, .. } = options;
    let run = &options.guest.folder(&options.run)?;
    let done = if options.clear {
        clear_faults(run, device)
    } else if let Some(text) = &options.port_error {
        let error: PortError = text
            .parse()
            .map_err(|error| Failure::Usage(anyhow!("`{text}` {error}")))?;
        report_port_error(run, device, error)
    } else if words.is_empty() {
        return Err(Failure::Usage(anyhow!(
            "name a rule for {device}, as `drop completion nth=10`; --clear removes its rules, --port-error has its port report an error"
        )));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest_folder::GuestName;

    #[test]
    fn device_alone_is_answered_with_what_may_follow() {
        let options = Inject {
            device: "disk0".to_owned(),
            words: Vec::new(),
            port_error: None,
            clear: false,
            run: "/no/run".into(),
            guest: GuestName::default(),
        };
        let failure = inject(&options).unwrap_err();
        assert!(matches!(failure, Failure::Usage(_)), "{failure}");
        let message = failure.to_string();
        for word in ["disk0", "--clear", "--port-error"] {
            assert!(message.contains(word), "{word} is not in: {message}");
        }
    }
}
