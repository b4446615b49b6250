//! The address of a PCI function.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Domain, bus, device and function of a PCI function, such as `0000:3b:00.0`.
///
/// Linux calls a domain that it made up itself, as for Intel's VMD, `10000` and up, so a domain may
/// have more than 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    /// Domain, which PCIe calls segment.
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Device number, below 32.
    pub device: u8,
    /// Function number, below 8.
    pub function: u8,
}

/// A text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid PCI address `{0}`: expected one such as 0000:3b:00.0 or 3b:00.0")]
pub struct InvalidAddress(String);

impl FromStr for Address {
    type Err = InvalidAddress;

    /// Parses `[DOMAIN:]BUS:DEVICE.FUNCTION`, in hexadecimal. The domain is 0 if it is missing.
    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        parse(text).ok_or_else(|| InvalidAddress(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Address> {
    let (place, function) = text.split_once('.')?;
    let mut parts = place.rsplit(':');
    let device = hex(parts.next()?, 1..=2)?;
    let bus = hex(parts.next()?, 2..=2)?;
    let domain = parts.next().map_or(Some(0), |part| hex(part, 4..=8))?;
    let address = Address {
        domain,
        bus: u8::try_from(bus).ok()?,
        device: u8::try_from(device).ok().filter(|device| *device < 32)?,
        function: u8::try_from(hex(function, 1..=1)?)
            .ok()
            .filter(|function| *function < 8)?,
    };
    parts.next().is_none().then_some(address)
}

/// Parses a hexadecimal number of `digits` digits.
fn hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hex && digits.contains(&text.len()))
        .then(|| u32::from_str_radix(text, 16).ok())
        .flatten()
}

impl Address {
    /// Returns the device number times 8 plus the function number.
    pub fn devfn(self) -> u8 {
        (self.device & 0x1f) << 3 | self.function & 7
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        f.pad(&format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl TryFrom<String> for Address {
    type Error = InvalidAddress;

    fn try_from(text: String) -> Result<Self, InvalidAddress> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_parsed_with_and_without_domain() {
        let full: Address = "0000:3b:1f.7".parse().unwrap();
        assert_eq!("3b:1f.7".parse(), Ok(full));
        assert_eq!("00000000:3B:1F.7".parse(), Ok(full));
        assert_eq!(full.to_string(), "0000:3b:1f.7");
        assert_eq!(full.devfn(), 0xff);
        let vmd: Address = "10000:e1:00.0".parse().unwrap();
        assert_eq!(vmd.to_string(), "10000:e1:00.0");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "3b:00",
            "3b:20.0",
            "3b:00.8",
            "3b:00.10",
            "00:3b:00.0",
            "+b:00.0",
            "0:0:3b:00.0",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
