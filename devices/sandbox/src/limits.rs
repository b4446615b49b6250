//! Limits of resources (setrlimit(2)).

use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::SandboxError;

/// Descriptors of a server: clients' memory and event fds, peers' memory, rings.
pub(crate) const DESCRIPTORS: u64 = 16_384;
/// Address space of a server: twice what clients may lend to it.
pub(crate) const ADDRESS_SPACE: u64 = 64 << 40;
/// Memory that the kernel writes into a core file, should an administrator raise its limit: private memory, so neither a
/// guest's nor a GPU's (core(5), coredump_filter).
const DUMPED: &str = "0x11";

/// Applies the limits.
pub(crate) fn apply() -> Result<(), SandboxError> {
    limit("core files", Resource::Core, 0)?;
    limit("descriptors", Resource::Nofile, DESCRIPTORS)?;
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
