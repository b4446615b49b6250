//! The switch's treatment of an endpoint's requests to its peers.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString};
use thiserror::Error;

/// The routing of requests from an endpoint's link that are addressed to a peer below the same switch, as
/// real platforms do it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, Serialize, Deserialize,
)]
#[strum(serialize_all = "kebab-case", parse_err_ty = UnknownLinkMode, parse_err_fn = unknown)]
pub enum LinkMode {
    /// They go to the peer.
    #[default]
    Route,
    /// They go up to the root complex, like any other (PCIe Base 6.0, 6.12.1.1, ACS P2P Request
    /// Redirect).
    Redirect,
    /// They are refused with an error to the requester (PCIe Base 6.0, 2.3.1, Unsupported Request).
    UnsupportedRequest,
    /// They vanish: a write without a report; a read ends with a completion time-out (PCIe Base
    /// 6.0, 2.8).
    Drop,
}

/// The word is not a link mode.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid link mode {0:?}: expected route, redirect, unsupported-request or drop")]
pub struct UnknownLinkMode(pub String);

fn unknown(word: &str) -> UnknownLinkMode {
    UnknownLinkMode(word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_is_parsed_as_it_is_displayed() {
        for (word, mode) in [
            ("route", LinkMode::Route),
            ("redirect", LinkMode::Redirect),
            ("unsupported-request", LinkMode::UnsupportedRequest),
            ("drop", LinkMode::Drop),
        ] {
            assert_eq!(mode.to_string(), word);
            assert_eq!(word.parse(), Ok(mode));
        }
        for wrong in ["", "Route", "unsupported request", "lossy"] {
            assert_eq!(wrong.parse::<LinkMode>(), Err(unknown(wrong)));
        }
    }
}
