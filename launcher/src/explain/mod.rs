//! `peerbar explain`: which way peer-to-peer DMA takes, and why.
//!
//! The kernel's rule ([`peerbar_rule`]) is applied to what the guest of a run found, or to a scenario that nobody has run.
//! Beside it stand what the kernel did, what the devices counted, and what to change.

mod advice;
mod case;
mod explanation;
pub(crate) mod guest;
mod pairs;
pub(crate) mod recorded;
mod text;

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use serde_json::json;

use case::Case;
use explanation::Explanation;
use pairs::Pair;
use recorded::Recorded;

use crate::cli;
use crate::exit::{Failure, Outcome};
use crate::results::print;
use crate::scenario::{Device, Scenario};

/// Explains the pairs that are asked for.
pub(crate) fn explain(options: &cli::Explain) -> Result<ExitCode, Failure> {
    let case = match &options.scenario {
        Some(path) => Case::of_scenario(Scenario::load(path)?)?,
        None => Case::of_run(Recorded::read(&options.run)?)?,
    };
    let (occasion, pairs) = asked(&case, options)?;
    let explanations: Vec<Explanation> = pairs
        .iter()
        .filter_map(|pair| Explanation::of(&case, pair))
        .collect();
    print(&shown(&occasion, &explanations, options.json)?)?;
    let disagreed = explanations.iter().any(Explanation::disagrees);
    Ok(match disagreed {
        true => ExitCode::from(Outcome::Failed.code()),
        false => ExitCode::SUCCESS,
    })
}

/// The pairs that `options` name; else those of the last failed check, else all. And which of these it is, in words.
fn asked(case: &Case, options: &cli::Explain) -> Result<(String, Vec<Pair>), Failure> {
    if let Some(provider) = &options.provider {
        let provider = named(case, provider)?;
        let clients: Vec<Device<'_>> = match &options.client {
            Some(client) => vec![named(case, client)?],
            None => case.scenario.devices().collect(),
        };
        let pair = |client: &Device<'_>| Pair::of(provider.name(), client.name());
        return Ok((String::new(), clients.iter().map(pair).collect()));
    }
    let checks = case.scenario.checks.iter().zip(&case.results);
    let mut failed = checks.rev().filter(|(_, result)| result.verdict == "fail");
    let failed = failed.find_map(|(check, result)| {
        let pairs = pairs::of_check(check);
        (!pairs.is_empty()).then(|| {
            (
                format!("the last check that failed: {}", result.name),
                pairs,
            )
        })
    });
    Ok(failed.unwrap_or_else(|| (String::new(), pairs::all(&case.scenario))))
}

fn named<'a>(case: &'a Case, name: &str) -> Result<Device<'a>, Failure> {
    let found = case.scenario.devices().find(|device| device.name() == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = case.scenario.devices().map(Device::name).collect();
        Failure::Usage(anyhow!(
            "no device is named `{name}`: there is {}",
            names.join(", ")
        ))
    })
}

fn shown(occasion: &str, explanations: &[Explanation], as_json: bool) -> anyhow::Result<String> {
    if as_json {
        let text = serde_json::to_string_pretty(&json!({ "pairs": explanations }));
        return Ok(text.context("cannot write JSON")? + "\n");
    }
    let mut texts: Vec<String> = explanations.iter().map(text::text).collect();
    if !occasion.is_empty() {
        texts.insert(0, format!("{occasion}\n"));
    }
    Ok(texts.join("\n"))
}
