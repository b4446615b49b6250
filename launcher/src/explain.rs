//! `peerbar explain`: the route of peer-to-peer DMA, and the reason for it.
//!
//! The kernel's rule ([`peerbar_rule`]) is applied to the observations of a run's guest, or to a
//! scenario without a run. The output also shows the kernel's decision, the devices' counters, and
//! possible changes.

mod advice;
mod case;
mod explanation;
pub(crate) mod observed_guest;
mod pairs;
pub(crate) mod recorded;
mod text;
mod twin;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use peerbar_report::PciFunction;
use serde_json::json;

use case::Case;
use explanation::Explanation;
use pairs::Pair;
use recorded::{Recorded, check_was_run};

use crate::cli;
use crate::iommu::{injected, register_writes};
use peerbar_lab::exit::{Failure, RunOutcome};
use peerbar_lab::finished_run::not_run;
use peerbar_lab::results::{CheckResult, CheckStatus};
use peerbar_lab::scenario::{DeviceSpec, Scenario};
use peerbar_lab::terminal::{columns, print};
use peerbar_lab::verdict::RunVerdict;
use peerbar_results::{Explained, Refusal};

/// Message for a machine without pairs.
const NOTHING: &str = "nothing to explain: no device has memory for others; give an [[nvme]] a `cmb`, or add a [[gpu]]\n";

/// Explains the pairs that are asked for.
pub(crate) fn explain(options: &cli::Explain) -> Result<ExitCode, Failure> {
    let mut disagrees = false;
    if let Some(path) = &options.scenario {
        disagrees |= explain_case(
            &Case::of_scenario(options.guest.scenario(path, Scenario::load_interactive)?)?,
            options,
        )?;
    } else {
        for (number, (guest, folder)) in asked_runs(options)?.into_iter().enumerate() {
            // The others of a group have results, or the group itself has none.
            if let Some((guest, verdict)) = guest.as_ref().zip(not_run(&folder)) {
                print(&format!("== guest {guest}\n{verdict}\n"))?;
                continue;
            }
            let case = Case::of_run(Recorded::read(&folder)?)?;
            if number == 0 && !options.json {
                print(&unless_passed(&case))?;
            }
            if let Some(guest) = guest {
                print(&format!("== guest {guest}\n"))?;
            }
            disagrees |= explain_run(&case, &folder, options)?;
        }
    }
    Ok(match disagrees {
        true => ExitCode::from(RunOutcome::Failed.code()),
        false => ExitCode::SUCCESS,
    })
}

/// Returns the folders of the runs that are to be explained. A device, and a document of JSON, are
/// of one guest.
fn asked_runs(options: &cli::Explain) -> Result<Vec<(Option<String>, PathBuf)>, Failure> {
    check_was_run(&options.run)?;
    match options.json || options.provider.is_some() {
        true => Ok(vec![(None, options.guest.folder(&options.run)?)]),
        false => options.guest.folders(&options.run),
    }
}

/// Returns the verdict on a run that did not pass, and nothing for another: its checks may have
/// passed although it failed.
fn unless_passed(case: &Case) -> String {
    let failed = case.verdict.as_ref();
    let failed = failed.filter(|verdict| verdict.outcome != RunOutcome::Passed);
    failed.map_or_else(String::new, |verdict| format!("the run: {verdict}\n\n"))
}

/// Explains the run in `folder`. Returns `true` if its kernel did not follow the rule.
fn explain_run(case: &Case, folder: &Path, options: &cli::Explain) -> Result<bool, Failure> {
    let disagrees = explain_case(case, options)?;
    if !options.json {
        let injected = injected::of_run(folder, &case.scenario);
        if !injected.is_empty() {
            print(&format!("\n{injected}"))?;
        }
        let register_writes = register_writes::of_run(folder);
        if !register_writes.is_empty() {
            print(&format!("\n{register_writes}"))?;
        }
    }
    Ok(disagrees)
}

/// Explains the requested pairs of `case`. Returns `true` if its kernel did not follow the rule.
fn explain_case(case: &Case, options: &cli::Explain) -> Result<bool, Failure> {
    let (occasion, pairs) = asked(case, options)?;
    let explanations = explained(case, &pairs)?;
    let twin = case.scenario.twin.as_ref();
    let text = match twin.filter(|_| options.provider.is_none() && !options.json) {
        Some(twin) if occasion.is_empty() => twin::table(twin, &explanations, width()),
        _ if options.json => as_json(case.verdict.as_ref(), &explanations)?,
        _ => shown(&occasion, &explanations),
    };
    print(&text)?;
    Ok(explanations.iter().any(Explanation::disagrees))
}

