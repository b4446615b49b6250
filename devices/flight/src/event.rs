//! The recorded events.

use peerbar_dma_log::{Completer, Direction, Origin, Purpose, Route};
use peerbar_pci::{BusAddress, Iova, Range};
use strum::{Display, FromRepr};

/// An event, and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number, counted from 1. Events that were recorded under one lock are numbered in the
    /// order in which they happened.
    pub sequence: u64,
    /// The time, in nanoseconds of CLOCK_MONOTONIC.
    pub nanos: u64,
    /// The event.
    pub event: Event,
}

/// An event at a device, or an action of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The client maps (vfio-user, DMA_MAP).
    Map(Mapping),
    /// The client unmaps a range (vfio-user, DMA_UNMAP), which may have been unmapped already.
    Unmap(Range<Iova>),
    /// A segment of a DMA. All of it took one route.
    Dma(Dma),
    /// A command begins.
    Begin {
        /// The command.
        origin: Origin,
        /// Its kind.
        operation: Operation,
    },
    /// A command is complete: its driver is notified next.
    End {
        /// The command.
        origin: Origin,
        /// 0 if it succeeded; otherwise the device's number for the reason.
        status: u16,
    },
    /// One of the device's own windows opens, moves or closes.
    Window(WindowEvent),
    /// A window of a peer below the same switch opens. It replaces no other window.
    PeerWindow(PeerWindowEvent),
    /// All windows of a peer close.
    PeerLeaves(u32),
    /// Bus mastering is on or off (Command register, bit 2).
    BusMaster(bool),
    /// A reset has begun (every request is refused), or ended.
    Reset(bool),
    /// A client has come, or left.
    Client(bool),
    /// A fault was injected.
    Injected(Injection),
    /// The device has read a new value of a queue's doorbell.
    Doorbell(DoorbellEvent),
    /// A peer below the same switch has written to the device's registers.
    RegisterWrite(RegisterWrite),
    /// The client has written to registers in an invalid way. The device ignores it.
    IgnoredWrite(IgnoredWrite),
    /// The device signals the client to interrupt the guest.
    Interrupt {
        /// The MSI-X vector, or 0 for the INTx pin.
        vector: u16,
    },
}

/// The kind of a command, by its device's own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The opcode.
    pub opcode: u8,
    /// Flags, such as the second byte of an NVMe command (NVMe Base 2.0, 3.3.3.1).
    pub flags: u8,
}

impl From<u8> for Operation {
    /// Makes an operation without flags.
    fn from(opcode: u8) -> Self {
        Self { opcode, flags: 0 }
    }
}

/// A new value of a queue's doorbell, as the device has read it, and its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorbellEvent {
    /// The queue.
    pub queue: u16,
    /// The value.
    pub tail: u32,
    /// Number of entries that the driver has added since the previous value.
    pub added: u32,
    /// Number of entries to fetch now, including the added ones.
    pub waiting: u32,
    /// The vector of the interrupts for these entries' completions; `None` if the driver polls for
    /// them.
    pub vector: Option<u16>,
}

/// A peer's write to the device's registers. A write that comes through the root is the client's,
/// and is not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterWrite {
    /// The peer's number at the switch.
    pub peer: u32,
    /// The BAR.
    pub bar: u8,
    /// The first register's offset in the BAR.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
    /// The first 8 bytes at most, as a little-endian number.
    pub value: u64,
}

/// A client's write that a device ignores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IgnoredWrite {
    /// The BAR.
    pub bar: u8,
    /// Its offset in the BAR.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// A fault that a rule has injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// The number of the rule, counted from 1. [`Header::rules`](crate::Header::rules) has its
    /// text.
    pub rule: u32,
    /// The number of the match, counted from 1.
    pub matches: u64,
    /// The queue and command that met it.
    pub origin: Origin,
}

/// A range of IOVAs and its backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range<Iova>,
    /// Reads through it are permitted.
    pub readable: bool,
    /// Writes through it are permitted.
    pub writable: bool,
    /// Its backing.
    pub backing: Backing,
}

impl Mapping {
    /// Returns the part of it with these addresses.
    pub(crate) fn part(&self, range: Range<Iova>) -> Self {
        let skip = self.range.offset_of(range.first()).unwrap_or_default();
        let after = |span: FileSpan| FileSpan {
            offset: span.offset.saturating_add(skip),
            ..span
        };
        let backing = match self.backing {
            Backing::Ram(span) => Backing::Ram(after(span)),
            Backing::RemoteRam(span) => Backing::RemoteRam(after(span)),
            Backing::Device => Backing::Device,
        };
        Self {
            range,
            backing,
            ..*self
        }
    }
}

