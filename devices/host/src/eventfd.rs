//! Eventfds: those of the process itself, and those that a client passes.
//!
//! [`EventFd`] belongs to the process. [`Event`] belongs to a client, and [`Signaller`] signals it.
//! The latter two never wait, even though the client shares the eventfd's counter and flags and can
//! change them.

mod event;
mod event_fd;
mod signaller;

pub use event::Event;
pub use event_fd::EventFd;
pub use signaller::Signaller;
