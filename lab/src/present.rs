//! What a run would take that is there without a download, for `peerbar doctor`.

use peerbar_images::{Cache, Kernel, Qemu, Root};

use crate::artifacts::Own;
use crate::exit::Failure;
use crate::kernel_needs;
use crate::scenario::Scenario;

/// QEMU; `None` if a run would fetch it.
///
/// # Errors
/// The one that the user names is not fit.
pub fn qemu(own: &Own, cache: &Cache) -> Result<Option<Qemu>, Failure> {
    if own.qemu.is_some() {
        return Ok(Some(Qemu::find(own.qemu.as_deref(), cache)?));
    }
    match Qemu::on_path(cache) {
        Some(qemu) => Ok(Some(qemu)),
        None if Root::is_cached(cache) => Ok(Some(Qemu::from_root(&Root::get(cache)?))),
        None => Ok(None),
    }
}

/// The guest's kernel, which has the options that `scenario` needs as far as they are known; `None` if a run would fetch it.
///
/// # Errors
/// The one that the user names is none, or lacks an option.
pub fn kernel(own: &Own, scenario: &Scenario, cache: &Cache) -> Result<Option<Kernel>, Failure> {
    let Some(kernel) = own.kernel() else {
        let is_cached = Root::is_cached(cache);
        let root = is_cached.then(|| Root::get(cache)).transpose()?;
        return Ok(root.map(|root| Kernel::from_root(&root)));
    };
    let kernel = Kernel::user(kernel, own.modules.as_deref())?;
    if let Some(config) = &kernel.config {
        kernel_needs::check_modules(config, &scenario.initramfs_modules())?;
        kernel_needs::check_machine(config, &scenario.machine)?;
    }
    Ok(Some(kernel))
}
