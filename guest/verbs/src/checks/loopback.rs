//! An adapter's requests to itself.

use peerbar_verbs::{
    AccessFlags, AddressHandle, Operation, Peer, ProtectionDomain, QueuePair, Region, Remote,
};

use super::memory::{Memory, MemoryKind};

/// Two queue pairs of an adapter, and memory of the host for each. The first sends requests to the
/// second.
pub(super) struct Loopback {
    pub(super) asking: QueuePair,
    pub(super) asked: QueuePair,
    pub(super) peer: Peer,
    pub(super) source: (Memory, Region),
    pub(super) target: (Memory, Region),
    pub(super) domain: ProtectionDomain,
}

/// Returns at least `bytes` bytes of memory of the host, registered with these rights.
pub(super) fn host_memory(
    domain: &ProtectionDomain,
    bytes: u64,
    access: AccessFlags,
) -> anyhow::Result<(Memory, Region)> {
    let memory = Memory::new(MemoryKind::Host, bytes)?;
    let region = memory.register(domain, access)?;
    Ok((memory, region))
}

impl Loopback {
    /// Makes it of queue pairs of `domain`, each with at least `bytes` bytes of memory.
    pub(super) fn new(
        domain: &ProtectionDomain,
        [asking, asked]: [QueuePair; 2],
        bytes: u64,
    ) -> anyhow::Result<Self> {
        let handle = AddressHandle::new(domain, domain.context().gid()?)?;
        Ok(Self {
            peer: Peer::of(handle, &asked),
            asking,
            asked,
            source: host_memory(domain, bytes, AccessFlags::ALL)?,
            target: host_memory(domain, bytes, AccessFlags::ALL)?,
            domain: domain.clone(),
        })
    }

    /// Returns the start of the target.
    pub(super) fn there(&self) -> Remote {
        self.target.1.remote(0)
    }

    /// Posts a request with the first `length` bytes of the source.
    pub(super) fn post(&self, id: u64, operation: Operation, length: u32) -> anyhow::Result<()> {
        let local = self.source.1.local(0, length);
        Ok(self.asking.post(id, operation, local, &self.peer)?)
    }
}
