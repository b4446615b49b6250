//! The windows that the port above each endpoint forwards to it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use peerbar_pci::{BusAddress, InvalidRange, Range};
use thiserror::Error;

use crate::window::BarWindow;

/// The bus addresses that the port above each endpoint forwards, by the endpoint's name: the port's
/// base and limit registers (PCIe Base 6.0, 7.5.1.3). These belong to a bridge of the virtual
/// machine, so the switch asks for them on a [`BridgeSocket`](crate::BridgeSocket).
///
/// As text it is `NAME=FIRST-LAST,FIRST-LAST NAME=FIRST-LAST`, with hexadecimal addresses, on one
/// line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgeWindows(BTreeMap<String, Vec<Range<BusAddress>>>);

/// Errors in the text of bridge windows.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoBridgeWindows {
    /// A word without a name.
    #[error("invalid bridge windows `{0}`: expected NAME=FIRST-LAST,FIRST-LAST")]
    NoName(String),
    /// A range is invalid.
    #[error("`{0}` {1}")]
    NoRange(String, InvalidRange),
}

impl BridgeWindows {
    /// Returns `true` if the port of the endpoint `name` forwards all addresses of a window.
    pub(crate) fn holds(&self, name: &str, window: &BarWindow) -> bool {
        let mut ranges = self.0.get(name).into_iter().flatten();
        ranges.any(|range| range.encloses(&window.range))
    }

    /// Returns the ranges that the port of the endpoint `name` forwards, for a message.
    pub(crate) fn of(&self, name: &str) -> String {
        match self.0.get(name) {
            Some(ranges) if !ranges.is_empty() => joined(ranges),
            _ => "nothing".to_owned(),
        }
    }
}

impl FromIterator<(String, Vec<Range<BusAddress>>)> for BridgeWindows {
    fn from_iter<T: IntoIterator<Item = (String, Vec<Range<BusAddress>>)>>(ports: T) -> Self {
        Self(ports.into_iter().collect())
    }
}

impl fmt::Display for BridgeWindows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports = self.0.iter();
        let ports = ports.map(|(name, ranges)| format!("{name}={}", joined(ranges)));
        f.write_str(&ports.collect::<Vec<_>>().join(" "))
    }
}

impl FromStr for BridgeWindows {
    type Err = NoBridgeWindows;

    fn from_str(text: &str) -> Result<Self, NoBridgeWindows> {
        let port = |word: &str| {
            let (name, ranges) = word
                .split_once('=')
                .filter(|(name, _)| !name.is_empty())
                .ok_or_else(|| NoBridgeWindows::NoName(word.to_owned()))?;
            let ranges = ranges.split(',').filter(|range| !range.is_empty());
            let range = |text: &str| {
                let range = text.parse();
                range.map_err(|error| NoBridgeWindows::NoRange(text.to_owned(), error))
            };
            let ranges: Result<Vec<Range<BusAddress>>, _> = ranges.map(range).collect();
            Ok((name.to_owned(), ranges?))
        };
        text.split_whitespace().map(port).collect()
    }
}

fn joined(ranges: &[Range<BusAddress>]) -> String {
    let ranges = ranges.iter().map(Range::to_string);
    ranges.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridge_windows_are_parsed_as_they_are_displayed() {
        let text = "disk0=0x1000-0x1fff,0x100000000-0x1ffffffff gpu0=";
        let windows: BridgeWindows = text.parse().unwrap();
        assert_eq!(windows.to_string(), text);
        assert_eq!(windows.of("disk0"), "0x1000-0x1fff,0x100000000-0x1ffffffff");
        assert_eq!(windows.of("gpu0"), "nothing");
        assert_eq!("".parse(), Ok(BridgeWindows::default()));
        for wrong in ["unknown", "=0x1-0x2", "disk0=1-2", "disk0=0x1-0x2,x"] {
            assert!(wrong.parse::<BridgeWindows>().is_err(), "{wrong}");
        }
    }
}
