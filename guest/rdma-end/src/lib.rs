//! The two ends of an RDMA transfer, each a separate process, in one guest or in two.
//!
//! An end has an adapter, one of its queue pairs, and memory. It executes [`Command`]s, and answers
//! each with one [`Answer`]. Messages are JSON, one per line, so a relay need not understand them.
//!
//! - [`serve`] is an end's loop over its standard input and output, with any implementation of
//!   [`End`]. Between commands it keeps requests in progress.
//! - [`LineEnd`] is the conductor's [`End`]: another process, at the other side of two streams.
//! - [`Ends`] are two ends, and transfers between them.
//!
//! A conductor has a connection to both ends, and sends the commands. It is the same for all
//! checks: [`TwoEnds`] is a check's work, and [`Site`] the place in which it runs, which starts the
//! ends. One of its implementations is a guest that has both ends, another a host whose guests have
//! one each.
//!
//! Contents are named by a seed ([`content`]), so that no payload passes through the conductor.
//!
//! A conductor that waits for an answer waits as long as the stream does: the owner of the stream
//! limits the time.

#![forbid(unsafe_code)]

mod arrivals;
mod chain;
mod completions;
mod conductor;
mod end;
mod ends;
mod error;
mod line;
mod load;
mod lost;
mod message;
mod refused;
mod server;
mod slots;
mod status;
mod transfers;
mod workload;
mod workload_error;

#[cfg(test)]
mod fake;

pub use arrivals::Arrivals;
pub use conductor::{
    Counted, EndSpec, Moment, Permitted, Results, Site, StartedEnd, Step, TWO_ENDED, TwoEnds,
    memory_size, two_ends,
};
pub use end::End;
pub use ends::{Ends, MARGIN, Side, Way};
pub use error::{Error, Result, in_one_line};
pub use line::LineEnd;
pub use load::{Asked, DEPTH, Requests, Workload, WorkloadCommand, WorkloadOutcome, Written};
pub use message::{
    Address, Answer, Command, Completed, Content, Operation, OwnResults, OwnTests, PairState,
    Rights, Span, Spare, SpareCommand, Tested, content,
};
pub use server::{Server, serve};
pub use status::Status;
pub use transfers::transfers;
