//! Words for people, on stderr.

use std::fmt::Display;
use std::io::{Write, stderr};

/// Says a line. That nobody hears it any more, since a reader or a terminal is gone, is no reason not to go on.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}
