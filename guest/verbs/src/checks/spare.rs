//! An end's spare memory, with a separate registration, and a spare queue pair.

use anyhow::{Context as _, bail};
use peerbar_gds::Buffer;
use peerbar_rdma_end::{Answer, PairState, Rights, Spare, SpareCommand};
use peerbar_verbs::{AccessFlags, ProtectionDomain, QueuePair, Region};

use super::DEPTH;
use super::memory::{Memory, MemoryKind, SPARE_ADDRESS, compared};

/// Number of buffers that are allocated once memory is freed: enough to get its addresses.
const OTHERS: usize = 8;

/// Memory in addition to an end's own.
pub(crate) struct SpareMemory {
    /// Deregistered before the memory is dropped.
    region: Option<Region>,
    memory: Memory,
    is_freed: bool,
    /// Buffers that were allocated after it was freed.
    others: Vec<Buffer>,
}

impl SpareMemory {
    /// Makes memory to which others have these rights.
    fn make(kind: MemoryKind, domain: &ProtectionDomain, rights: Rights) -> anyhow::Result<Self> {
        let memory = Memory::new(kind, SpareCommand::BYTES)?;
        memory.write(0, &values())?;
        let region = memory.register_at(SPARE_ADDRESS, domain, access(rights))?;
        Ok(Self {
            region: Some(region),
            memory,
            is_freed: false,
            others: Vec::new(),
        })
    }

    fn free(&mut self) -> anyhow::Result<()> {
        self.memory.buffer()?.free()?;
        self.is_freed = true;
        for _ in 0..OTHERS {
            let other = self.memory.gpu()?.allocate(SpareCommand::BYTES)?;
            other.mapping().write(0, &values())?;
            self.others.push(other);
        }
        Ok(())
    }

    /// Checks that no byte has changed that this process may see.
    fn expect(&self) -> anyhow::Result<()> {
        if !self.is_freed {
            self.memory.expect(0, &values())?;
        }
        for other in &self.others {
            let mut seen = values();
            other.mapping().read(0, &mut seen)?;
            if seen != values() {
                bail!("the adapter wrote to memory of another buffer");
            }
        }
        Ok(())
    }
}

/// Executes a command about spare memory.
pub(crate) fn answer(
    spare: &mut Option<SpareMemory>,
    (kind, domain): (MemoryKind, &ProtectionDomain),
    command: SpareCommand,
) -> anyhow::Result<Answer> {
    if let SpareCommand::Make(rights) = command {
        *spare = None;
        let made = spare.insert(SpareMemory::make(kind, domain, rights)?);
        let remote = made.region.as_ref().map(|region| region.remote(0));
        let remote = remote.context("it is not registered")?;
        return Ok(Answer::Spare(Spare {
            key: remote.key,
            address: remote.address,
        }));
    }
    let spare = spare.as_mut().context("it does not exist: make it first")?;
    match command {
        SpareCommand::Deregister => spare.region = None,
        SpareCommand::Free => spare.free()?,
        SpareCommand::Revoke => spare.memory.buffer()?.revoke()?,
        SpareCommand::Expect => return Ok(compared(spare.expect())),
        SpareCommand::Make(_) => {}
    }
    Ok(Answer::Done)
}

/// Makes a queue pair in this state. Returns it with its number; it must be kept for as long as it
/// is needed.
pub(crate) fn pair(
    domain: &ProtectionDomain,
    state: PairState,
) -> anyhow::Result<(Option<QueuePair>, u32)> {
    let pair = match state {
        PairState::New | PairState::Gone => QueuePair::new(domain, DEPTH)?,
        PairState::Initialized => {
            let pair = QueuePair::new(domain, DEPTH)?;
            pair.initialize()?;
            pair
        }
        PairState::Stopped => {
            let pair = QueuePair::ready(domain, DEPTH, 0)?;
            pair.stop()?;
            pair
        }
    };
    let number = pair.number();
    Ok((Some(pair).filter(|_| state != PairState::Gone), number))
}

fn values() -> Vec<u8> {
    vec![SpareCommand::VALUE; usize::try_from(SpareCommand::BYTES).unwrap_or_default()]
}

fn access(rights: Rights) -> AccessFlags {
    let given = [
        (rights.local_write, AccessFlags::LOCAL_WRITE),
        (rights.remote_write, AccessFlags::REMOTE_WRITE),
        (rights.remote_read, AccessFlags::REMOTE_READ),
    ];
    let given = given.into_iter().filter(|(is_given, _)| *is_given);
    given.fold(AccessFlags::LOCAL_READ, |all, (_, one)| all | one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_of_the_protocol_are_those_of_the_library() {
        assert_eq!(access(Rights::ALL), AccessFlags::ALL);
        let writes = Rights {
            remote_read: false,
            ..Rights::ALL
        };
        assert_eq!(
            access(writes),
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE
        );
    }
}
