//! The two ends of an RDMA transfer, each of which may be a process of its own, in one guest or in two.
//!
//! An end has an adapter, a queue pair of it, and memory. It does what it is asked by a [`Command`], and answers each with one
//! [`Answer`]. A conductor has a connection to both and asks: [`Ends`] has the transfers. Messages are JSON, one a line, so a
//! relay need not know what they mean.
//!
//! - [`serve`] is an end's loop over its standard input and output, with whatever implements [`End`].
//! - [`Server`] keeps requests in progress at an end while that is asked for nothing; [`serve`] has one.
//! - [`LineEnd`] is the conductor's [`End`]: another process, at the other side of two streams.
//!
//! [`Loss`] has the conductor's part of a transfer of which a part dies, [`refuse`] that of what an adapter must refuse.
//!
//! Contents are named by a seed ([`content`]), so that no payload passes by the conductor.
//!
//! A conductor that waits for an answer waits as long as the stream does: the owner of the stream limits the time.

#![forbid(unsafe_code)]

mod arrivals;
mod chain;
mod ends;
mod error;
mod line;
mod lost;
mod message;
mod refused;
mod server;
mod slots;
mod status;
mod workload;

#[cfg(test)]
mod fake;

pub use arrivals::Arrivals;
pub use chain::{Chain, FileRange};
pub use ends::{Ends, MARGIN, Side, Way};
pub use error::{Error, Result, in_one_line};
pub use line::LineEnd;
pub use lost::{Amid, GO_ON_BYTES, Loss, Part, go_on};
pub use message::{
    Address, Answer, Command, Completed, Content, Operation, PairState, Rights, Span, Spare,
    SpareCommand, content,
};
pub use refused::{Permitted, REFUSE_BYTES, refuse};
pub use server::{Server, serve};
pub use slots::Written;
pub use status::Status;
pub use workload::{Asked, DEPTH, Requests, Workload, WorkloadCommand, WorkloadOutcome};

/// One end of a transfer.
pub trait End {
    /// Has it carry out `command`. A command that it could not carry out is [`Answer::Failed`].
    ///
    /// # Errors
    /// It cannot be asked any more.
    fn ask(&mut self, command: &Command) -> Result<Answer>;
}

impl<E: End + ?Sized> End for &mut E {
    fn ask(&mut self, command: &Command) -> Result<Answer> {
        (**self).ask(command)
    }
}

/// What errors call an end where its side is not known.
const END: &str = "end";

/// Has `end` do `command`, which has no other answer than that it is done.
fn done(end: &mut dyn End, command: &Command) -> Result<()> {
    match end.ask(command)? {
        Answer::Done => Ok(()),
        answer => Err(Error::of(answer, command, END)),
    }
}
