//! A device that is bound to vfio-pci.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The driver that provides devices to programs.
const VFIO_PCI: &str = "vfio-pci";

/// A PCI device that is bound to vfio-pci in place of its own driver, until [`Binding::release`].
/// Dropping it leaves the device with vfio-pci, since a release waits until the device is closed.
#[derive(Debug)]
#[must_use = "the device stays with vfio-pci until it is released"]
pub struct Binding {
    pci: PathBuf,
}

impl Binding {
    /// Takes the device with this directory in sysfs from its driver.
    ///
    /// # Errors
    /// [`Error::NoIommu`], and [`Error::File`]. The device is then returned to its own driver, if
    /// possible.
    pub fn bind(pci: &Path) -> Result<Self> {
        let binding = Binding {
            pci: pci.to_path_buf(),
        };
        write(&pci.join("driver_override"), VFIO_PCI)?;
        let bind = Path::new("/sys/bus/pci/drivers")
            .join(VFIO_PCI)
            .join("bind");
        let bound = binding.unbind().and_then(|()| binding.claim(&bind));
        match bound {
            Ok(()) => Ok(binding),
            Err(error) => {
                // The first error is the one that counts.
                let _ = binding.release();
                Err(error)
            }
        }
    }

    /// Returns it to its own driver. It must not be open: the kernel waits until it is closed.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn release(self) -> Result<()> {
        // A line's end removes the override.
        write(&self.pci.join("driver_override"), "\n")?;
        self.unbind()?;
        write(Path::new("/sys/bus/pci/drivers_probe"), &self.address())
    }

    /// Returns its directory in sysfs.
    #[must_use]
    pub fn pci(&self) -> &Path {
        &self.pci
    }

    /// Returns its address, such as `0000:03:00.0`.
    pub(crate) fn address(&self) -> String {
        let name = self.pci.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Returns the number of its IOMMU group.
    ///
    /// # Errors
    /// [`Error::NoGroup`].
    pub fn group(&self) -> Result<String> {
        let group = fs::read_link(self.pci.join("iommu_group")).ok();
        let number = group.as_deref().and_then(Path::file_name);
        let number = number.ok_or_else(|| Error::NoGroup {
            pci: self.pci.clone(),
        })?;
        Ok(number.to_string_lossy().into_owned())
    }

    /// Returns its character device, such as `/dev/vfio/devices/vfio0`.
    pub(crate) fn character_device(&self) -> Result<PathBuf> {
        let entries = fs::read_dir(self.pci.join("vfio-dev"))
            .into_iter()
            .flatten();
        let name = entries.flatten().map(|entry| entry.file_name()).next();
        let path = name.map(|name| Path::new("/dev/vfio/devices").join(name));
        let path = path.filter(|path| path.exists());
        path.ok_or_else(|| Error::NoCharacterDevice {
            pci: self.pci.clone(),
        })
    }

    /// Binds it to vfio-pci, by writing to the driver's file `bind`.
    fn claim(&self, bind: &Path) -> Result<()> {
        match write(bind, &self.address()) {
            Err(Error::File { source, .. })
                if source.raw_os_error() == Some(libc::EINVAL) && self.group().is_err() =>
            {
                Err(Error::NoIommu {
                    pci: self.pci.clone(),
                    source,
                })
            }
            bound => bound,
        }
    }

    /// Unbinds it from its present driver, if any.
    fn unbind(&self) -> Result<()> {
        match write(&self.pci.join("driver/unbind"), &self.address()) {
            Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            unbound => unbound,
        }
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).map_err(|source| Error::File {
        action: "write",
        path: file.to_path_buf(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn absent_device_cannot_be_bound() {
        let error = Binding::bind(Path::new("/nowhere/0000:00:00.0")).unwrap_err();
        let expected = "cannot write /nowhere/0000:00:00.0/driver_override";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn group_is_read_off_sysfs() {
        let dir = tempfile::tempdir().unwrap();
        let binding = Binding {
            pci: dir.path().to_path_buf(),
        };
        let error = binding.group().unwrap_err();
        assert!(matches!(error, Error::NoGroup { .. }), "{error}");
        symlink("/sys/kernel/iommu_groups/7", dir.path().join("iommu_group")).unwrap();
        assert_eq!(binding.group().unwrap(), "7");
        let error = binding.character_device().unwrap_err();
        assert!(
            error.to_string().contains("CONFIG_VFIO_DEVICE_CDEV"),
            "{error}"
        );
    }
}
