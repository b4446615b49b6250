//! A device's `link` to its switch or root port, and the speed of the link.

use peerbar_dma::{LinkSpeed, UnknownBandwidth, UnknownLatency};
use peerbar_switch::{LinkMode, UnknownLinkMode};
use toml::Spanned;

use super::attach::AttachPoint;
use super::error::Problem;

/// Checks the link of the device `name`, which is at `attach`.
pub(super) fn link(
    word: Option<Spanned<String>>,
    name: &str,
    attach: &AttachPoint,
) -> Result<LinkMode, Problem> {
    let Some(word) = word else {
        return Ok(LinkMode::Route);
    };
    if attach.switch().is_none() {
        let message =
            format!("`{name}` is below no switch: give it a `below`, or leave `link` out");
        return Err(Problem::new(word.span(), message));
    }
    let mode = word.get_ref().parse();
    mode.map_err(|error: UnknownLinkMode| Problem::new(word.span(), error.to_string()))
}

/// Checks `link-latency` and `link-bandwidth`.
pub(super) fn speed(
    latency: Option<Spanned<String>>,
    bandwidth: Option<Spanned<String>>,
) -> Result<LinkSpeed, Problem> {
    let latency = latency.map(|word| {
        let latency = word.get_ref().parse();
        latency.map_err(|error: UnknownLatency| problem("link-latency", &word, &error.to_string()))
    });
    let bandwidth = bandwidth.map(|word| {
        let rate = word.get_ref().parse();
        rate.map_err(|error: UnknownBandwidth| problem("link-bandwidth", &word, &error.to_string()))
    });
    Ok(LinkSpeed {
        latency: latency.transpose()?.unwrap_or_default(),
        bandwidth: bandwidth.transpose()?,
    })
}

fn problem(key: &str, word: &Spanned<String>, error: &str) -> Problem {
    Problem::new(
        word.span(),
        format!("`{key}`: `{}` {error}", word.get_ref()),
    )
}
