//! The results of runs, for programs and for people.
//!
//! Not here: the source of results (`peerbar-lab`), and the command line.
#![forbid(unsafe_code)]

mod collection;
mod html;
mod junit;
mod junit_file;
mod matrix;
mod report_file;
#[cfg(test)]
mod samples;
#[cfg(any(test, feature = "schema-check"))]
pub mod schema_check;
mod shard;
mod shard_series;

pub use collection::{Collection, Explained, Refusal, ReportedRun};
pub use html::page;
pub use junit::junit;
pub use matrix::{
    CellWay, MATRIX, MATRIX_FORMAT, MatrixCell, MatrixFile, MatrixResults, TransferOutcome,
};
pub use report_file::{REPORT_FORMAT, ReportFile, report_schema, run_schema};
pub use shard::{Shard, ShardError, ShardItem, ShardPlan, ShardedList};
