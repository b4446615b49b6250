//! The settings of an adapter.

use std::net::Ipv6Addr;
use std::path::PathBuf;

use peerbar_fabric::{AttachError, Attachment, Gid};
use thiserror::Error;

/// Prefix of addresses that are chosen at random: link-local.
const PREFIX: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
/// Bit of the first byte of an interface ID that marks it as not globally unique (RFC 4291, 2.5.1).
const LOCAL: u8 = 0x02;

/// An adapter to be started. The texts are those of the options.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Config {
    /// Address (GID) of the adapter, unique on its fabric, such as fe80::1 [default: a random one]
    #[arg(long, value_name = "IPV6")]
    pub gid: Option<Ipv6Addr>,
    /// Execute the work requests of a queue pair in an order that depends on this number [default:
    /// as posted, if possible]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Socket of the peerbar-fabric that connects the adapter to others [default: none]
    #[arg(long, value_name = "PATH")]
    pub fabric: Option<PathBuf>,
    /// Unique name of the adapter at the fabric [default: its GID in hexadecimal]
    #[arg(long, value_name = "NAME", requires = "fabric")]
    pub fabric_name: Option<String>,
}

/// The reason why an adapter cannot be set up.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// Not an address that a single adapter can have.
    #[error("GID {0}: it must be the address of one adapter; try fe80::1")]
    Gid(Ipv6Addr),
    /// It cannot join its fabric.
    #[error(transparent)]
    Fabric(#[from] AttachError),
}

impl Config {
    /// Returns the adapter's address, in network byte order.
    pub(crate) fn gid(&self) -> Result<Gid, ConfigError> {
        match self.gid {
            Some(gid) if gid.is_unspecified() || gid.is_multicast() => Err(ConfigError::Gid(gid)),
            Some(gid) => Ok(Gid(gid.octets())),
            None => Ok(Gid(at_random())),
        }
    }

    /// Attaches the adapter with this address to its fabric, if it has one.
    pub(crate) fn attach(&self, gid: Gid) -> Result<Option<Attachment>, ConfigError> {
        let Some(path) = &self.fabric else {
            return Ok(None);
        };
        let name = self.fabric_name.clone();
        let name = name.unwrap_or_else(|| format!("{:032x}", u128::from_be_bytes(gid.0)));
        Ok(Some(Attachment::new(path, &name, gid)?))
    }
}

fn at_random() -> [u8; 16] {
    let mut gid = [0; 16];
    let (prefix, interface) = gid.split_at_mut(PREFIX.len());
    prefix.copy_from_slice(&PREFIX);
    interface.copy_from_slice(&fastrand::u64(..).to_be_bytes());
    if let Some(first) = interface.first_mut() {
        *first &= !LOCAL;
    }
    gid
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(gid: Option<Ipv6Addr>) -> Config {
        Config {
            gid,
            ..Config::default()
        }
    }

    #[test]
    fn gid_of_no_adapter_is_refused_with_the_way_out() {
        for wrong in ["::", "ff02::1"] {
            let gid = Some(wrong.parse().unwrap());
            let message = config(gid).gid().unwrap_err().to_string();
            assert!(message.contains(wrong) && message.ends_with("try fe80::1"));
        }
        let gid = Some("fe80::1".parse().unwrap());
        assert_eq!(config(gid).gid().unwrap().0[15], 1);
    }

    #[test]
    fn gid_at_random_is_link_local_and_differs() {
        let [one, other] = [(); 2].map(|()| config(None).gid().unwrap().0);
        assert_eq!(one[..8], PREFIX);
        assert_ne!(one, other);
        assert_eq!(one[8] & LOCAL, 0);
    }
}
