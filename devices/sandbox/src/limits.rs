//! Limits of resources (setrlimit(2)).

use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::SandboxError;

/// Descriptors of a device: its client's memory and event fds, peers' memory, rings.
const DEVICE_DESCRIPTORS: u64 = 16_384;
/// Descriptors of a switch or fabric: those that it passes on, of all its endpoints.
const INTERCONNECT_DESCRIPTORS: u64 = 32_768;
/// Address space of a server: more than what its client (16 TiB) and its peers (32 TiB) may lend to it
/// (`peerbar_dma`, memory_pool.rs).
pub(crate) const ADDRESS_SPACE: u64 = 64 << 40;
/// The memory that the kernel writes into a core file, in case an administrator raises its limit:
/// only private memory, so neither a guest's nor a GPU's (core(5), coredump_filter).
const DUMPED: &str = "0x11";

/// The kind of a server, which determines its limits.
///
/// Linux compares the number of descriptors that all processes of a user have sent and none has
/// received with the limit of the *sender* (unix(7), `ETOOMANYREFS`). So devices have the lowest
/// limit: a device that was taken over cannot keep a switch, a fabric or QEMU from sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// A device.
    Device,
    /// A server that connects devices: a switch or a fabric.
    Interconnect,
}

impl ServerKind {
    /// Returns the number of descriptors that it may have.
    pub(crate) fn descriptors(self) -> u64 {
        match self {
            Self::Device => DEVICE_DESCRIPTORS,
            Self::Interconnect => INTERCONNECT_DESCRIPTORS,
        }
    }
}

/// Applies the limits.
pub(crate) fn apply(kind: ServerKind) -> Result<(), SandboxError> {
    limit("core files", Resource::Core, 0)?;
    limit("descriptors", Resource::Nofile, kind.descriptors())?;
    limit("address space", Resource::As, ADDRESS_SPACE)?;
    // A container's /proc may be read-only; the limit above holds there, too.
    if let Err(error) = fs::write("/proc/self/coredump_filter", DUMPED) {
        log::debug!("cannot keep shared memory out of core files: {error}");
    }
    Ok(())
}

/// Sets both limits to `most`, or leaves a hard limit that is lower.
fn limit(what: &'static str, resource: Resource, most: u64) -> Result<(), SandboxError> {
    let most = getrlimit(resource)
        .maximum
        .map_or(most, |hard| hard.min(most));
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    setrlimit(resource, limit).map_err(|errno| SandboxError::Limit {
        what,
        source: io::Error::from(errno),
    })
}
