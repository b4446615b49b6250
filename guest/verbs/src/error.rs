//! The errors of this library.

use std::io;
use std::time::Duration;

use thiserror::Error as ThisError;

use crate::Status;

/// Result of this library.
pub type Result<T> = std::result::Result<T, Error>;

/// An error, with the kernel's own reason as its source if there is one.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// A library of rdma-core, or one of its functions, is missing.
    #[error(
        "cannot load {name}: install Debian's package ibverbs-providers, of rdma-core 44 or later"
    )]
    Library {
        /// The library.
        name: &'static str,
        /// The dynamic loader's reason.
        source: libloading::Error,
    },
    /// No adapter has this name.
    #[error("no RDMA device is named {name}: there is {}", if known.is_empty() { "none".to_owned() } else { known.join(", ") })]
    NoDevice {
        /// The requested name.
        name: String,
        /// The existing names.
        known: Vec<String>,
    },
    /// The library or the driver refuses a request.
    #[error("cannot {what}")]
    Refused {
        /// The request: "create a queue pair".
        what: String,
        /// The reason.
        source: io::Error,
    },
    /// A range reaches beyond its region.
    #[error("{length} bytes at {offset} are not within a region of {size} bytes")]
    OutOfBounds {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// Size of the region in bytes.
        size: u64,
    },
    /// A work request ended with an error.
    #[error("work request {id} ended with {status}")]
    Failed {
        /// The request's number.
        id: u64,
        /// Its status.
        status: Status,
    },
    /// Nothing was completed in time.
    #[error("no work request was completed within {} ms", limit.as_millis())]
    TimedOut {
        /// The time limit.
        limit: Duration,
    },
}

impl Error {
    /// Returns the error that the library has left in `errno`.
    pub(crate) fn last(what: impl Into<String>) -> Self {
        Self::Refused {
            what: what.into(),
            source: io::Error::last_os_error(),
        }
    }

    /// Converts a refusal of the kernel.
    pub(crate) fn refused(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Refused {
            what: what.to_owned(),
            source,
        }
    }

    /// Converts the error number that a function of the library has returned; 0 means success.
    pub(crate) fn check(number: libc::c_int, what: impl Into<String>) -> Result<()> {
        match number {
            0 => Ok(()),
            number => Err(Self::Refused {
                what: what.into(),
                source: io::Error::from_raw_os_error(number.saturating_abs()),
            }),
        }
    }

    /// Returns the system's number of the reason, if it has one.
    #[must_use]
    pub fn number(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_number_is_the_reason_whatever_its_sign() {
        assert!(Error::check(0, "x").is_ok());
        for number in [libc::EINVAL, -libc::EINVAL] {
            let error = Error::check(number, "create a queue pair").unwrap_err();
            assert_eq!(error.number(), Some(libc::EINVAL));
            assert_eq!(error.to_string(), "cannot create a queue pair");
        }
    }
}
