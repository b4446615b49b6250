//! What the switch does with an endpoint's requests to its peers.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// What becomes of the requests that come up an endpoint's link and are addressed to a peer below the same switch, as
/// real platforms do it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkMode {
    /// They go to the peer.
    #[default]
    Route,
    /// They go up to the root complex, as any other (PCIe Base 6.0, 6.12.1.1, ACS P2P Request Redirect).
    Redirect,
    /// They are refused, and the requester is told (PCIe Base 6.0, 2.3.1, Unsupported Request).
    UnsupportedRequest,
    /// They vanish: a write nobody hears of, a read ends with a completion time-out (PCIe Base 6.0, 2.8).
    Drop,
}

/// A word that is no link mode.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("link mode {0:?} is none of route, redirect, unsupported-request, drop")]
pub struct UnknownLinkMode(pub String);

impl LinkMode {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Route,
        Self::Redirect,
        Self::UnsupportedRequest,
        Self::Drop,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Redirect => "redirect",
            Self::UnsupportedRequest => "unsupported-request",
            Self::Drop => "drop",
        }
    }
}

impl fmt::Display for LinkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for LinkMode {
    type Err = UnknownLinkMode;

    fn from_str(text: &str) -> Result<Self, UnknownLinkMode> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.word() == text)
            .ok_or_else(|| UnknownLinkMode(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_is_read_as_it_is_written() {
        for mode in LinkMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        for wrong in ["", "Route", "unsupported request", "lossy"] {
            assert!(wrong.parse::<LinkMode>().is_err(), "{wrong}");
        }
    }
}
