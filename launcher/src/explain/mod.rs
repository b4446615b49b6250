//! `peerbar explain`: which way peer-to-peer DMA takes, and why.

mod advice;
mod case;
mod explanation;
mod pairs;
mod text;

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use serde_json::json;

use case::Case;
use explanation::Explanation;
use pairs::Pair;

use crate::cli;
use crate::exit::Failure;
use crate::results::print;
use crate::scenario::Scenario;

/// Explains the pairs that are asked for.
pub(crate) fn explain(options: &cli::Explain) -> Result<ExitCode, Failure> {
    let case = Case::of_scenario(Scenario::load(&options.scenario)?)?;
    let pairs = asked(&case, options)?;
    let explanations: Vec<Explanation> = pairs
        .iter()
        .filter_map(|pair| Explanation::of(&case, pair))
        .collect();
    print(&shown(&explanations, options.json)?)?;
    Ok(ExitCode::SUCCESS)
}

/// The pairs that `options` name, or all.
fn asked(case: &Case, options: &cli::Explain) -> Result<Vec<Pair>, Failure> {
    let all = pairs::all(&case.scenario);
    let fits =
        |asked: &Option<String>, name: &str| asked.as_deref().is_none_or(|asked| asked == name);
    let pairs: Vec<Pair> = all
        .iter()
        .filter(|pair| {
            fits(&options.provider, &pair.provider) && fits(&options.client, &pair.client)
        })
        .cloned()
        .collect();
    if pairs.is_empty() {
        let there = all
            .iter()
            .map(|pair| format!("{} {}", pair.provider, pair.client));
        let there: Vec<String> = there.collect();
        return Err(Failure::Usage(anyhow!(
            "there is no such pair of a provider and a client; there are: {}",
            there.join(", ")
        )));
    }
    Ok(pairs)
}

fn shown(explanations: &[Explanation], as_json: bool) -> anyhow::Result<String> {
    if as_json {
        let all = json!({ "pairs": explanations });
        let text = serde_json::to_string_pretty(&all).context("cannot write JSON")?;
        return Ok(text + "\n");
    }
    let texts: Vec<String> = explanations.iter().map(text::text).collect();
    Ok(texts.join("\n"))
}
