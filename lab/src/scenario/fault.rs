//! A device's `faults`.

use peerbar_fault::{Faults, Rule};
use toml::Spanned;

use super::error::Problem;

/// Checks the rules of a device, as `device` would take them.
pub(super) fn faults(texts: &[Spanned<String>], device: &Faults) -> Result<Vec<Rule>, Problem> {
    let problem = |text: &Spanned<String>, error: &dyn ToString| {
        let message = format!("`faults`: `{}` {}", text.get_ref(), error.to_string());
        Problem::new(text.span(), message)
    };
    let rule = |text: &Spanned<String>| {
        let rule: Rule = text.get_ref().parse().map_err(|e| problem(text, &e))?;
        let added = Faults::check_before_client(&rule).and_then(|()| device.add(rule.clone()));
        added.map_err(|e| problem(text, &e))?;
        Ok(rule)
    };
    texts.iter().map(rule).collect()
}
