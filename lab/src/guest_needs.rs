//! What a scenario has its guest made from.

use crate::module_sources::ModuleSources;
use crate::scenario::Scenario;

/// What a guest is made from.
#[derive(Clone, Debug, Default)]
pub struct GuestNeeds {
    /// Modules of its initramfs; those that they need come by themselves.
    pub modules: Vec<String>,
    /// Whether it has the tools root.
    pub tools: bool,
    /// Whether anything is laid over the tools root or written into it.
    pub layers: bool,
    /// Whether QEMU has its user network.
    pub network: bool,
    /// Debian packages that lie over it.
    pub packages: Vec<String>,
    /// Folders that modules are built from.
    pub module_sources: Vec<ModuleSources>,
    /// Whether the guest is only shown, so that packages that the cache lacks are not fetched.
    pub is_dry_run: bool,
}

impl GuestNeeds {
    /// Those of `scenario`'s guest.
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
