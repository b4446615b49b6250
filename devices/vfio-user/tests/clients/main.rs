//! The server against two clients: one that sends hand-made bytes, and an independent
//! implementation. The client of other projects' servers against our server, and against one that
//! sends hand-made bytes.

// Clippy recognises tests only by their attribute, not the functions that they call.
#![allow(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

mod board;
mod descriptors;
mod ending;
mod foreign;
mod hostile;
mod listener;
mod protocol;
mod remote;
mod remote_hostile;
mod requests;

use rustix::io::Errno;

const EIO: Errno = Errno::IO;
const E2BIG: Errno = Errno::TOOBIG;
const EEXIST: Errno = Errno::EXIST;
const EINVAL: Errno = Errno::INVAL;
const EMFILE: Errno = Errno::MFILE;
const EMSGSIZE: Errno = Errno::MSGSIZE;
const ENOTSUP: Errno = Errno::NOTSUP;
