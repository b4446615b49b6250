//! The parts from which a scenario's guest is made.

use crate::module_sources::ModuleSources;
use crate::scenario::Scenario;

/// The parts from which a guest is made.
#[derive(Clone, Debug, Default)]
pub struct GuestNeeds {
    /// Modules of its initramfs. Their dependencies are added automatically.
    pub modules: Vec<String>,
    /// Set if it has the tools root.
    pub tools: bool,
    /// Set if anything is laid over the tools root or written into it.
    pub layers: bool,
    /// Set if QEMU has its user network.
    pub network: bool,
    /// Debian packages that lie over it.
    pub packages: Vec<String>,
    /// Folders that modules are built from.
    pub module_sources: Vec<ModuleSources>,
    /// Set if the guest is only shown, so that packages that the cache lacks are not fetched.
    pub is_dry_run: bool,
}

impl GuestNeeds {
    /// Returns those of `scenario`'s guest.
    pub fn of(scenario: &Scenario) -> Self {
        Self {
            modules: scenario.initramfs_modules(),
            tools: scenario.tools,
            layers: !scenario.guest_files().is_empty()
                || !scenario.packages.is_empty()
                || !scenario.shares.is_empty()
                || scenario.machine.network,
            network: scenario.machine.network,
            packages: scenario.packages.clone(),
            module_sources: scenario.module_sources.clone(),
            is_dry_run: false,
        }
    }
}
