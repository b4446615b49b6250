//! An explanation for people.

use super::explanation::{Explanation, Kernel, Place, Seen};
use crate::size::human;
use crate::table::word;

/// Width of the words before a block of lines.
const MARGIN: usize = 9;

/// `explanation` as lines.
pub(crate) fn text(explanation: &Explanation) -> String {
    let rule = &explanation.rule;
    let head = format!(
        "{} to memory of {}: {}\n",
        explanation.client, explanation.provider, rule.verdict
    );
    let kernel = explanation.kernel.as_ref();
    let changes = explanation.changes.iter();
    let changes = changes.map(|advice| format!("{}: {}", advice.change, advice.verdict));
    let blocks = [
        block("rule", &[format!("{} (Linux {})", rule.why, rule.release)]),
        block("path", &path(&rule.path)),
        block("kernel", &kernel.map(chosen).unwrap_or_default()),
        block(
            "devices",
            &explanation.checks.iter().map(seen).collect::<Vec<_>>(),
        ),
        block("but", &explanation.notes),
        block("change", &changes.collect::<Vec<_>>()),
    ];
    head + &blocks.concat()
}

/// Lines with a word before the first of them; nothing without lines.
fn block(word: &str, lines: &[String]) -> String {
    let words = [word].into_iter().chain(std::iter::repeat(""));
    let lines = words.zip(lines);
    lines
        .map(|(word, line)| format!("  {word:MARGIN$}{line}\n"))
        .collect()
}

fn path(path: &[Place]) -> Vec<String> {
    let name = |place: &Place| match &place.address {
        Some(address) => format!("{} {address}", place.name),
        None => place.name.clone(),
    };
    let longest = path.iter().map(|place| name(place).chars().count()).max();
    let width = longest.unwrap_or_default();
    let line = |place: &Place| {
        let id = place.id.as_ref().map(|id| format!(", {id}"));
        let acs = place.acs.as_ref().map(|acs| format!(", ACS: {acs}"));
        let mark = if place.decides { "  <- decides" } else { "" };
        format!(
            "{:width$}  {}{}{}{mark}",
            name(place),
            place.kind,
            id.unwrap_or_default(),
            acs.unwrap_or_default()
        )
    };
    path.iter().map(line).collect()
}

fn chosen(kernel: &Kernel) -> Vec<String> {
    let choice = match (kernel.map_type, kernel.agrees, &kernel.unwatched) {
        (Some(map_type), Some(true), _) => format!("chose map type {map_type}, as the rule says"),
        (Some(map_type), ..) => {
            let word = match map_type {
                2 => "not supported",
                3 => "bus address",
                4 => "through host bridge",
                _ => "none that the rule knows",
            };
            format!("DISAGREES with the rule: it chose map type {map_type}, {word}")
        }
        (None, _, Some(reason)) => format!("its decision was not seen: {reason}"),
        (None, _, None) => "was not asked about this pair".to_owned(),
    };
    let said = kernel
        .messages
        .iter()
        .map(|message| format!("said: {message}"));
    [choice].into_iter().chain(said).collect()
}

fn seen(check: &Seen) -> String {
    let routes = check.routes.iter().filter(|(_, bytes)| **bytes > 0);
    let routes: Vec<String> = routes
        .map(|(route, bytes)| format!("{} {}", human(*bytes), word(*route)))
        .collect();
    let routes = match routes.as_slice() {
        [] => String::new(),
        _ => format!(" ({})", routes.join(", ")),
    };
    format!(
        "{}, {}: {} direct, {} bounced{routes}, {} requests failed",
        check.check,
        check.verdict,
        human(check.direct_bytes),
        human(check.bounced_bytes),
        check.failures
    )
}
