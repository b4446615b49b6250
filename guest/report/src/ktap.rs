//! KTAP version 1 (Linux, Documentation/dev-tools/ktap.rst), as the agent writes it and the
//! launcher reads it.

mod line;
mod reader;
mod subtest;
mod tap_line;
mod writer;

pub use line::{Line, Verdict, reported_name};
pub use reader::{KtapError, KtapReader};
pub use subtest::{Nested, ProgramReport, Subtest};
pub use writer::KtapWriter;

/// Longest line in bytes, including its newline, that is written or accepted.
const LINE_LIMIT: usize = 64 << 10;
