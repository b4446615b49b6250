//! Requests of its own program that an adapter must refuse, with memory of the guest.

use anyhow::{Context as _, bail, ensure};
use peerbar_verbs::{
    AccessFlags, Context, Error, Local, Operation, ProtectionDomain, QueuePair, Region, Status,
};

use super::loopback::{Loopback, host_memory};
use super::memory::{Memory, PAGE};
use super::report::AddResult;
use super::{DEPTH, TIME_OUT};

/// Content of the target's memory before and after each request.
const UNTOUCHED: u8 = 0x5a;
/// Content of the requester's memory.
const OWN: u8 = 0xc3;
/// Bytes of a request.
const LENGTH: u32 = 512;

type Check = fn(&Fixture) -> anyhow::Result<()>;

/// Sends the adapter `nic` requests that it must refuse to its own program. `add` gets each result.
pub(crate) fn run(nic: &str, add: AddResult<'_>) -> anyhow::Result<()> {
    let fixture = Fixture::new(nic)?;
    let checks: [(&str, Check); 7] = [
        (
            "read into memory without the right",
            Fixture::read_without_the_right,
        ),
        (
            "receive without the right",
            Fixture::receive_without_the_right,
        ),
        ("guessed local keys", Fixture::guessed_local_keys),
        ("beyond the end of its own region", Fixture::beyond_the_end),
        ("its own deregistered region", Fixture::deregistered_region),
        ("its own queue pair in a wrong state", Fixture::wrong_states),
        (
            "receives of a queue pair that is stopped",
            Fixture::flushed_receives,
        ),
    ];
    for (name, check) in checks {
        let checked = check(&fixture).and_then(|()| fixture.still_works());
        add(name, checked);
    }
    Ok(())
}

/// An adapter with two queue pairs, and memory on both sides.
pub(crate) struct Fixture {
    pub(super) ends: Loopback,
}

impl Fixture {
    pub(crate) fn new(nic: &str) -> anyhow::Result<Self> {
        let context = Context::open(nic)?;
        let domain = ProtectionDomain::new(&context)?;
        let pair = || QueuePair::ready(&domain, DEPTH, 0);
        let ends = Loopback::new(&domain, [pair()?, pair()?], PAGE)?;
        let own = &ends.source.0;
        own.write(0, &vec![OWN; usize::try_from(PAGE)?])?;
        Ok(Self { ends })
    }

    fn target(&self, access: AccessFlags) -> anyhow::Result<(Memory, Region)> {
        let (memory, region) = host_memory(&self.ends.domain, PAGE, access)?;
        memory.write(0, &vec![UNTOUCHED; usize::try_from(PAGE)?])?;
        Ok((memory, region))
    }

    /// Returns the status of a request with the local memory `local`.
    pub(crate) fn status(&self, operation: Operation, local: Local) -> anyhow::Result<Status> {
        self.ends
            .asking
            .post(9, operation, local, &self.ends.peer)?;
        let done = self.ends.asking.wait(TIME_OUT)?;
        ensure!(done.id == 9, "request 9 completed as {}", done.id);
        Ok(done.status)
    }

    /// Returns the status of a request with valid local memory. A refused request must not change
    /// it.
    pub(crate) fn asked(&self, operation: Operation) -> anyhow::Result<Status> {
        let status = self.status(operation, self.ends.source.1.local(0, LENGTH))?;
        if status != Status::SUCCESS {
            let wanted = vec![OWN; usize::try_from(PAGE)?];
            let kept = self.ends.source.0.expect(0, &wanted);
            kept.context(
                "a request that was refused has changed the memory of the side that asks",
            )?;
        }
        Ok(status)
    }

    /// Checks that the adapter still executes a write.
    pub(crate) fn still_works(&self) -> anyhow::Result<()> {
        let (_memory, region) = self.target(AccessFlags::ALL)?;
        let status = self.asked(Operation::Write(region.remote(0)))?;
        expect(status, &[Status::SUCCESS]).context("a write that is permitted, afterwards")
    }

    fn read_without_the_right(&self) -> anyhow::Result<()> {
        let (memory, into) = self.target(AccessFlags::LOCAL_READ)?;
        let (_from, from) = self.target(AccessFlags::ALL)?;
        let status = self.status(Operation::Read(from.remote(0)), into.local(0, LENGTH))?;
        expect(status, &[Status::LOCAL_PROTECTION])?;
        untouched(&memory)
    }

