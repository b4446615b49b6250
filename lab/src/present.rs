//! The parts of a run that are available without a download, for `peerbar doctor`.

use peerbar_images::{Cache, Kernel, PackageTree, Qemu, Root};

use crate::artifacts::{NVME_QUEUES, Own};
use crate::exit::Failure;
use crate::guest_needs::GuestNeeds;
use crate::kernel_needs;
use crate::scenario::Scenario;

/// Returns QEMU, or `None` if a run would fetch it.
///
/// # Errors
/// The user's QEMU is not suitable.
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

/// Returns the guest's kernel, which has the options that `scenario` needs as far as they are
/// known, or `None` if a run would fetch it.
///
/// # Errors
/// The user's kernel is invalid, or lacks an option.
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

/// Returns the downloads of a run of `scenario` in words, or an empty list if it needs no network.
///
/// # Errors
/// The cache cannot be read.
pub fn downloads(own: &Own, scenario: &Scenario, cache: &Cache) -> Result<Vec<String>, Failure> {
    let needs = GuestNeeds::of(scenario);
    let mut missing = Vec::new();
    let is_own = own.kernel().is_some();
    let has_qemu = own.qemu.is_some() || Qemu::on_path(cache).is_some();
    let root = Root::is_cached(cache)
        .then(|| Root::get(cache))
        .transpose()?;
    if root.is_none() && (needs.tools || !is_own || !has_qemu) {
        missing.push("QEMU, Linux and the guest's tools, some 300 MB".to_owned());
    }
    if !needs.packages.is_empty() && !PackageTree::is_cached(cache, &needs.packages) {
        missing.push(format!("the packages {}", needs.packages.join(", ")));
    }
    let kernel = root.as_ref().map(Kernel::from_root);
    let needs_source = needs.modules.iter().any(|name| name == NVME_QUEUES)
        || Kernel::needs_source(kernel.as_ref(), &needs.modules)?;
    let source = kernel.map(|kernel| [kernel.source_package()]);
    let has_source = source.is_some_and(|source| PackageTree::is_cached(cache, &source));
    if !is_own && needs_source && !has_source {
        missing.push("the kernel's source, some 180 MB".to_owned());
    }
    Ok(missing)
}
