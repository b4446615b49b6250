//! The rules of one device, and the decision which of them fires.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use fastrand::Rng;
use parking_lot::Mutex;
use peerbar_nvme_spec::command::NSID_ALL;
use peerbar_pci::{Iova, Range};
use strum::VariantArray;
use thiserror::Error;

use crate::rule::{Action, BlockCommand, Kind, Pick, Rule, Segment, Subject, overlap};

/// The most rules that a device has at a time.
const MOST: usize = 64;

/// The rules of one device; shared by all its threads.
#[derive(Debug)]
pub struct Faults {
    /// The kinds that have rules, one bit each. A thread that misses a newly added rule acts as if
    /// it had run before the rule was added.
    armed: AtomicU16,
    /// Set if there are rules by which the device loses power.
    loses_power: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The kinds of subjects that the device has, one bit each.
    served: u16,
    /// Numbers of the device's MSI-X vectors and namespaces; `None` while unknown.
    vectors: Option<u32>,
    namespaces: Option<u32>,
    /// The reason why the device cannot lose power.
    powerless: Option<&'static str>,
    /// The interrupts are those of another process.
    passes_interrupts_on: bool,
    /// Number of rules that have ever been added.
    added: u32,
    rules: Vec<Armed>,
}

#[derive(Debug)]
struct Armed {
    rule: Rule,
    number: u32,
    matches: u64,
    fired: u64,
    rng: Rng,
}

/// A rule that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    /// The rule.
    pub rule: Rule,
    /// Number of matches of its subject.
    pub matches: u64,
    /// Number of times that it has fired.
    pub fired: u64,
}

impl fmt::Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rule,
            matches,
            fired,
        } = self;
        write!(f, "{rule} (injected {fired}, matched {matches})")
    }
}

/// A rule that fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fired {
    /// The action of the rule.
    pub action: Action,
    /// The number of the rule at its device, from 1 on.
    pub rule: u32,
    /// The number of the match, from 1 on.
    pub matches: u64,
}

/// The reason why a device does not accept a rule. The message continues after the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AddError {
    /// The device has no such subjects.
    #[error("is for another device: this one has no {0}")]
    NoSubject(&'static str),
    /// The device has no such interrupt vector.
    #[error("has `vector={vector}`: {}", range("vectors", 0, *count))]
    Vector {
        /// The vector that the rule names.
        vector: u16,
        /// The number of the device's vectors, counted from 0.
        count: u32,
    },
    /// The disk has no such namespace.
    #[error("has `nsid={nsid}`: {}", range("namespaces", 1, *count))]
    Namespace {
        /// The namespace that the rule names.
        nsid: u32,
        /// The number of the disk's namespaces, counted from 1.
        count: u32,
    },
    /// The interrupts do not pass this process.
    #[error(
        "is for interrupts, which go from the device's own server straight to QEMU: use `dma`, or a device of peerbar's"
    )]
    PassedOn,
    /// The device cannot lose power.
    #[error("takes the device's power: {0}")]
    Power(&'static str),
    /// The device has too many rules.
    #[error("exceeds the limit of {MOST} rules: clear them first")]
    Full,
    /// The rule fires at once, but no client has the device yet.
    #[error(
        "fires at once, and no guest has the device yet: give it to `peerbar inject`, or to the socket of --control, while a guest runs"
    )]
    NoClient,
}

impl Default for Faults {
    fn default() -> Self {
        Self::new(&[Kind::Dma, Kind::Interrupt, Kind::Mapping, Kind::Device])
    }
}

