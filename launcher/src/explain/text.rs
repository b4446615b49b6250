//! An explanation for people.

use super::explanation::{Explanation, Place, Ruling};

/// Width of the words before a block of lines.
const MARGIN: usize = 9;

/// `explanation` as lines.
pub(crate) fn text(explanation: &Explanation) -> String {
    let Explanation {
        provider, client, ..
    } = explanation;
    let mut text = format!(
        "{client} to memory of {provider}: {}\n",
        explanation.rule.verdict
    );
    text += &block("rule", &rule(&explanation.rule));
    text += &block("path", &path(&explanation.rule.path));
    text += &block("but", &explanation.notes);
    let changes = explanation.changes.iter();
    let changes: Vec<String> = changes
        .map(|advice| format!("{}: {}", advice.change, advice.verdict))
        .collect();
    text += &block("change", &changes);
    text
}

/// Lines with a word before the first of them; nothing without lines.
fn block(word: &str, lines: &[String]) -> String {
    let words = [word].into_iter().chain(std::iter::repeat(""));
    words
        .zip(lines)
        .map(|(word, line)| format!("  {word:MARGIN$}{line}\n"))
        .collect()
}

fn rule(ruling: &Ruling) -> Vec<String> {
    vec![format!("{} (Linux {})", ruling.why, ruling.kernel)]
}

fn path(path: &[Place]) -> Vec<String> {
    let longest = path.iter().map(|place| place.name.chars().count()).max();
    let width = longest.unwrap_or_default();
    let line = |place: &Place| {
        let id = place.id.as_ref().map(|id| format!(", {id}"));
        let acs = place.acs.as_ref().map(|acs| format!(", ACS: {acs}"));
        let mark = if place.decides { "  <- decides" } else { "" };
        format!(
            "{:width$}  {}{}{}{mark}",
            place.name,
            place.kind,
            id.unwrap_or_default(),
            acs.unwrap_or_default()
        )
    };
    path.iter().map(line).collect()
}
