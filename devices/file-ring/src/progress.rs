//! The progress of an operation.

use std::io;

/// The progress of an operation after a step.
pub(crate) enum Progress {
    /// There is another step.
    More,
    /// It has ended.
    Over(io::Result<()>),
}
