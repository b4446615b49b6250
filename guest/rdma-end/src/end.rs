//! An end of a transfer, as its conductor uses it.

use crate::error::{Error, Result};
use crate::message::{Answer, Command};

/// Name of an end in errors if its side is not known.
pub(crate) const END: &str = "end";

/// One end of a transfer.
pub trait End {
    /// Executes `command`. If the end cannot execute it, the answer is [`Answer::Failed`].
    ///
    /// # Errors
    /// The end cannot be asked any more.
    fn ask(&mut self, command: &Command) -> Result<Answer>;

    /// Continues its own work between commands. Returns `false` if there is none.
    fn go_on(&mut self) -> bool {
        false
    }
}

impl<E: End + ?Sized> End for Box<E> {
    fn ask(&mut self, command: &Command) -> Result<Answer> {
        (**self).ask(command)
    }
}

/// Makes `end` execute `command`, whose only answer is that it is done.
pub(crate) fn done(end: &mut dyn End, command: &Command) -> Result<()> {
    match end.ask(command)? {
        Answer::Done => Ok(()),
        answer => Err(Error::of(answer, command, END)),
    }
}
