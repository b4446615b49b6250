//! The manifest of a root.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::ImageError;
use crate::error::io_error;
use crate::recipe::LAB_PACKAGES;
use crate::version::Version;

/// The record next to a root, from which every run can report its versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of its QEMU, as QEMU reports it.
    pub qemu: Version,
    /// Release of its kernel, as in `uname -r`.
    pub kernel: String,
    /// The archive's release file had expired, so its date was not checked.
    pub expired: bool,
    /// Version of every package in it, by name.
    pub packages: BTreeMap<String, String>,
}

impl Manifest {
    /// Returns the version of the package `name`.
    #[must_use]
    pub fn version(&self, name: &str) -> Option<&str> {
        self.packages.get(name).map(String::as_str)
    }
}

/// One line, with the packages that a result may depend on.
impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QEMU {}, Linux {}", self.qemu, self.kernel)?;
        for (name, version) in self
            .packages
            .iter()
            .filter(|(name, _)| LAB_PACKAGES.contains(&name.as_str()))
        {
            write!(f, ", {name} {version}")?;
        }
        Ok(())
    }
}

/// Returns names and versions of the package archives in `dir`: exactly the files from which a root
/// was unpacked.
pub(crate) fn packages_in(dir: &Path) -> Result<BTreeMap<String, String>, ImageError> {
    let mut packages = BTreeMap::new();
    for found in fs::read_dir(dir).map_err(io_error("list", dir))? {
        let name = found.map_err(io_error("list", dir))?.file_name();
        packages.extend(name.to_str().and_then(package_of));
    }
    Ok(packages)
}

/// apt names a file `PACKAGE_VERSION_ARCHITECTURE.deb`, with the colon of the version's epoch as
/// `%3a`.
fn package_of(file: &str) -> Option<(String, String)> {
    let mut parts = file.strip_suffix(".deb")?.split('_');
    let (name, version) = (parts.next()?, parts.next()?);
    Some((name.to_owned(), version.replace("%3a", ":")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_read_off_the_archives() {
        let dir = tempfile::tempdir().unwrap();
        for file in [
            "busybox_1%3a1.37.0-6+b9_amd64.deb",
            "adduser_3.152_all.deb",
            "lock",
            "strange.deb",
        ] {
            fs::write(dir.path().join(file), "").unwrap();
        }
        fs::create_dir(dir.path().join("partial")).unwrap();
        let packages = packages_in(dir.path()).unwrap();
        let expected = [("adduser", "3.152"), ("busybox", "1:1.37.0-6+b9")];
        assert_eq!(
            packages,
            expected
                .map(|(name, version)| (name.to_owned(), version.to_owned()))
                .into()
        );
    }

    #[test]
    fn package_line_names_the_requested_versions() {
        let packages = [("fio", "3.39-1"), ("libc6", "2.41-12"), ("sed", "4.9-2")];
        let manifest = Manifest {
            qemu: Version {
                major: 11,
                minor: 1,
                micro: 3,
            },
            kernel: "7.2.12+deb13-amd64".to_owned(),
            expired: false,
            packages: packages
                .map(|(name, version)| (name.to_owned(), version.to_owned()))
                .into(),
        };
        assert_eq!(
            manifest.to_string(),
            "QEMU 11.1.3, Linux 7.2.12+deb13-amd64, fio 3.39-1"
        );
        assert_eq!(manifest.version("libc6"), Some("2.41-12"));
    }
}
