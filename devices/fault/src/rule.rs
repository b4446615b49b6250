//! A rule as a value.

use std::num::NonZeroU64;
use std::ops::Range;
use std::time::Duration;

use peerbar_dma_log::{Direction, Purpose, Route};
use peerbar_nvme_spec::command::{AdminOpcode, NvmOpcode};
use peerbar_nvme_spec::completion::Status;
use strum::{IntoStaticStr, VariantArray};

/// A fault to inject: what happens to which matches of a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What happens.
    pub action: Action,
    /// To what it happens.
    pub subject: Subject,
    /// To which of the matches.
    pub when: When,
}

/// What happens to a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A command ends with this status, and nothing else of it happens.
    FailCommand(Status),
    /// A DMA, a mapping or a GPU's command fails, and nothing of it happens.
    Fail,
    /// It happens later by this time.
    Delay(Duration),
    /// It does not happen. A read by DMA ends as one whose completion has not come.
    Drop,
    /// It happens twice.
    Duplicate,
    /// It happens after what should come next.
    Reorder,
    /// The first bytes of the data of a DMA, at most this number, are inverted.
    Corrupt(NonZeroU64),
    /// The device is gone for its client, as if its server had died.
    Remove,
    /// The device's link goes down, for this time or until [`Action::LinkUp`]: it cannot be reached, and is reset.
    LinkDown(Option<Duration>),
    /// The device's link comes up again.
    LinkUp,
    /// The device loses its power, and what was written and not flushed may be lost. Its link is down for this time or until
    /// [`Action::LinkUp`].
    LosePower {
        /// Picks the blocks that are lost.
        pattern: u64,
        /// For how long.
        down: Option<Duration>,
    },
}

/// The kinds of subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Kind {
    /// An I/O command of a disk, before it is carried out.
    Command,
    /// The completion of an I/O command of a disk.
    Completion,
    /// The data of a Read of a disk, on their way to the host's memory.
    Data,
    /// A command of a disk's admin queue, before it is carried out.
    AdminCommand,
    /// A command of a GPU's channel, before it is carried out.
    GpuCommand,
    /// A segment of a DMA.
    Dma,
    /// An interrupt by an MSI-X vector.
    Interrupt,
    /// A mapping that the client makes (vfio-user, DMA_MAP).
    Mapping,
    /// The device itself: the rule fires once, when it is put in force.
    Device,
    /// A submission queue entry that a GPU writes for a disk, before its doorbell.
    SubmissionEntry,
}

/// What a rule applies to, and what that must match. What is `None` matches all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// An I/O command of a disk, before it is carried out.
    Command(MatchCommand),
    /// The completion of an I/O command of a disk.
    Completion(MatchCommand),
    /// The data of a Read of a disk, on their way to the host's memory: [`MatchCommand::opcode`] is `None`.
    Data(MatchCommand),
    /// A command of a disk's admin queue, before it is carried out: its opcode.
    AdminCommand(Option<AdminOpcode>),
    /// A command of a GPU's channel, before it is carried out.
    GpuCommand(MatchGpuCommand),
    /// A segment of a DMA.
    Dma(MatchDma),
    /// An interrupt by an MSI-X vector: its number.
    Interrupt(Option<u16>),
    /// A mapping that the client makes: IOVAs of which it has one or more; not empty.
    Mapping(Option<Range<u64>>),
    /// The device itself.
    Device,
    /// A submission queue entry that a GPU writes for a disk, before its doorbell.
    SubmissionEntry,
}

impl Kind {
    /// What a disk has beside the subjects of every device.
    pub const OF_DISKS: [Self; 4] = [
        Self::Command,
        Self::Completion,
        Self::Data,
        Self::AdminCommand,
    ];
    /// What a GPU has beside the subjects of every device.
    pub const OF_GPUS: [Self; 2] = [Self::GpuCommand, Self::SubmissionEntry];
}

