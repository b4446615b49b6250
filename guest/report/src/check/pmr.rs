//! `pmr`: a Persistent Memory Region.

use super::{CheckKind, Keys, Pair, TableError, VfioBackend, check};

check! {
    /// Lets a GPU's copy engine read and write the Persistent Memory Region of a disk peer to peer,
    /// also during resets of the disk. Data that an earlier run of the check has left must still be
    /// there, even after a restart of guest and server; a region without such data must be empty.
    /// Requires a guest with an IOMMU, because vfio-pci has the disk during the check.
    "pmr": "{gpu} and the PMR of {disk}"
    pub struct Pmr {
        /// Name of an `[[nvme]]` with a `pmr` of 2M or more.
        pub disk: String,
        /// Name of a `[[gpu]]`.
        pub gpu: String,
    }
}

impl CheckKind for Pmr {
    const ON_DEMAND: &'static [&'static str] = VfioBackend::DEBIAN_MODULES;

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        Ok(Self {
            disk: with_pmr(keys)?,
            gpu: keys.gpu_name("gpu")?,
            seconds: keys.seconds,
        })
    }

    fn modules_on_demand(&self) -> &'static [&'static str] {
        Self::ON_DEMAND
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.disk, &self.gpu)]
    }
}

fn with_pmr(keys: &mut Keys<'_, '_>) -> Result<String, TableError> {
    let name = keys.required("disk")?;
    let at = name.span();
    let nvme = keys.inventory.disk(name)?;
    if nvme.pmr_bytes > 0 {
        return Ok(nvme.name.clone());
    }
    let message = format!(
        "`{0}` has no PMR: give [[nvme]] {0} `pmr = {{ size = \"64M\" }}`",
        nvme.name
    );
    Err(TableError::new(at, message))
}
