//! The two ends of an RDMA transfer, each of which may be a process of its own, in one guest or in two.
//!
//! An end has an adapter, a queue pair of it, and memory. It does what it is asked by a [`Command`], and answers each with one
//! [`Answer`]. A conductor has a connection to both and asks: [`Ends`] has the transfers. Messages are JSON, one a line, so a
//! relay need not know what they mean.
//!
//! - [`serve`] is an end's loop over its standard input and output, with whatever implements [`End`].
//! - [`LineEnd`] is the conductor's [`End`]: another process, at the other side of two streams.
//!
//! Contents are named by a seed ([`content`]), so that no payload passes by the conductor.
//!
//! A conductor that waits for an answer waits as long as the stream does: the owner of the stream limits the time.

#![forbid(unsafe_code)]

mod chain;
mod ends;
mod error;
mod line;
mod message;

#[cfg(test)]
mod fake;

pub use chain::{Chain, FileRange};
pub use ends::{Ends, MARGIN, Way};
pub use error::{Error, Result};
pub use line::{LineEnd, serve};
pub use message::{Address, Answer, Command, Completed, Operation, Span, content};

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
