//! The registers of the copy engine, in BAR 0. All are little-endian.

/// Identity, 4 bytes, read-only: [`IDENTITY_VALUE`].
pub const IDENTITY: u64 = 0x00;
/// Number of copies since the last reset, 4 bytes, read-only.
pub const COPIES: u64 = 0x04;
/// Bus address to read from, 8 bytes.
pub const SOURCE: u64 = 0x08;
/// Bus address to write to, 8 bytes.
pub const TARGET: u64 = 0x10;
/// Number of bytes to copy, 4 bytes.
pub const LENGTH: u64 = 0x18;
/// Any write starts a copy, 4 bytes. Reads return the [`Status`] of the last one.
pub const START: u64 = 0x1c;
/// Size of the registers in bytes.
pub const REGISTER_BYTES: usize = 0x20;

/// The value of [`IDENTITY`]: "COPY".
pub const IDENTITY_VALUE: u32 = u32::from_le_bytes(*b"COPY");

/// BAR of the registers: trapped.
pub const REGISTER_BAR: u32 = 0;
/// BAR of the device's own memory: a client may map it.
pub const MEMORY_BAR: u32 = 2;
/// Size of the device's own memory in bytes.
pub const MEMORY_BYTES: u32 = 2 << 20;

/// The outcome of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// There was none.
    #[default]
    Idle = 0,
    /// All bytes were copied.
    Done = 1,
    /// The source, or a part of it, is not mapped for reading with a descriptor.
    SourceUnmapped = 2,
    /// The target, or a part of it, is not mapped for writing with a descriptor.
    TargetUnmapped = 3,
    /// Bus mastering is off.
    NotMaster = 4,
}

impl Status {
    /// Returns the status of a value of [`START`].
    pub fn from_value(value: u32) -> Option<Self> {
        [
            Self::Idle,
            Self::Done,
            Self::SourceUnmapped,
            Self::TargetUnmapped,
            Self::NotMaster,
        ]
        .into_iter()
        .find(|status| status.value() == value)
    }

    /// Returns the value of [`START`].
    pub fn value(self) -> u32 {
        self as u32
    }
}
