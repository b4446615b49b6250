//! The reasons why an access to a mapping is refused.

use std::io;

use thiserror::Error;

/// A span reaches beyond its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("bytes {start} to {end} are not within a buffer of {size} bytes")]
pub struct OutOfBounds {
    /// First byte.
    pub start: u64,
    /// The byte after the last one.
    pub end: u64,
    /// Size of the memory in bytes.
    pub size: u64,
}

impl From<OutOfBounds> for io::Error {
    fn from(error: OutOfBounds) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// The reason why a word is not accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WordError {
    /// It reaches beyond the memory.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// One access cannot cover all of it.
    #[error("a word of {size} bytes cannot be at {offset:#x}: take a multiple of its size")]
    Unaligned {
        /// Its offset.
        offset: u64,
        /// Its size in bytes.
        size: usize,
    },
}

impl From<WordError> for io::Error {
    fn from(error: WordError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}
