//! The address of an adapter.

use std::fmt;
use std::net::{AddrParseError, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The address of an adapter at a fabric: a global identifier (InfiniBand Architecture 1.4, 4.1.1), written as an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Gid(pub [u8; 16]);

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl FromStr for Gid {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        Ok(Self(text.parse::<Ipv6Addr>()?.octets()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_is_read_as_it_is_written() {
        let gid: Gid = "fe80::1".parse().unwrap();
        let mut bytes = [0; 16];
        [bytes[0], bytes[1], bytes[15]] = [0xfe, 0x80, 1];
        assert_eq!((gid, gid.to_string().as_str()), (Gid(bytes), "fe80::1"));
        for wrong in ["", "1", "10.0.0.1", "fe80::1%2", "fe80:::1"] {
            assert!(wrong.parse::<Gid>().is_err(), "{wrong}");
        }
    }
}
