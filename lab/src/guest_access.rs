//! What the host may do in a running guest: start programs, which see a folder of the host.

use std::path::PathBuf;

use peerbar_report::HostFolder;

/// Lets the host start programs in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestAccess {
    /// The folder of the host that programs see as `/host`.
    pub folder: PathBuf,
    /// What they may do with it.
    pub permission: HostFolder,
}
