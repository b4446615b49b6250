//! The host's access to a running guest: it may start programs, which see a folder of the host.

use std::path::PathBuf;

use peerbar_report::HostFolder;

/// Lets the host start programs in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestAccess {
    /// The folder of the host that programs see as `/host`.
    pub folder: PathBuf,
    /// The programs' rights in it.
    pub permission: HostFolder,
}
