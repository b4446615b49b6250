//! Versions of QEMU.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

/// Version of a QEMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Version {
    /// Counts years.
    pub major: u32,
    /// Counts releases of a year.
    pub minor: u32,
    /// Counts fixes of a release.
    pub micro: u32,
}

impl Version {
    /// Reads the answer to `-version`: "QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1)".
    pub(crate) fn of_answer(answer: &str) -> Option<Self> {
        let version = answer.strip_prefix("QEMU emulator version ")?;
        version.split([' ', '\n']).next()?.parse().ok()
    }
}

impl std::str::FromStr for Version {
    type Err = io::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.splitn(3, '.').map(|part| part.parse().ok());
        match [
            parts.next().flatten(),
            parts.next().flatten(),
            parts.next().flatten(),
        ] {
            [Some(major), Some(minor), Some(micro)] => Ok(Self {
                major,
                minor,
                micro,
            }),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("not a version of QEMU: {text:?}"),
            )),
        }
    }
}

impl TryFrom<String> for Version {
    type Error = io::Error;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Version> for String {
    fn from(version: Version) -> Self {
        version.to_string()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        let version = |text: &str| {
            Version::of_answer(&format!("QEMU emulator version {text}\nCopyright")).unwrap()
        };
        assert_eq!(
            version("11.1.3 (Debian 1:11.1.3+ds-1~bpo13+1)").to_string(),
            "11.1.3"
        );
        assert!(version("10.1.0") < version("10.1.1") && version("9.2.50") < version("10.0.0"));
        assert_eq!(Version::of_answer("qemu-img version 11.1.3"), None);
        assert_eq!(Version::of_answer("QEMU emulator version 11"), None);
    }
}
