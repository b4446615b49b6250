//! The choice of QEMU.

use std::path::Path;

use crate::{Cache, ImageError, Qemu, Root};

impl Qemu {
    /// Finds the QEMU at `explicit`, otherwise the one on `PATH` if it is fit, otherwise the one of
    /// the [`Root`], which is made if the cache has none. Fit means 10.1.1 or later with a
    /// `vfio-user-pci` device.
    ///
    /// # Errors
    /// About `explicit`: [`ImageError::NoQemu`], [`ImageError::NotQemu`],
    /// [`ImageError::QemuTooOld`], [`ImageError::QemuWithoutVfioUser`]. Otherwise those of
    /// [`Root::get`].
    pub fn find(explicit: Option<&Path>, cache: &Cache) -> Result<Self, ImageError> {
        if let Some(path) = explicit {
            return Self::named(path);
        }
        match Self::on_path(cache) {
            Some(qemu) => Ok(qemu),
            None => Ok(Self::from_root(&Root::get(cache)?)),
        }
    }

    /// Returns the QEMU of `root`. It needs neither chroot nor privileges: it runs on its own
    /// dynamic loader and libraries.
    #[must_use]
    pub fn from_root(root: &Root) -> Self {
        Self::in_tree(root.path(), root.manifest().qemu)
    }
}
