//! Eventfds: those of the process itself, and those that a client hands over.
//!
//! [`EventFd`] is one of the process. [`Event`] is one of a client, and [`Signaller`] signals it. These two never wait, whatever the
//! client does with the eventfd's counter and flags, which it shares.
#![forbid(unsafe_code)]

mod event;
mod event_fd;
mod signaller;

pub use event::Event;
pub use event_fd::EventFd;
pub use signaller::Signaller;
