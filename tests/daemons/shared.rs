//! State that the threads of a machine share: the memories, the affected part, and the number of
//! transfers of each thread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::judgement::Permitted;
use crate::machine::{Action, Moment};
use peerbar_rig::GuestRam;

/// Time limit until each device transfers with each target again.
const RECOVERY: Duration = Duration::from_secs(30);
/// Passes of each device with each target that show that it works: the first may have begun
/// earlier.
const PASSES: u64 = 2;

/// A part of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Disk0,
    Disk1,
    Gpu0,
    Switch0,
}

/// Memory that a device transfers from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Ram,
    /// The memory of a device.
    Device(Part),
}

impl Target {
    pub(crate) const ALL: [Self; 3] = [
        Self::Ram,
        Self::Device(Part::Disk0),
        Self::Device(Part::Gpu0),
    ];

    /// Returns the byte that fills a destination before a transfer. RAM is never zeroed, so there a
    /// zero must come from the transfer.
    pub(crate) fn untouched(self) -> u8 {
        match self {
            Self::Ram => 0xff,
            Self::Device(_) => 0,
        }
    }
}

/// The reason for the end of a session with a device.
#[derive(Debug)]
pub(crate) enum Ended {
    /// Its server was killed, its client must leave it, or the test is over.
    AsWanted,
    /// Something failed.
    ByFault(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Ended {
    fn from(error: E) -> Self {
        Self::ByFault(error.into())
    }
}

/// The shared state.
pub(crate) struct Shared {
    pub(crate) ram: GuestRam,
    state: Mutex<State>,
    changed: Condvar,
    /// The number of ends of each device's session.
    ends: BTreeMap<Part, AtomicU64>,
}

#[derive(Default)]
struct State {
    is_over: bool,
    /// The affected part, until all transfers work again.
    affected: Option<Moment>,
    /// The devices whose server runs.
    served: BTreeSet<Part>,
    /// The devices that have a session.
    in_session: BTreeSet<Part>,
    memories: BTreeMap<Part, GuestRam>,
    passes: BTreeMap<(Part, Target), u64>,
    fault: Option<String>,
}

impl Shared {
    pub(crate) fn new(ram: GuestRam) -> Self {
        let devices = [Part::Disk0, Part::Disk1, Part::Gpu0];
        Self {
            ram,
            state: Mutex::default(),
            changed: Condvar::new(),
            ends: devices.map(|part| (part, AtomicU64::new(0))).into(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Changes the state, and wakes the threads that wait for a change.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state());
        self.changed.notify_all();
        changed
    }

    /// Waits until `is_so`, or fails as soon as something is wrong.
    fn wait(&self, what: &str, is_so: impl Fn(&State) -> bool) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut state = self.state();
        loop {
            if let Some(fault) = &state.fault {
                bail!("{fault}");
            }
            if is_so(&state) {
                return Ok(());
            }
            let left = RECOVERY.saturating_sub(begun.elapsed());
            ensure!(
                !left.is_zero(),
                "{what}: not within {RECOVERY:?}: {:?}",
                state.passes
            );
            self.changed.wait_for(&mut state, left);
        }
    }

    /// Returns the number of ends of the session of `part`.
    pub(crate) fn ends(&self, part: Part) -> u64 {
        let ends = self.ends.get(&part);
        ends.map_or(0, |ends| ends.load(Ordering::SeqCst))
    }

    /// Ends the session of `part`.
    pub(crate) fn end_session(&self, part: Part) {
        if let Some(ends) = self.ends.get(&part) {
            ends.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Notes that a server runs from now on.
    pub(crate) fn serve(&self, part: Part) {
        self.change(|state| state.served.insert(part));
    }

    /// Notes that `moment` is about to be injected.
    pub(crate) fn inject(&self, moment: Moment) {
        self.change(|state| state.affected = Some(moment));
    }

    /// Waits until the session of `part`, whose server was killed, has ended.
    pub(crate) fn remove(&self, part: Part) -> anyhow::Result<()> {
        self.change(|state| {
            state.served.remove(&part);
            state.memories.remove(&part);
        });
        self.end_session(part);
        self.wait("the end of a session", |state| {
            !state.in_session.contains(&part)
        })
    }

    /// Waits until each device transfers with each target again.
    pub(crate) fn recover(&self) -> anyhow::Result<()> {
        let before = self.state().passes.clone();
        let passes = |state: &State, pair| {
            let [now, before] = [&state.passes, &before].map(|passes| passes.get(&pair).copied());
            now.unwrap_or(0) >= before.unwrap_or(0) + PASSES
        };
        let pairs = [Part::Disk0, Part::Disk1, Part::Gpu0]
            .into_iter()
            .flat_map(|part| Target::ALL.map(|target| (part, target)));
        let pairs: Vec<_> = pairs.collect();
        self.wait("transfers with all targets", |state| {
            pairs.iter().all(|pair| passes(state, *pair))
        })?;
        self.change(|state| state.affected = None);
        Ok(())
    }

    /// Waits until `part` has a server, for a session that begins. Returns `false` if the test is
    /// over.
    pub(crate) fn begin_session(&self, part: Part) -> bool {
        let mut state = self.state();
        while !state.is_over && !state.served.contains(&part) {
            self.changed.wait(&mut state);
        }
        if !state.is_over {
            state.in_session.insert(part);
        }
        !state.is_over
    }

    /// Notes the end of a session. It is a fault unless its server was killed, its client had to
    /// leave, or the test is over.
    pub(crate) fn session_ended(&self, part: Part, ended: &Ended) {
        self.change(|state| {
            state.in_session.remove(&part);
            let affected = state.affected;
            let is_killed = affected.is_some_and(|moment| moment.kills(part));
            match ended {
                Ended::ByFault(error) if !state.is_over && !is_killed => {
                    let fault = format!("{part:?}: {error:#} (affected: {affected:?})");
                    state.fault.get_or_insert(fault);
                }
                _ => {}
            }
        });
    }

    /// Returns the memory of `target`, if there is one.
    pub(crate) fn memory(&self, target: Target) -> Option<GuestRam> {
        match target {
            Target::Ram => Some(self.ram.clone()),
            Target::Device(part) => self.state().memories.get(&part).cloned(),
        }
    }

    /// Adds the memory of a device, whose window is open.
    pub(crate) fn publish(&self, part: Part, memory: GuestRam) {
        self.change(|state| state.memories.insert(part, memory));
    }

    /// Returns the outcomes of a transfer between `requester` and `target` that are permitted now.
    pub(crate) fn permitted(&self, requester: Part, target: Target) -> Permitted {
        let (Target::Device(owner), Some(moment)) = (target, self.state().affected) else {
            return Permitted::default();
        };
        let is_replaced = !matches!(moment.action, Action::Stop(_));
        Permitted {
            errors: [requester, owner, Part::Switch0].contains(&moment.part),
            zeroes: moment.part == owner && owner != requester && is_replaced,
        }
    }

    /// Counts a transfer of `part` with `target`, whose data was compared.
    pub(crate) fn pass(&self, part: Part, target: Target) {
        self.change(|state| *state.passes.entry((part, target)).or_default() += 1);
    }

    /// Returns the number of passes so far.
    pub(crate) fn passes(&self) -> u64 {
        self.state().passes.values().sum()
    }

    /// Ends all sessions for good.
    pub(crate) fn end(&self) {
        self.change(|state| state.is_over = true);
        self.ends.keys().for_each(|part| self.end_session(*part));
    }
}

#[test]
fn zeroes_are_permitted_only_from_an_owner_that_is_gone() {
    let shared = Shared::new(GuestRam::new(0, 4096));
    let [requester, owner] = [Part::Disk1, Part::Gpu0];
    let permitted = |part, action| {
        shared.inject(Moment { part, action });
        let Permitted { errors, zeroes } = shared.permitted(requester, Target::Device(owner));
        (errors, zeroes)
    };
    let stop = Action::Stop(Duration::ZERO);
    assert_eq!(permitted(owner, Action::Kill), (true, true));
    assert_eq!(permitted(owner, Action::Leave), (true, true));
    assert_eq!(permitted(owner, stop), (true, false));
    assert_eq!(permitted(Part::Switch0, Action::Kill), (true, false));
    assert_eq!(permitted(requester, Action::Kill), (true, false));
    assert_eq!(permitted(Part::Disk0, Action::Kill), (false, false));
    let with_ram = shared.permitted(requester, Target::Ram);
    assert_eq!(with_ram, Permitted::default());
}
