//! Descriptors that come with a packet.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

/// Returns `count` descriptors of `/dev/null`.
pub(crate) fn descriptors(count: usize) -> Vec<OwnedFd> {
    static NULL: OnceLock<File> = OnceLock::new();
    let null = NULL.get_or_init(|| File::open("/dev/null").expect("/dev/null"));
    let copy = || OwnedFd::from(null.try_clone().expect("a descriptor"));
    (0..count).map(|_| copy()).collect()
}
