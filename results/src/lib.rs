//! The results of runs, for programs and for people.
//!
//! Not here: what a result is made from (`peerbar-lab`), and the command line.
#![forbid(unsafe_code)]

mod collection;
mod junit;
mod kcidb;
mod kselftest;
mod matrix;
#[cfg(test)]
mod samples;
mod shard;

pub use collection::{Collection, Explained, ReportedRun};
pub use junit::junit;
pub use kcidb::{CommitHash, KcidbError, KcidbOrigin, KcidbSource, kcidb};
pub use kselftest::kselftest;
pub use matrix::{
    CellWay, MATRIX, MATRIX_FORMAT, MatrixCell, MatrixFile, MatrixResults, TransferOutcome,
};
pub use shard::{Shard, ShardError, ShardPlan, ShardedList};