/// The backing of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Guest RAM: a part of a file that the device has also mapped.
    Ram(FileSpan),
    /// Guest RAM in a file that the device does not trust, and reaches through the client.
    RemoteRam(FileSpan),
    /// A mapping for which the client passed no file: a device's BAR, or a ROM.
    Device,
}

impl Backing {
    /// Returns the part of a file that backs it.
    pub fn file(&self) -> Option<FileSpan> {
        match self {
            Self::Ram(span) | Self::RemoteRam(span) => Some(*span),
            Self::Device => None,
        }
    }
}

/// An offset in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSpan {
    /// The file's device number (stat(2), st_dev).
    pub device: u64,
    /// Its inode number (st_ino).
    pub inode: u64,
    /// Offset in bytes.
    pub offset: u64,
}

/// A segment of a DMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dma {
    /// The queue and command that it was made for.
    pub origin: Origin,
    /// The purpose.
    pub purpose: Purpose,
    /// The direction of the data.
    pub direction: Direction,
    /// First address.
    pub address: Iova,
    /// Length in bytes.
    pub len: u64,
    /// The route.
    pub route: Route,
    /// The owner of the memory that it accessed.
    pub completer: Completer,
    /// Its outcome.
    pub outcome: DmaOutcome,
    /// Duration in nanoseconds; 0 if only failures are recorded.
    pub took: u64,
}

/// The outcome of a DMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display)]
pub enum DmaOutcome {
    /// It succeeded.
    #[strum(to_string = "done")]
    Done,
    /// The device may not issue requests: bus mastering is off, or a reset is in progress.
    #[strum(to_string = "the device may not issue requests")]
    NotMaster,
    /// The address is a register of the device itself.
    #[strum(to_string = "a register of the device itself")]
    OwnRegisters,
    /// The page table has no page for that part of the device's own window.
    #[strum(to_string = "no page in the device's own window")]
    NoPage,
    /// The range wraps around.
    #[strum(to_string = "the range wraps around")]
    Wraps,
    /// The register to write does not start at a multiple of its size.
    #[strum(to_string = "an unaligned register")]
    Unaligned,
    /// The client refused it, with this errno.
    #[strum(to_string = "QEMU refused it (errno {0})")]
    ClientRefused(u16),
    /// There was no client.
    #[strum(to_string = "QEMU is gone")]
    ClientGone,
    /// The client did not answer in time.
    #[strum(to_string = "QEMU did not answer")]
    ClientTimedOut,
    /// The peer, or the switch, does not support the request.
    #[strum(to_string = "unsupported request")]
    PeerUnsupported,
    /// The peer has vanished.
    #[strum(to_string = "the peer is gone")]
    PeerGone,
    /// The peer did not answer in time.
    #[strum(to_string = "completion time-out")]
    PeerTimedOut,
    /// The mapping does not permit it.
    #[strum(to_string = "the mapping does not permit it")]
    Forbidden,
    /// The mapping or the window has no memory.
    #[strum(to_string = "no memory behind it")]
    NoMemory,
    /// A fault was injected.
    #[strum(to_string = "a fault was injected")]
    Injected,
}

/// One of the device's own windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowEvent {
    /// The window.
    pub id: WindowId,
    /// Its bus addresses; `None` if it is closed.
    pub range: Option<Range<BusAddress>>,
    /// The memory behind it.
    pub memory: WindowKind,
}

/// Names one of a device's windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WindowId {
    /// The Controller Memory Buffer, where the controller believes it to be (NVMe Base 2.0, 3.1.3.16).
    Cmb,
    /// The Persistent Memory Region, at the address in PMRMSC (NVMe Base 2.0, 8.14).
    Pmr,
    /// A base address register.
    Bar(u8),
}

/// The memory behind a window. The numbers are those of the flight record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRepr)]
#[repr(u8)]
pub enum WindowKind {
    /// Registers.
    Registers,
    /// Memory.
    Memory,
    /// Memory through a page table.
    Pages,
    /// The window of a peer that has vanished.
    Gone,
}

/// A window of a peer below the same switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerWindowEvent {
    /// The peer's number at the switch.
    pub peer: u32,
    /// Its bus addresses.
    pub range: Range<BusAddress>,
    /// If several windows cover one address, the one with the smallest claim answers.
    pub claim: u64,
    /// The memory behind it.
    pub memory: WindowKind,
}
