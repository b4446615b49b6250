//! What host and guest say to each other about a program that the host starts in the guest.
//!
//! One connection to the guest's vsock port [`PORT`] is one program. The host sends [`HostMessage::Start`] first, then input,
//! signals and window sizes as they come. The guest answers with [`GuestMessage::Refused`], or with the program's output and, as
//! the last message, [`GuestMessage::Ended`]. A host that closes the connection ends the program by SIGHUP, then by SIGKILL.
//!
//! The host sends at most [`INPUT_WINDOW`] bytes of input beyond what the guest has reported by [`GuestMessage::InputTaken`]. So
//! a program that reads nothing holds no signal up, and the guest keeps little. Output needs no such account: a host that does
//! not read makes the program wait, as a pipe does.
//!
//! A message is a frame: its kind in one byte, the length of its content in four (little-endian), the content. Input and output
//! are bytes; all else is JSON.

#![forbid(unsafe_code)]

mod frame;
mod message;
mod request;

pub use frame::{LONGEST_FRAME, MessageError};
pub use message::{GuestMessage, HostMessage, ProgramEnd};
pub use request::{ProgramRequest, RequestError, TerminalSize};

/// The guest's vsock port.
pub const PORT: u32 = 1024;

/// Most bytes of input on their way.
pub const INPUT_WINDOW: u32 = 1 << 20;

/// Name of the 9p export of the host's folder.
pub const HOST_TAG: &str = "host";

/// Where the guest's programs see the host's folder.
pub const HOST_FOLDER: &str = "/host";
