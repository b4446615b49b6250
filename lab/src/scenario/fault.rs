//! A device's `faults`.

use peerbar_fault::{Faults, Kind, Rule};
use toml::Spanned;

use super::error::Problem;

/// Checks the rules of a device that has subjects of these kinds beside those of every device.
pub(super) fn faults(texts: &[Spanned<String>], kinds: &[Kind]) -> Result<Vec<Rule>, Problem> {
    let faults = Faults::default();
    faults.serve(kinds);
    let problem = |text: &Spanned<String>, error: &dyn ToString| {
        let message = format!("`faults`: `{}` {}", text.get_ref(), error.to_string());
        Problem::new(text.span(), message)
    };
    let rule = |text: &Spanned<String>| {
        let rule: Rule = text.get_ref().parse().map_err(|e| problem(text, &e))?;
        let added = Faults::check_before_client(&rule).and_then(|()| faults.add(rule.clone()));
        added.map_err(|e| problem(text, &e))?;
        Ok(rule)
    };
    texts.iter().map(rule).collect()
}
