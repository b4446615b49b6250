//! The progress of an operation.

use std::io;

/// The progress of an operation after a step.
pub(crate) enum Progress {
    /// There is another step.
    More,
    /// The operation has ended.
    Over(io::Result<()>),
}