/// Returns the explanation of the run in `folder`: the functions that its guest found, ports by the
/// names of the scenario, and an explanation for each pair of devices that the guest found. The run
/// may lack its verdict, because the page is written before that.
pub(crate) fn of_run(folder: &Path) -> Result<(Vec<PciFunction>, Vec<Explained>), Failure> {
    let case = Case::of_run(Recorded::read_before_verdict(folder)?)?;
    let pairs = pairs::all(&case.scenario);
    let explanations = pairs.iter().filter_map(|pair| Explanation::of(&case, pair));
    let explained = explanations.map(|explanation| {
        let text = text::text(&explanation, usize::MAX);
        let (title, text) = text.split_once('\n').unwrap_or((text.as_str(), ""));
        Explained {
            title: title.to_owned(),
            text: text.to_owned(),
            pair: Some(Pair::of(&explanation.provider, &explanation.client)),
            refusal: refusal(explanation),
        }
    });
    let explained = explained.collect();
    let functions = case.guest.map(|guest| guest.functions().to_vec());
    Ok((functions.unwrap_or_default(), explained))
}

/// Returns the reason why the kernel refuses, or `None` if it does not.
fn refusal(explanation: Explanation) -> Option<Refusal> {
    let kernel = explanation.kernel.map(|kernel| kernel.messages);
    let change = explanation.changes.into_iter().next();
    Some(Refusal {
        reason: explanation.rule.refusal?,
        kernel: kernel.unwrap_or_default(),
        change: change.map(|advice| advice.change),
    })
}

/// Returns all that is known about each of `pairs`.
///
/// # Errors
/// A device of one was not in the guest: silence would look like good news.
fn explained(case: &Case, pairs: &[Pair]) -> Result<Vec<Explanation>, Failure> {
    let explanations = pairs.iter().map(|pair| {
        let explanation = Explanation::of(case, pair);
        explanation.with_context(|| {
            let Pair { provider, client } = pair;
            format!(
                "the guest did not find both `{provider}` and `{client}`, see the run's console.log: name other devices, \
                 or ask for the rule's decision with --scenario"
            )
        })
    });
    explanations
        .collect::<Result<_, _>>()
        .map_err(Failure::Usage)
}

/// The pairs that `options` name; else those of the last failed check that has any, else all. And which of these it is, in words.
fn asked(case: &Case, options: &cli::Explain) -> Result<(String, Vec<Pair>), Failure> {
    if let Some(provider) = &options.provider {
        let provider = named(case, provider)?;
        let clients: Vec<DeviceSpec<'_>> = match &options.client {
            Some(client) => vec![named(case, client)?],
            None => case.scenario.devices().collect(),
        };
        let pair = |client: &DeviceSpec<'_>| Pair::of(provider.name(), client.name());
        return Ok((String::new(), clients.iter().map(pair).collect()));
    }
    let own = case.scenario.checks.iter().zip(&case.results);
    let own = own.map(|(check, result)| (result, check.pairs()));
    let is_here = |name: &str| case.scenario.devices().any(|device| device.name() == name);
    let across = case.across.iter().map(|result| {
        let mut pairs = result.pairs.clone();
        pairs.retain(|pair| is_here(&pair.provider) && is_here(&pair.client));
        (result, pairs)
    });
    let checks: Vec<(&CheckResult, Vec<Pair>)> = own.chain(across).collect();
    let failed = checks
        .into_iter()
        .rev()
        .find(|(result, pairs)| result.verdict == CheckStatus::Fail && !pairs.is_empty());
    let failed = failed.map(|(result, pairs)| {
        let occasion = format!(
            "the last check between devices that failed: {}",
            result.name
        );
        (occasion, pairs)
    });
    Ok(failed.unwrap_or_else(|| (String::new(), pairs::all(&case.scenario))))
}

fn named<'a>(case: &'a Case, name: &str) -> Result<DeviceSpec<'a>, Failure> {
    let found = case.scenario.devices().find(|device| device.name() == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = case.scenario.devices().map(DeviceSpec::name).collect();
        let names = names.join(", ");
        Failure::Usage(match Path::new(name).is_dir() {
            true => anyhow!(
                "no device is named `{name}`, which is a folder: name a run with --run {name}"
            ),
            false => anyhow!("no device is named `{name}`: there is {names}"),
        })
    })
}

