//! The address of a PCI function.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Domain, bus, device and function of a PCI function, such as `0000:3b:00.0`.
///
/// Linux calls a domain that it made up itself, as for Intel's VMD, `10000` and up, so a domain may
/// have more than 16 bits.
///
/// The port above a device, if a source does not show it, has the address of
/// [`Address::port_above`]: `the port above 0000:3b:00.0`. A device of a source without addresses
/// has a name in the place of its address, such as `GPU0`.
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
        let address = match text.strip_prefix(PORT_ABOVE) {
            Some(device) => parse(device).map(Self::port_above),
            None => parse(text),
        };
        address.ok_or_else(|| InvalidAddress(text.to_owned()))
    }
}

/// Begins the name of a port that a source does not show.
const PORT_ABOVE: &str = "the port above ";
/// Marks the domain of such a port. Linux's domains are positive numbers of 32 bits with a sign.
const NOT_SHOWN: u32 = 1 << 31;

/// Marks the domain of a function without an address.
const NAMED: u32 = 1 << 30;
/// The names of such functions, without their numbers, by their bus numbers.
const NAMES: [(u8, &str); 6] = [
    (GPU, "GPU"),
    (ADAPTER, "NIC"),
    (GPU + SWITCH, "the switch above GPU"),
    (ADAPTER + SWITCH, "the switch above NIC"),
    (GPU + UPPER_SWITCH, "the upper switch above GPU"),
    (ADAPTER + UPPER_SWITCH, "the upper switch above NIC"),
];
/// Bus numbers of such devices. Bus 0 may be a root bus.
const GPU: u8 = 1;
const ADAPTER: u8 = 2;
/// Added to the bus number of a device, these give that of a switch above it.
const SWITCH: u8 = 2;
const UPPER_SWITCH: u8 = 4;

fn parse(text: &str) -> Option<Address> {
    parse_named(text).or_else(|| parse_address(text))
}

fn parse_named(text: &str) -> Option<Address> {
    let is_number = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
    NAMES.into_iter().find_map(|(bus, name)| {
        let number = text.strip_prefix(name).filter(is_number)?;
        Some(Address::named(bus, number.parse().ok()?))
    })
}

fn parse_address(text: &str) -> Option<Address> {
    let (place, function) = text.split_once('.')?;
    let mut parts = place.rsplit(':');
    let device = hex(parts.next()?, 1..=2)?;
    let bus = hex(parts.next()?, 2..=2)?;
    let domain = parts.next().map_or(Some(0), |part| hex(part, 4..=8))?;
    let address = Address {
        domain: Some(domain).filter(|domain| domain & (NOT_SHOWN | NAMED) == 0)?,
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
    /// Returns `true` if both are functions of one device.
    pub fn is_same_device(self, other: Self) -> bool {
        (self.domain, self.bus, self.device) == (other.domain, other.bus, other.device)
    }

    /// Returns the device number times 8 plus the function number.
    pub fn devfn(self) -> u8 {
        (self.device & 0x1f) << 3 | self.function & 7
    }

    /// Returns the address that stands for the port above this device, for sources that do not show
    /// the port. All functions of a device are below one port.
    pub fn port_above(self) -> Self {
        Self {
            domain: self.domain | NOT_SHOWN,
            function: 0,
            ..self
        }
    }

    fn named(bus: u8, number: u8) -> Self {
        Self {
            domain: NAMED,
            bus,
            device: number,
            function: 0,
        }
    }

    /// Returns the address that stands for a GPU of a source without addresses.
    pub(crate) fn named_gpu(number: u8) -> Self {
        Self::named(GPU, number)
    }

    /// Returns the address that stands for a network adapter of a source without addresses.
    pub(crate) fn named_adapter(number: u8) -> Self {
        Self::named(ADAPTER, number)
    }

    /// Returns the address that stands for the switch above such a device, or for a switch above
    /// that one.
    pub(crate) fn named_switch(self, is_upper: bool) -> Self {
        let kind = if is_upper { UPPER_SWITCH } else { SWITCH };
        Self {
            bus: self.bus.saturating_add(kind),
            ..self
        }
    }

    /// Returns domain and number that stand for the root bus above such a device.
    pub(crate) fn root_bus_above(self) -> (u32, u8) {
        let Self {
            domain,
            bus,
            device,
            ..
        } = self;
        (domain | NOT_SHOWN | u32::from(bus), device)
    }

    /// Returns the device below the root bus for which `bus` stands.
    pub(crate) fn below_root_bus((domain, number): (u32, u8)) -> Option<Self> {
        let bus = domain_not_shown(domain)?.checked_sub(NAMED)?;
        Some(Self::named(u8::try_from(bus).ok()?, number))
    }

    /// Returns `true` for a function of a source without addresses, except the ports that it does
    /// not show.
    pub(crate) fn is_named(self) -> bool {
        self.domain & (NOT_SHOWN | NAMED) == NAMED
    }

    /// Returns `true` if a source does not show the function: the address is that of
    /// [`Address::port_above`].
    pub fn is_not_shown(self) -> bool {
        domain_not_shown(self.domain).is_some()
    }
}

/// Returns the domain of a port that a source does not show, or `None` for any other function.
pub(crate) fn domain_not_shown(domain: u32) -> Option<u32> {
    (domain & NOT_SHOWN != 0).then_some(domain & !NOT_SHOWN)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        let (prefix, domain) = match domain_not_shown(*domain) {
            Some(domain) => (PORT_ABOVE, domain),
            None => ("", *domain),
        };
        let name = NAMES
            .iter()
            .find(|(known, _)| domain == NAMED && known == bus);
        f.pad(&match name {
            Some((_, name)) => format!("{prefix}{name}{device}"),
            None => format!("{prefix}{domain:04x}:{bus:02x}:{device:02x}.{function}"),
        })
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

/// Reads the bus numbers `03` or `03-08`.
pub(crate) fn bus_range(text: &str) -> Option<(u8, u8)> {
    let number = |text: &str| u8::from_str_radix(text, 16).ok();
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some((number(first)?, number(last)?))
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
    fn port_that_is_not_shown_is_named_by_the_device_below_it() {
        let device: Address = "0001:3b:00.1".parse().unwrap();
        let port = device.port_above();
        assert_eq!(port.to_string(), "the port above 0001:3b:00.0");
        assert_eq!(port.to_string().parse(), Ok(port));
        assert!(port.is_not_shown() && !device.is_not_shown());
    }

    #[test]
    fn name_stands_for_the_address_of_a_device() {
        for name in [
            "GPU0",
            "NIC17",
            "the switch above GPU3",
            "the port above the upper switch above NIC2",
        ] {
            let address: Address = name.parse().unwrap();
            assert_eq!(address.to_string(), name);
        }
        let adapter = Address::named_adapter(1);
        assert_eq!(
            adapter.named_switch(false).to_string(),
            "the switch above NIC1"
        );
        assert!(adapter.is_named() && !adapter.port_above().is_named());
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
            "80000000:3b:00.0",
            "40000000:01:00.0",
            "GPU",
            "GPU+1",
            "GPU256",
            "the port above 3b:00",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
