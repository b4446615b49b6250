//! What a step of an operation leads to.

use std::io;

/// A part of a file.
#[derive(Clone, Copy)]
pub(crate) struct FileRange {
    pub(crate) offset: u64,
    /// 0 with an offset of 0: up to the end.
    pub(crate) len: u32,
}

impl FileRange {
    pub(crate) const WHOLE: Self = Self { offset: 0, len: 0 };
}

/// The progress of an operation after a step.
pub(crate) enum Progress {
    /// There is another step.
    More,
    /// All data is moved; this range is to be brought to stable storage.
    ToSync(FileRange),
    /// It has ended.
    Over(io::Result<()>),
}