/// Returns the width of a terminal; lines of other output are not wrapped.
fn width() -> usize {
    columns().map_or(usize::MAX, usize::from)
}

fn as_json(verdict: Option<&RunVerdict>, explanations: &[Explanation]) -> anyhow::Result<String> {
    let text = serde_json::to_string_pretty(&json!({ "verdict": verdict, "pairs": explanations }));
    Ok(text.context("cannot write JSON")? + "\n")
}

fn shown(occasion: &str, explanations: &[Explanation]) -> String {
    if explanations.is_empty() {
        return NOTHING.to_owned();
    }
    let texts = explanations.iter();
    let mut texts: Vec<String> = texts
        .map(|explanation| text::text(explanation, width()))
        .collect();
    if !occasion.is_empty() {
        texts.insert(0, format!("{occasion}\n"));
    }
    texts.join("\n")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::observed_guest::tests::root_ports;
    use super::*;

    const NO_MEMORY: &str = r#"
name = "bare"
[[nvme]]
name = "disk0"
namespaces = [{ ram = "1M" }]
[[check]]
kind = "controller-reset"
device = "disk0"
"#;

    #[test]
    fn scenario_without_provider_is_explained() {
        let scenario = Scenario::parse("x.toml".as_ref(), NO_MEMORY.to_owned()).unwrap();
        let case = Case::of_scenario(scenario).unwrap();
        let pairs = pairs::all(&case.scenario);
        let explanations = explained(&case, &pairs).unwrap();
        assert_eq!(shown("", &explanations), NOTHING);
    }

    #[test]
    fn scenario_without_checks_is_explained() {
        let book = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/two-disks.toml");
        let options = cli::Explain {
            scenario: Some(book.into()),
            ..options()
        };
        assert_eq!(explain(&options).unwrap(), ExitCode::SUCCESS);
    }

    #[test]
    fn folder_named_as_a_device_is_a_run_to_name() {
        let scenario = Scenario::parse("x.toml".as_ref(), NO_MEMORY.to_owned()).unwrap();
        let case = Case::of_scenario(scenario).unwrap();
        let message = |name| named(&case, name).err().unwrap().to_string();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let ends = format!("name a run with --run {path}");
        assert!(message(path).ends_with(&ends), "{}", message(path));
        assert!(message("gpu7").ends_with(": there is disk0"));
    }

    #[test]
    fn device_that_the_guest_did_not_find_is_named() {
        let run = Recorded {
            verdict: RunVerdict {
                outcome: RunOutcome::Failed,
                reason: String::new(),
            },
            scenario: Scenario::demo().unwrap(),
            release: "7.2.12".to_owned(),
            evidence: root_ports("GenuineIntel", 6, 2),
            results: Vec::new(),
            across: Vec::new(),
        };
        let case = Case::of_run(run).unwrap();
        assert!(explained(&case, &[Pair::of("a", "b")]).is_ok());
        let failure = explained(&case, &[Pair::of("gpu0", "b")]).map(|_| ());
        let message = failure.unwrap_err().to_string();
        assert!(
            message.contains("did not find both `gpu0` and `b`"),
            "{message}"
        );
    }

    /// `peerbar explain` of a run, of no pair.
    fn options() -> cli::Explain {
        let parsed = cli::Cli::try_parse_from(["peerbar", "explain"]).unwrap();
        match parsed.command {
            cli::Command::Explain(options) => options,
            _ => panic!("another command"),
        }
    }

    #[test]
    fn failed_check_across_guests_is_explained_by_the_pairs_of_each() {
        let across = CheckResult {
            name: "over the wire".to_owned(),
            verdict: CheckStatus::Fail,
            pairs: vec![Pair::of("disk0", "disk1"), Pair::of("gpu9", "nic9")],
            ..CheckResult::default()
        };
        let mut case = Case::of_scenario(Scenario::demo().unwrap()).unwrap();
        let options = options();
        let (occasion, _) = asked(&case, &options).unwrap();
        assert_eq!(occasion, "");
        case.across = vec![across];
        let (occasion, pairs) = asked(&case, &options).unwrap();
        assert!(
            occasion.ends_with("that failed: over the wire"),
            "{occasion}"
        );
        assert_eq!(pairs, [Pair::of("disk0", "disk1")]);
        let explained = explained(&case, &pairs).unwrap();
        let text = text::text(&explained[0], usize::MAX);
        let wanted = "devices  over the wire, fail: 0 B direct, 0 requests failed";
        assert!(text.contains(wanted), "{text}");
    }
}