impl Subject {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Command(_) => Kind::Command,
            Self::Completion(_) => Kind::Completion,
            Self::Data(_) => Kind::Data,
            Self::AdminCommand(_) => Kind::AdminCommand,
            Self::GpuCommand(_) => Kind::GpuCommand,
            Self::Dma(_) => Kind::Dma,
            Self::Interrupt(_) => Kind::Interrupt,
            Self::Mapping(_) => Kind::Mapping,
            Self::Device => Kind::Device,
            Self::SubmissionEntry => Kind::SubmissionEntry,
        }
    }
}

/// What an I/O command must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchCommand {
    /// Its opcode.
    pub opcode: Option<NvmOpcode>,
    /// Its namespace.
    pub nsid: Option<u32>,
    /// Logical blocks of which it has one or more; not empty.
    pub blocks: Option<Range<u64>>,
}

impl MatchCommand {
    /// Whether a command matches.
    pub fn matches(&self, command: &BlockCommand) -> bool {
        let has_blocks = |wanted: &Range<u64>| {
            let blocks = command.blocks.as_ref();
            blocks.is_some_and(|blocks| overlap(wanted, blocks))
        };
        self.opcode
            .is_none_or(|opcode| opcode as u8 == command.opcode)
            && self.nsid.is_none_or(|nsid| nsid == command.nsid)
            && self.blocks.as_ref().is_none_or(has_blocks)
    }
}

/// An I/O command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockCommand {
    /// Its opcode.
    pub opcode: u8,
    /// Its namespace.
    pub nsid: u32,
    /// The logical blocks that it names, if it names a range.
    pub blocks: Option<Range<u64>>,
}

/// What a command of a GPU must match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatchGpuCommand {
    /// Its opcode (`devices/gpu/INTERFACE.md`, Commands).
    pub opcode: Option<u8>,
    /// Its channel.
    pub channel: Option<u8>,
}

impl MatchGpuCommand {
    /// Whether a command with this opcode, of this channel, matches.
    pub fn matches(&self, opcode: u8, channel: u8) -> bool {
        self.opcode.is_none_or(|wanted| wanted == opcode)
            && self.channel.is_none_or(|wanted| wanted == channel)
    }
}

/// What a segment of a DMA must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchDma {
    /// What it is for.
    pub purpose: Purpose,
    /// Which way the data goes.
    pub direction: Option<Direction>,
    /// The route that it takes.
    pub route: Option<Route>,
    /// Addresses of which it has one or more; not empty.
    pub addresses: Option<Range<u64>>,
}

impl Default for MatchDma {
    /// Every segment that moves what the device exists to move.
    fn default() -> Self {
        Self {
            purpose: Purpose::Payload,
            direction: None,
            route: None,
            addresses: None,
        }
    }
}

impl MatchDma {
    /// Whether a segment matches.
    pub fn matches(&self, segment: &Segment) -> bool {
        let span = segment.address..segment.address.saturating_add(segment.len);
        self.purpose == segment.purpose
            && self
                .direction
                .is_none_or(|direction| direction == segment.direction)
            && self.route.is_none_or(|route| route == segment.route)
            && self
                .addresses
                .as_ref()
                .is_none_or(|wanted| overlap(wanted, &span))
    }
}

/// A segment of a DMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// What it is for.
    pub purpose: Purpose,
    /// Which way the data goes.
    pub direction: Direction,
    /// The route that it takes.
    pub route: Route,
    /// First address.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Which of the matches meet the fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct When {
    /// Which of them.
    pub pick: Pick,
    /// At most this number of them.
    pub limit: Option<NonZeroU64>,
}

/// Which of the matches are picked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pick {
    /// All.
    #[default]
    All,
    /// The one of this number, from 1 on.
    Nth(NonZeroU64),
    /// Those whose number is a multiple.
    Every(NonZeroU64),
    /// Each with a probability of `of` in `among`, by a generator that starts from `seed`.
    Chance {
        /// Numerator, at most the denominator.
        of: NonZeroU64,
        /// Denominator.
        among: NonZeroU64,
        /// Start of the generator.
        seed: u64,
    },
}

/// Whether two ranges have something in common.
pub(crate) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}
