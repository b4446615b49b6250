//! The eventfds that a client hands over: [`Event`] is one of them, [`Signaller`] signals it. Neither ever waits, whatever the
//! client does with the eventfd's counter and flags, which it shares.
#![forbid(unsafe_code)]

mod event;
mod signaller;

pub use event::Event;
pub use signaller::Signaller;