    fn receive_without_the_right(&self) -> anyhow::Result<()> {
        let (memory, region) = self.target(AccessFlags::LOCAL_READ)?;
        self.ends.asked.post_receive(3, region.local(0, LENGTH))?;
        let sent = self.asked(Operation::Send)?;
        ensure!(sent != Status::SUCCESS, "the send succeeded");
        let received = self.ends.asked.wait(TIME_OUT)?;
        ensure!(
            received.id == 3 && received.status != Status::SUCCESS,
            "the receive completed as {received:?}"
        );
        untouched(&memory)
    }

    fn guessed_local_keys(&self) -> anyhow::Result<()> {
        let (memory, region) = self.target(AccessFlags::ALL)?;
        let local = self.ends.source.1.local(0, LENGTH);
        for key in [0, u32::MAX, local.key.wrapping_add(1000)] {
            let status = self.status(Operation::Write(region.remote(0)), Local { key, ..local })?;
            expect(status, &[Status::LOCAL_PROTECTION])
                .with_context(|| format!("key {key:#x} next to {:#x}", local.key))?;
        }
        untouched(&memory)
    }

    fn beyond_the_end(&self) -> anyhow::Result<()> {
        let (memory, region) = self.target(AccessFlags::ALL)?;
        let length = u64::from(LENGTH);
        for offset in [PAGE - length + 1, PAGE, 0_u64.wrapping_sub(1), u64::MAX / 2] {
            let local = self.ends.source.1.local(offset, LENGTH);
            let status = self.status(Operation::Write(region.remote(0)), local)?;
            expect(status, &[Status::LOCAL_PROTECTION, Status::LOCAL_LENGTH])
                .with_context(|| format!("{LENGTH} bytes of its own at {offset:#x}"))?;
        }
        untouched(&memory)
    }

    fn deregistered_region(&self) -> anyhow::Result<()> {
        let (memory, region) = self.target(AccessFlags::ALL)?;
        let local = region.local(0, LENGTH);
        drop(region);
        let (_other, other) = self.target(AccessFlags::ALL)?;
        let status = self.status(Operation::Write(other.remote(0)), local)?;
        expect(status, &[Status::LOCAL_PROTECTION])?;
        untouched(&memory)
    }

    /// Checks queue pairs in a wrong state: the library refuses one that may not send, the adapter
    /// one that may not receive.
    fn wrong_states(&self) -> anyhow::Result<()> {
        let (memory, region) = self.target(AccessFlags::ALL)?;
        let write = Operation::Write(region.remote(0));
        let local = self.ends.source.1.local(0, LENGTH);
        let fresh = QueuePair::new(&self.ends.domain, DEPTH)?;
        for state in ["new", "initialized"] {
            let posted = fresh.post(4, write, local, &self.ends.peer);
            match posted {
                Err(error) if error.number() == Some(libc::EINVAL) => {}
                other => bail!("a queue pair that is {state} took a request: {other:?}"),
            }
            if state == "new" {
                fresh.initialize()?;
            }
        }
        ensure!(
            matches!(fresh.send_from_now_on(0), Err(Error::Refused { .. })),
            "a queue pair went from initialized to sending"
        );
        untouched(&memory)
    }

    fn flushed_receives(&self) -> anyhow::Result<()> {
        let stopped = QueuePair::ready(&self.ends.domain, DEPTH, 0)?;
        let (_memory, region) = self.target(AccessFlags::ALL)?;
        for id in 0..3 {
            stopped.post_receive(id, region.local(0, LENGTH))?;
        }
        stopped.stop()?;
        for id in 0..3 {
            let done = stopped.wait(TIME_OUT)?;
            ensure!(done.id == id, "receive {id} completed as {}", done.id);
            expect(done.status, &[Status::FLUSHED])?;
        }
        Ok(())
    }
}

/// Checks that a request ended with one of these.
pub(crate) fn expect(status: Status, wanted: &[Status]) -> anyhow::Result<()> {
    let words: Vec<String> = wanted.iter().map(Status::to_string).collect();
    ensure!(
        wanted.contains(&status),
        "a request ended with {status}, not {}",
        words.join(" or ")
    );
    Ok(())
}

fn untouched(memory: &Memory) -> anyhow::Result<()> {
    let wanted = vec![UNTOUCHED; usize::try_from(memory.size())?];
    let found = memory.expect(0, &wanted);
    found.context("memory that nothing should write has changed")
}
