//! `peerbar inject`: faults for a device of a running guest, and impairments for the fabric.

use std::fmt::Display;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::anyhow;
use peerbar_lab::exit::Failure;
use peerbar_lab::injecting::{FABRIC, InjectError, clear_faults, impair, inject as inject_into};
use peerbar_lab::port_error::{PortError, report_port_error};
use peerbar_lab::terminal::print;

use crate::cli::Inject;

/// Has the device take the rule, or forget all its rules, or its port report an error, and prints what was done.
pub(crate) fn inject(options: &Inject) -> Result<ExitCode, Failure> {
    let Inject { device, words, .. } = options;
    let run = &match device == FABRIC {
        true => options.run.clone(),
        false => options.guest.folder(&options.run)?,
    };
    let done = if options.clear {
        clear_faults(run, device)
    } else if let Some(text) = &options.port_error {
        report_port_error(run, device, rule::<PortError>(text)?)
    } else if words.is_empty() {
        return Err(Failure::Usage(anyhow!(
            "name a rule for {device}, as `drop completion nth=10`; --clear removes its rules, --port-error has its port report an error"
        )));
    } else {
        let text = words.join(" ");
        match device == FABRIC {
            true => impair(run, &rule(&text)?),
            false => inject_into(run, device, &rule(&text)?),
        }
    };
    let done = done.map_err(|error| match error {
        InjectError::Socket { .. } => Failure::Environment(error.into()),
        _ => Failure::Usage(error.into()),
    })?;
    print(&format!("{device}: {done}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// What the user has written.
fn rule<R: FromStr<Err: Display>>(text: &str) -> Result<R, Failure> {
    let parsed = text.parse();
    parsed.map_err(|error| Failure::Usage(anyhow!("`{text}` {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest_folder::GuestName;

    /// Why `peerbar inject` with these words is refused: as a mistake of the user's.
    fn refusal(device: &str, words: &[&str]) -> String {
        let options = Inject {
            device: device.to_owned(),
            words: words.iter().map(|&word| word.to_owned()).collect(),
            port_error: None,
            clear: false,
            run: "/no/run".into(),
            guest: GuestName::default(),
        };
        let failure = inject(&options).unwrap_err();
        assert!(matches!(failure, Failure::Usage(_)), "{failure}");
        failure.to_string()
    }

    #[test]
    fn fabric_takes_rules_of_its_own() {
        let message = refusal("fabric", &["drop", "completion"]);
        assert!(
            message.contains("begins with no pair of adapters"),
            "{message}"
        );
        for words in [["a->b", "loss=1%"], ["a<->b", "partition"]] {
            let message = refusal("fabric", &words);
            assert!(message.contains("no device fabric is served"), "{message}");
        }
    }

    #[test]
    fn device_alone_is_answered_with_what_may_follow() {
        let message = refusal("disk0", &[]);
        for word in ["disk0", "--clear", "--port-error"] {
            assert!(message.contains(word), "{word} is not in: {message}");
        }
    }
}
