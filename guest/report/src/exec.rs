//! The messages between host and guest about a program that the host starts in the guest.
//!
//! One connection to the guest's vsock port [`PORT`] is one program. The host sends
//! [`HostMessage::Start`] first, then input, signals and window sizes as they arise. The guest
//! answers with [`GuestMessage::Refused`], or with the program's output and, as the last message,
//! [`GuestMessage::Ended`]. A host that closes the connection ends the program by SIGHUP, then by
//! SIGKILL.
//!
//! The host sends at most [`INPUT_WINDOW`] bytes of input beyond those that the guest has reported
//! by [`GuestMessage::InputTaken`]. A program that reads nothing therefore delays no signal, and
//! the guest buffers little. Output needs no such window: a host that does not read makes the
//! program wait, as a pipe does.
//!
//! A message is a frame: its kind in one byte, the length of its content in four (little-endian),

//! the content. Input and output are bytes; everything else is JSON.

mod frame;
mod message;
mod request;

pub use frame::{LONGEST_FRAME, MessageError};
pub use message::{GuestMessage, HostMessage, ProgramEnd};
pub use request::{ProgramRequest, RequestError, TerminalSize};

/// The guest's vsock port.
pub const PORT: u32 = 1024;

/// Limit of the bytes of input in transit.
pub const INPUT_WINDOW: u32 = 1 << 20;

/// Name of the 9p export of the host's folder.
pub const HOST_TAG: &str = "host";

/// The mount point of the host's folder for the guest's programs.
pub const HOST_FOLDER: &str = "/host";
