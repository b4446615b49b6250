//! A rule as a value.

use std::num::NonZeroU64;
use std::ops::Range;
use std::time::Duration;

use peerbar_dma_log::{Direction, Purpose, Route};
use peerbar_nvme_spec::command::{AdminOpcode, NvmOpcode};
use peerbar_nvme_spec::completion::Status;
use peerbar_pci::Iova;
use strum::{IntoStaticStr, VariantArray};

/// A fault to inject: an action, its subject, and the choice of the subject's matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The action.
    pub action: Action,
    /// The subject.
    pub subject: Subject,
    /// The choice of matches.
    pub when: When,
}

/// The effect on a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A command ends with this status, and has no other effect.
    FailCommand(Status),
    /// A DMA, a mapping or a GPU's command fails, and has no other effect.
    Fail,
    /// The match takes effect later by this time.
    Delay(Duration),
    /// The match has no effect. A read by DMA ends as if its completion had not come.
    Drop,
    /// The match takes effect twice.
    Duplicate,
    /// The match takes effect after its successor.
    Reorder,
    /// The first bytes of the data of a DMA, at most this number, are inverted.
    Corrupt(NonZeroU64),
    /// The device is gone for its client, as if its server had died.
    Remove,
    /// The device's link goes down, for this time or until [`Action::LinkUp`]: the device cannot be
    /// reached, and is reset.
    LinkDown(Option<Duration>),
    /// The device's link comes up again.
    LinkUp,
    /// The device loses its power, and data that was written and not flushed may be lost. Its link
    /// is down for this time or until [`Action::LinkUp`].
    LosePower {
        /// Selects the blocks that are lost.
        pattern: u64,
        /// The time for which the link is down.
        down: Option<Duration>,
    },
}

/// The kinds of subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Kind {
    /// An I/O command of a disk, before it is executed.
    Command,
    /// The completion of an I/O command of a disk.
    Completion,
    /// The data of a Read of a disk, before it is written to the host's memory.
    Data,
    /// A command of a disk's admin queue, before it is executed.
    AdminCommand,
    /// A command of a GPU's channel, before it is executed.
    GpuCommand,
    /// A segment of a DMA.
    Dma,
    /// An interrupt by an MSI-X vector.
    Interrupt,
    /// A mapping that the client makes (vfio-user, DMA_MAP).
    Mapping,
    /// The device itself: the rule fires once, when it is added.
    Device,
    /// A submission queue entry that a GPU writes for a disk, before its doorbell.
    SubmissionEntry,
}

/// The subject of a rule, and the conditions on it. A condition of `None` matches all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// An I/O command of a disk, before it is executed.
    Command(MatchCommand),
    /// The completion of an I/O command of a disk.
    Completion(MatchCommand),
    /// The data of a Read of a disk, before it is written to the host's memory:
    /// [`MatchCommand::opcode`] is `None`.
    Data(MatchCommand),
    /// A command of a disk's admin queue, before it is executed: its opcode.
    AdminCommand(Option<AdminOpcode>),
    /// A command of a GPU's channel, before it is executed.
    GpuCommand(MatchGpuCommand),
    /// A segment of a DMA.
    Dma(MatchDma),
    /// An interrupt by an MSI-X vector: its number.
    Interrupt(Option<u16>),
    /// A mapping that the client makes: a range of IOVAs that must overlap it; not empty.
    Mapping(Option<Range<u64>>),
    /// The device itself.
    Device,
    /// A submission queue entry that a GPU writes for a disk, before its doorbell.
    SubmissionEntry,
}

impl Kind {
    /// The subjects of a disk, in addition to those of every device.
    pub const OF_DISKS: [Self; 4] = [
        Self::Command,
        Self::Completion,
        Self::Data,
        Self::AdminCommand,
    ];
    /// The subjects of a GPU, in addition to those of every device.
    pub const OF_GPUS: [Self; 2] = [Self::GpuCommand, Self::SubmissionEntry];
}

impl Subject {
    /// Returns its kind.
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

/// The conditions on an I/O command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchCommand {
    /// Its opcode.
    pub opcode: Option<NvmOpcode>,
    /// Its namespace.
    pub nsid: Option<u32>,
    /// A range of logical blocks that must overlap the command's; not empty.
    pub blocks: Option<Range<u64>>,
}

impl MatchCommand {
    /// Returns `true` if a command matches.
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

/// The conditions on a GPU's command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatchGpuCommand {
    /// Its opcode (`devices/gpu/INTERFACE.md`, Commands).
    pub opcode: Option<u8>,
    /// Its channel.
    pub channel: Option<u8>,
}

impl MatchGpuCommand {
    /// Returns `true` if a command with this opcode, of this channel, matches.
    pub fn matches(&self, opcode: u8, channel: u8) -> bool {
        self.opcode.is_none_or(|wanted| wanted == opcode)
            && self.channel.is_none_or(|wanted| wanted == channel)
    }
}

/// The conditions on a segment of a DMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchDma {
    /// Its purpose.
    pub purpose: Purpose,
    /// The direction of its data.
    pub direction: Option<Direction>,
    /// Its route.
    pub route: Option<Route>,
    /// A range of addresses that must overlap the segment; not empty.
    pub addresses: Option<Range<u64>>,
}

impl Default for MatchDma {
    /// Matches every segment of payload, the data that the device exists to move.
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
    /// Returns `true` if a segment matches.
    pub fn matches(&self, segment: &Segment) -> bool {
        let end = segment.address.saturating_add(segment.len);
        let span = segment.address.0..end.0;
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
    /// Its purpose.
    pub purpose: Purpose,
    /// The direction of its data.
    pub direction: Direction,
    /// Its route.
    pub route: Route,
    /// First address.
    pub address: Iova,
    /// Length in bytes.
    pub len: u64,
}

/// The choice of matches for which a rule fires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct When {
    /// The matches that are picked.
    pub pick: Pick,
    /// The most matches for which it fires.
    pub limit: Option<NonZeroU64>,
}

/// The matches that are picked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pick {
    /// All.
    #[default]
    All,
    /// The match with this number, counted from 1.
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

/// Returns `true` if two ranges overlap.
pub(crate) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}