impl Faults {
    /// Makes an empty set of rules, for a device that has subjects of these kinds.
    pub fn new(served: &[Kind]) -> Self {
        let state = State {
            served: served.iter().fold(0, |all, kind| all | bit(*kind)),
            vectors: None,
            namespaces: None,
            powerless: None,
            passes_interrupts_on: false,
            added: 0,
            rules: Vec::new(),
        };
        Self {
            armed: AtomicU16::new(0),
            loses_power: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// Adds kinds of subjects that the device has.
    pub fn serve(&self, kinds: &[Kind]) {
        let mut state = self.state.lock();
        state.served = kinds
            .iter()
            .fold(state.served, |all, kind| all | bit(*kind));
    }

    /// Sets the number of the device's MSI-X vectors.
    pub fn set_vectors(&self, count: u32) {
        self.state.lock().vectors = Some(count);
    }

    /// Sets the number of the disk's namespaces, which are counted from 1.
    pub fn set_namespaces(&self, count: u32) {
        self.state.lock().namespaces = Some(count);
    }

    /// Refuses rules for interrupts from now on: the device is of another process, which signals them.
    pub fn pass_interrupts_on(&self) {
        self.state.lock().passes_interrupts_on = true;
    }

    /// Refuses rules by which the device loses power from now on, for this reason.
    pub fn refuse_power_loss(&self, reason: &'static str) {
        self.state.lock().powerless = Some(reason);
    }

    /// Adds a rule, after the others. A rule for the device itself fires at once instead, and is
    /// not kept: then returns the fired rule.
    pub fn add(&self, rule: Rule) -> Result<Option<Fired>, AddError> {
        let mut state = self.state.lock();
        let kind = rule.subject.kind();
        if state.served & bit(kind) == 0 {
            return Err(AddError::NoSubject(kind.into()));
        }
        if kind == Kind::Interrupt && state.passes_interrupts_on {
            return Err(AddError::PassedOn);
        }
        state.check_numbers(&rule.subject)?;
        if let (Action::LosePower { .. }, Some(reason)) = (rule.action, state.powerless) {
            return Err(AddError::Power(reason));
        }
        let is_over = kind == Kind::Device;
        if !is_over && state.rules.len() >= MOST {
            return Err(AddError::Full);
        }
        state.added = state.added.saturating_add(1);
        let mut armed = Armed::new(rule, state.added);
        if is_over {
            return Ok(armed.meet());
        }
        state.rules.push(armed);
        self.arm(&state);
        Ok(None)
    }

    /// Checks that a rule may be added before a client has the device.
    ///
    /// # Errors
    /// [`AddError::NoClient`] for a rule of the device itself: it would fire at once, without an
    /// effect on the first client.
    pub fn check_before_client(rule: &Rule) -> Result<(), AddError> {
        match rule.subject {
            Subject::Device => Err(AddError::NoClient),
            _ => Ok(()),
        }
    }

    /// Removes all rules. Returns their number. Items that are held back at the moment still come
    /// late.
    pub fn clear(&self) -> usize {
        let mut state = self.state.lock();
        let count = state.rules.len();
        state.rules.clear();
        self.arm(&state);
        count
    }

    /// Returns all rules, in the order in which they act.
    pub fn rules(&self) -> Vec<InForce> {
        let state = self.state.lock();
        let rules = state.rules.iter().map(|armed| InForce {
            rule: armed.rule.clone(),
            matches: armed.matches,
            fired: armed.fired,
        });
        rules.collect()
    }

    fn arm(&self, state: &State) {
        let kinds = state.rules.iter().map(|armed| armed.rule.subject.kind());
        let armed = kinds.fold(0, |all, kind| all | bit(kind));
        let mut actions = state.rules.iter().map(|armed| armed.rule.action);
        let loses_power = actions.any(|action| matches!(action, Action::LosePower { .. }));
        self.loses_power.store(loses_power, Ordering::Relaxed);
        self.armed.store(armed, Ordering::Relaxed);
    }

    /// Returns `true` if there are rules by which the device loses power.
    #[inline]
    pub fn loses_power(&self) -> bool {
        self.loses_power.load(Ordering::Relaxed)
    }

    /// Returns `true` if there are rules for this kind.
    #[inline]
    pub fn is_armed(&self, kind: Kind) -> bool {
        self.armed.load(Ordering::Relaxed) & bit(kind) != 0
    }

    /// Returns the rule that fires for a command that begins.
    pub fn command(&self, command: &BlockCommand) -> Option<Fired> {
        self.fire(|subject| matches!(subject, Subject::Command(wanted) if wanted.matches(command)))
    }

    /// Returns the rule that fires for the completion of a command.
    pub fn completion(&self, command: &BlockCommand) -> Option<Fired> {
        self.fire(
            |subject| matches!(subject, Subject::Completion(wanted) if wanted.matches(command)),
        )
    }

    /// Returns the rule that fires for the data of a Read.
    pub fn data(&self, command: &BlockCommand) -> Option<Fired> {
        self.fire(|subject| matches!(subject, Subject::Data(wanted) if wanted.matches(command)))
    }

    /// Returns the rule that fires for a command of the admin queue with this opcode.
    pub fn admin_command(&self, opcode: u8) -> Option<Fired> {
        self.fire(|subject| match subject {
            Subject::AdminCommand(wanted) => wanted.is_none_or(|wanted| wanted as u8 == opcode),
            _ => false,
        })
    }

    /// Returns the rule that fires for a submission queue entry that a GPU writes.
    pub fn submission_entry(&self) -> Option<Fired> {
        self.fire(|subject| matches!(subject, Subject::SubmissionEntry))
    }

    /// Returns the rule that fires for a GPU's command with this opcode, of this channel.
    pub fn gpu_command(&self, opcode: u8, channel: u8) -> Option<Fired> {
        self.fire(|subject| {
            matches!(subject, Subject::GpuCommand(wanted) if wanted.matches(opcode, channel))
        })
    }

    /// Returns the rule that fires for a mapping.
    pub fn mapping(&self, range: Range<Iova>) -> Option<Fired> {
        let span = range.first().0..range.last().0.saturating_add(1);
        self.fire(|subject| match subject {
            Subject::Mapping(wanted) => wanted.as_ref().is_none_or(|wanted| overlap(wanted, &span)),
            _ => false,
        })
    }

    /// Returns the rule that fires for a segment of a DMA.
    pub fn dma(&self, segment: &Segment) -> Option<Fired> {
        self.fire(|subject| matches!(subject, Subject::Dma(wanted) if wanted.matches(segment)))
    }

    /// Returns the rule that fires for an interrupt.
    pub fn interrupt(&self, vector: u16) -> Option<Fired> {
        self.fire(|subject| match subject {
            Subject::Interrupt(wanted) => wanted.is_none_or(|wanted| wanted == vector),
            _ => false,
        })
    }

    /// Counts a match of every rule that matches. Returns the first of these that fires.
    fn fire(&self, matches: impl Fn(&Subject) -> bool) -> Option<Fired> {
        let mut state = self.state.lock();
        let matched = state.rules.iter_mut();
        let matched = matched.filter(|armed| matches(&armed.rule.subject));
        let mut first = None;
        for armed in matched {
            if first.is_some() {
                armed.count();
            } else {
                first = armed.meet();
            }
        }
        first
    }
}

impl State {
    /// Refuses a subject with a number that the device does not have. A command may address all
    /// namespaces at once.
    fn check_numbers(&self, subject: &Subject) -> Result<(), AddError> {
        match (subject, self.vectors, self.namespaces) {
            (Subject::Interrupt(Some(vector)), Some(count), _) if u32::from(*vector) >= count => {
                let vector = *vector;
                Err(AddError::Vector { vector, count })
            }
            (
                Subject::Command(wanted) | Subject::Completion(wanted) | Subject::Data(wanted),
                _,
                Some(count),
            ) => {
                let lacked = |nsid: &u32| !(1..=count).contains(nsid) && *nsid != NSID_ALL;
                match wanted.nsid.filter(lacked) {
                    Some(nsid) => Err(AddError::Namespace { nsid, count }),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

impl Armed {
    fn new(rule: Rule, number: u32) -> Self {
        let seed = match rule.when.pick {
            Pick::Chance { seed, .. } => seed,
            _ => 0,
        };
        Self {
            rule,
            number,
            matches: 0,
            fired: 0,
            rng: Rng::with_seed(seed),
        }
    }

    fn count(&mut self) {
        self.matches = self.matches.saturating_add(1);
    }

    /// Counts a match. Returns the rule's action if the rule fires for it.
    fn meet(&mut self) -> Option<Fired> {
        self.count();
        if !self.is_picked() {
            return None;
        }
        self.fired = self.fired.saturating_add(1);
        Some(Fired {
            action: self.rule.action,
            rule: self.number,
            matches: self.matches,
        })
    }

    /// Returns `true` if the rule fires for the match that was counted last.
    fn is_picked(&mut self) -> bool {
        let when = self.rule.when;
        if when.limit.is_some_and(|limit| self.fired >= limit.get()) {
            return false;
        }
        match when.pick {
            Pick::All => true,
            Pick::Nth(nth) => self.matches == nth.get(),
            Pick::Every(every) => self.matches % every.get() == 0,
            Pick::Chance { of, among, .. } => self.rng.u64(0..among.get()) < of.get(),
        }
    }
}

/// Describes the device's numbers of a kind, for a message.
fn range(what: &str, first: u32, count: u32) -> String {
    match count {
        0 => format!("this device has no {what}"),
        count => {
            let last = first.saturating_add(count - 1);
            format!("this device has {what} {first} to {last}")
        }
    }
}

/// Returns the bit of a kind in a set.
fn bit(kind: Kind) -> u16 {
    const { assert!(Kind::VARIANTS.len() <= 16) };
    1 << kind as u16
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Direction, Purpose, Route};
    use peerbar_nvme_spec::command::NvmOpcode;

    use super::*;

    fn faults(rules: &[&str]) -> Faults {
        let faults = Faults::new(Kind::VARIANTS);
        for rule in rules {
            faults.add(rule.parse().unwrap()).unwrap();
        }
        faults
    }

    /// Returns those of 1000 interrupts for which a rule fires.
    fn fired(rule: &str) -> Vec<u64> {
        let faults = faults(&[rule]);
        let all = (0..1000).filter_map(|_| faults.interrupt(1));
        all.map(|fired| fired.matches).collect()
    }

    fn command(opcode: NvmOpcode, first: u64) -> BlockCommand {
        BlockCommand {
            opcode: opcode as u8,
            nsid: 1,
            blocks: Some(first..first + 8),
        }
    }

    #[test]
    fn rule_fires_for_the_matches_that_it_picks() {
        assert_eq!(fired("drop interrupt nth=3"), [3]);
        assert_eq!(fired("drop interrupt every=300"), [300, 600, 900]);
        assert_eq!(fired("drop interrupt limit=2"), [1, 2]);
        assert_eq!(fired("drop interrupt every=300 limit=1"), [300]);
        assert!(fired("drop interrupt vector=2").is_empty());
        assert_eq!(fired("drop interrupt probability=1/1").len(), 1000);
    }

    #[test]
    fn probability_with_one_seed_picks_the_same_matches() {
        let one = fired("drop interrupt probability=1/10 seed=1");
        assert!((50..150).contains(&one.len()), "{one:?}");
        assert_eq!(one, fired("drop interrupt probability=1/10 seed=1"));
        assert_ne!(one, fired("drop interrupt probability=1/10 seed=2"));
    }

    #[test]
    fn command_matches_by_opcode_namespace_and_blocks() {
        let matches = |rule, command: &BlockCommand| faults(&[rule]).command(command).is_some();
        let read = command(NvmOpcode::Read, 1000);
        assert!(matches("fail command", &read));
        assert!(matches("fail command read nsid=1 lba=1007", &read));
        assert!(matches("fail command lba=0..1001", &read));
        assert!(!matches("fail command lba=0..1000", &read));
        assert!(!matches("fail command lba=1008", &read));
        assert!(!matches("fail command write", &read));
        assert!(!matches("fail command nsid=2", &read));
        let flush = BlockCommand {
            blocks: None,
            ..command(NvmOpcode::Flush, 0)
        };
        assert!(matches("fail command flush", &flush));
        assert!(!matches("fail command lba=0", &flush));
    }

    #[test]
    fn data_of_a_read_match_by_namespace_and_blocks() {
        let matches = |rule, first| {
            let faults = faults(&[rule]);
            faults.data(&command(NvmOpcode::Read, first)).is_some()
        };
        assert!(matches("reorder data", 1000));
        assert!(matches("reorder data nsid=1 lba=1007", 1000));
        assert!(!matches("reorder data lba=1008", 1000));
        assert!(!matches("reorder data nsid=2", 1000));
        assert!(!matches("delay command read by=1s", 1000));
    }

    #[test]
    fn dma_matches_by_purpose_direction_route_and_address() {
        let write = Segment {
            purpose: Purpose::Payload,
            direction: Direction::Write,
            route: Route::Peer,
            address: Iova(0x1000),
            len: 0x1000,
        };
        let matches = |rule| faults(&[rule]).dma(&write).is_some();
        assert!(matches("fail dma"));
        assert!(matches("fail dma write route=peer address=0x1fff"));
        assert!(!matches("fail dma address=0x2000"));
        assert!(!matches("fail dma read"));
        assert!(!matches("fail dma route=guest-ram"));
        assert!(!matches("fail dma purpose=completion"));
    }

    #[test]
    fn admin_command_matches_by_opcode_mapping_by_iova() {
        let faults = faults(&[
            "drop admin-command identify nth=2",
            "fail mapping address=0x1000..0x2000",
        ]);
        assert_eq!(faults.admin_command(0x06), None);
        assert_eq!(faults.admin_command(0x09), None, "not counted");
        let second = faults.admin_command(0x06);
        assert_eq!(
            second.map(|fired| (fired.rule, fired.matches)),
            Some((1, 2))
        );
        let mapping = |first, last| {
            let range = Range::from_bounds(Iova(first), Iova(last)).unwrap();
            faults.mapping(range).map(|fired| fired.rule)
        };
        assert_eq!(mapping(0x2000, 0x2fff), None);
        assert_eq!(mapping(0, 0xfff), None);
        assert_eq!(mapping(0, 0x1000), Some(2));
        assert!(mapping(0x1800, u64::MAX).is_some(), "no overflow");
    }

    #[test]
    fn gpu_command_matches_by_opcode_and_channel() {
        let faults = faults(&["drop gpu-command fill channel=3", "fail gpu-command launch"]);
        let rule = |opcode, channel| faults.gpu_command(opcode, channel).map(|fired| fired.rule);
        assert_eq!(rule(2, 3), Some(1));
        assert_eq!((rule(2, 4), rule(1, 3)), (None, None));
        assert_eq!(rule(5, 0), Some(2));
        assert!(faults.is_armed(Kind::GpuCommand));
    }

    #[test]
    fn first_of_several_rules_fires_and_all_count() {
        let faults = faults(&[
            "fail command read nth=2",
            "delay command by=1s",
            "drop completion",
        ]);
        let read = command(NvmOpcode::Read, 0);
        let fire = || {
            faults
                .command(&read)
                .map(|fired| (fired.rule, fired.matches))
        };
        assert_eq!(fire(), Some((2, 1)));
        assert_eq!(fire(), Some((1, 2)));
        assert_eq!(fire(), Some((2, 3)));
        assert_eq!(faults.completion(&read).map(|fired| fired.rule), Some(3));
    }

    #[test]
    fn rule_for_the_device_fires_once() {
        let faults = Faults::default();
        let add = |rule: &str| {
            let fired = faults.add(rule.parse().unwrap()).unwrap();
            fired.map(|fired| (fired.rule, fired.action))
        };
        let full = (0..MOST).filter_map(|_| add("drop interrupt"));
        assert_eq!(full.count(), 0);
        let number = u32::try_from(MOST).unwrap() + 1;
        assert_eq!(
            add("link-down device"),
            Some((number, Action::LinkDown(None)))
        );
        assert_eq!(add("link-up device"), Some((number + 1, Action::LinkUp)));
        assert_eq!(faults.clear(), MOST, "it is not in force");
    }

    #[test]
    fn kind_is_armed_while_it_has_rules() {
        let faults = faults(&["drop interrupt"]);
        assert!(faults.is_armed(Kind::Interrupt) && !faults.is_armed(Kind::Dma));
        assert!(!faults.loses_power());
        assert_eq!(faults.clear(), 1);
        assert!(!faults.is_armed(Kind::Interrupt));
        assert_eq!(faults.interrupt(0), None);
        faults.add("drop interrupt".parse().unwrap()).unwrap();
        let fired = faults.interrupt(0).unwrap();
        assert_eq!(fired.rule, 2, "no number twice");
        faults.add("lose-power command".parse().unwrap()).unwrap();
        assert!(faults.loses_power());
    }

    #[test]
    fn number_that_the_device_lacks_is_refused_with_the_range() {
        let faults = Faults::new(Kind::VARIANTS);
        let add = |rule: &str| {
            let added = faults.add(rule.parse().unwrap());
            added.map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(add("drop interrupt vector=99"), Ok(()), "not known yet");
        faults.set_vectors(17);
        faults.set_namespaces(2);
        for rule in [
            "drop interrupt vector=16",
            "fail command nsid=1",
            "drop completion nsid=2",
            "fail command flush nsid=4294967295",
        ] {
            assert_eq!(add(rule), Ok(()), "{rule}");
        }
        let refused = [
            (
                "drop interrupt vector=17",
                "has `vector=17`: this device has vectors 0 to 16",
            ),
            (
                "fail command nsid=3",
                "has `nsid=3`: this device has namespaces 1 to 2",
            ),
            (
                "drop completion nsid=0",
                "has `nsid=0`: this device has namespaces 1 to 2",
            ),
            (
                "reorder data nsid=3",
                "has `nsid=3`: this device has namespaces 1 to 2",
            ),
        ];
        for (rule, cause) in refused {
            assert_eq!(add(rule), Err(cause.to_owned()));
        }
        faults.set_namespaces(0);
        let cause = "has `nsid=1`: this device has no namespaces";
        assert_eq!(add("fail command nsid=1"), Err(cause.to_owned()));
    }

    #[test]
    fn rule_that_cannot_be_in_force_is_refused() {
        let faults = Faults::default();
        let rule: Rule = "fail command".parse().unwrap();
        let refused = faults.add(rule.clone()).unwrap_err().to_string();
        assert_eq!(refused, "is for another device: this one has no command");
        faults.serve(&[Kind::Command]);
        faults.refuse_power_loss("it is nuclear");
        let refused = faults.add("lose-power command".parse().unwrap());
        let cause = "takes the device's power: it is nuclear";
        assert_eq!(refused.unwrap_err().to_string(), cause);
        for _ in 0..MOST {
            faults.add(rule.clone()).unwrap();
        }
        assert_eq!(faults.add(rule), Err(AddError::Full));
    }
}
