//! The two ends of an RDMA transfer. Each may be a separate process, in one guest or in two.
//!
//! An end has an adapter, one of its queue pairs, and memory. It executes [`Command`]s, and answers
//! each with one [`Answer`]. A conductor has a connection to both ends and sends the commands:
//! [`Ends`] implements transfers. Messages are JSON, one per line, so a relay need not understand
//! them.
//!
//! - [`serve`] is an end's loop over its standard input and output, with any implementation of
//!   [`End`].
//! - [`Server`] keeps requests in progress at an end between commands; [`serve`] uses one.
//! - [`LineEnd`] is the conductor's [`End`]: another process, at the other side of two streams.
//!
//! [`Loss`] is the conductor of a transfer during which a part is lost, [`refuse`] the conductor of
//! requests that an adapter must refuse.
//!
//! Contents are named by a seed ([`content`]), so that no payload passes through the conductor.
//!
//! A conductor that waits for an answer waits as long as the stream does: the owner of the stream
//! limits the time.

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
    /// Executes `command`. If the end cannot execute it, the answer is [`Answer::Failed`].
    ///
    /// # Errors
    /// The end cannot be asked any more.
    fn ask(&mut self, command: &Command) -> Result<Answer>;
}

impl<E: End + ?Sized> End for &mut E {
    fn ask(&mut self, command: &Command) -> Result<Answer> {
        (**self).ask(command)
    }
}

/// Name of an end in errors if its side is not known.
const END: &str = "end";

/// Makes `end` execute `command`, whose only answer is that it is done.
fn done(end: &mut dyn End, command: &Command) -> Result<()> {
    match end.ask(command)? {
        Answer::Done => Ok(()),
        answer => Err(Error::of(answer, command, END)),
    }
}
