//! `peerbar inject`: faults for a device of a running guest, and impairments for the fabric.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::anyhow;
use peerbar_lab::exit::Failure;
use peerbar_lab::injecting::{
    FABRIC, InjectError, clear_faults, impair, inject as inject_into, rules_in_force,
};
use peerbar_lab::port_error::{PortError, report_port_error};
use peerbar_lab::terminal::print;

use crate::cli::Inject;

/// Adds the rule to the device, or removes all its rules, or makes its port report an error, and
/// prints a confirmation. Without any of these it prints the current rules.
pub(crate) fn inject(options: &Inject) -> Result<ExitCode, Failure> {
    let Inject { device, words, .. } = options;
    let is_fabric = device == FABRIC;
    let run = &match is_fabric {
        true => of_fabric(options)?,
        false => options.guest.folder(&options.run)?,
    };
    let done = if options.clear {
        clear_faults(run, device)
    } else if let Some(text) = &options.port_error {
        report_port_error(run, device, rule::<PortError>(text)?)
    } else if words.is_empty() {
        rules_in_force(run, device).map(|rules| in_force(&rules))
    } else {
        let text = words.join(" ");
        match is_fabric {
            true => impair(run, &rule(&text)?),
            false => inject_into(run, device, &rule(&text)?),
        }
    };
    let done = done.map_err(|error| match error {
        InjectError::Socket { .. } => Failure::Environment(error.into()),
        _ => Failure::Usage(error.into()),
    })?;
    let lines = done.lines().map(|line| format!("{device}: {line}\n"));
    print(&lines.collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a line for each current rule.
fn in_force(rules: &[String]) -> String {
    match rules {
        [] => "no rule is in force".to_owned(),
        rules => format!("in force: {}", rules.join("\nin force: ")),
    }
}

/// Returns the folder of the run whose fabric is meant: that of all guests.
fn of_fabric(options: &Inject) -> Result<PathBuf, Failure> {
    let mistake = match (&options.guest.guest, &options.port_error) {
        (Some(guest), _) => format!("the fabric belongs to all guests: leave --guest {guest} out"),
        (None, Some(_)) => "--port-error is for a device: no port is above the fabric".to_owned(),
        (None, None) => return Ok(options.run.clone()),
    };
    Err(Failure::Usage(anyhow!(mistake)))
}

/// Parses the user's rule.
fn rule<R: FromStr<Err: Display>>(text: &str) -> Result<R, Failure> {
    let parsed = text.parse();
    parsed.map_err(|error| Failure::Usage(anyhow!("`{text}` {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest_folder::GuestName;

    /// `peerbar inject` with these words.
    fn options(device: &str, words: &[&str]) -> Inject {
        Inject {
            device: device.to_owned(),
            words: words.iter().map(|&word| word.to_owned()).collect(),
            port_error: None,
            clear: false,
            run: "/no/run".into(),
            guest: GuestName::default(),
        }
    }

    /// Returns the reason why `peerbar inject` rejects these words, as a mistake of the user.
    fn refusal(device: &str, words: &[&str]) -> String {
        refusal_of(&options(device, words))
    }

    fn refusal_of(options: &Inject) -> String {
        let failure = inject(options).unwrap_err();
        assert!(matches!(failure, Failure::Usage(_)), "{failure}");
        failure.to_string()
    }

    #[test]
    fn fabric_takes_rules_of_its_own() {
        let message = refusal("fabric", &["drop", "completion"]);
        assert!(
            message.contains("must begin with a pair of adapters"),
            "{message}"
        );
        for words in [["a->b", "loss=1%"], ["a<->b", "partition"]] {
            let message = refusal("fabric", &words);
            assert!(message.contains("no device fabric is served"), "{message}");
        }
    }

    #[test]
    fn fabric_has_neither_guest_nor_port() {
        let rule = ["a->b", "loss=1%"];
        let of_guest = Inject {
            guest: GuestName {
                guest: Some("left".to_owned()),
            },
            ..options("fabric", &rule)
        };
        let message = refusal_of(&of_guest);
        assert!(message.contains("leave --guest left out"), "{message}");
        let of_port = Inject {
            port_error: Some("surprise-down".to_owned()),
            ..options("fabric", &[])
        };
        let message = refusal_of(&of_port);
        assert!(message.contains("no port is above the fabric"), "{message}");
    }

    #[test]
    fn rules_in_force_have_a_line_each() {
        assert_eq!(in_force(&[]), "no rule is in force");
        let rules = ["a->b loss=1%", "c<->d partition"].map(str::to_owned);
        assert_eq!(
            in_force(&rules),
            "in force: a->b loss=1%\nin force: c<->d partition"
        );
    }

    #[test]
    fn device_alone_is_asked_for_its_rules() {
        let message = refusal("disk0", &[]);
        assert!(message.contains("no device disk0 is served"), "{message}");
    }
}
