//! A device's `link` to its switch.

use peerbar_switch::{LinkMode, UnknownLinkMode};
use toml::Spanned;

use super::error::Problem;
use super::place::Place;

/// Checks the link of the device `name`, which is at `place`.
pub(super) fn link(
    word: Option<Spanned<String>>,
    name: &str,
    place: &Place,
) -> Result<LinkMode, Problem> {
    let Some(word) = word else {
        return Ok(LinkMode::Route);
    };
    if place.switch().is_none() {
        let message =
            format!("`{name}` is below no switch: give it a `below`, or leave `link` out");
        return Err(Problem::new(word.span(), message));
    }
    let mode = word.get_ref().parse();
    mode.map_err(|error: UnknownLinkMode| Problem::new(word.span(), error.to_string()))
}
