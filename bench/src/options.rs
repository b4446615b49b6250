//! How much to measure.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::Error;

/// Gets the name of the next measurement, and prevents it by [`Error::Interrupted`].
pub(crate) type Progress<'a> = dyn FnMut(&str) -> Result<(), Error> + 'a;

/// How much to measure on the host.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// A program that every server is run by, and what it is told; nothing: none.
    pub under: Vec<OsString>,
    /// The program `peerbar-nvme`.
    pub server: PathBuf,
    /// More words for its command line.
    pub words: Vec<String>,
    /// Few figures, one short round each.
    pub quick: bool,
    /// Only figures with this in their name.
    pub only: String,
}

impl Options {
    /// How often each measurement is made.
    pub(crate) fn rounds(&self) -> u32 {
        if self.quick { 1 } else { 5 }
    }

    /// How long each of them is.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_millis(if self.quick { 100 } else { 200 })
    }
}
