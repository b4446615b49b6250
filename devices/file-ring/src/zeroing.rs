//! A part of a file that is made to read as zero: by the file system, or else by writes of bounded length.

use std::io;

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::Fd;

use crate::progress::Progress;

/// What one step writes.
static ZEROES: [u8; 1 << 16] = [0; 1 << 16];

/// How it is done.
enum Method {
    /// fallocate(2) in this mode.
    Allocate(i32),
    Write,
}

/// A part of a file that does not read as zero yet.
pub(crate) struct Zeroing {
    offset: u64,
    left: u64,
    method: Method,
}

impl Zeroing {
    /// `len` bytes from `offset` on, whose storage is given back with `deallocate`, if the file system can do that.
    pub(crate) fn new((offset, len): (u64, u64), deallocate: bool) -> Self {
        let mode = if deallocate {
            libc::FALLOC_FL_PUNCH_HOLE
        } else {
            libc::FALLOC_FL_ZERO_RANGE
        };
        Self {
            offset,
            left: len,
            method: Method::Allocate(mode | libc::FALLOC_FL_KEEP_SIZE),
        }
    }

    /// The next step.
    pub(crate) fn entry(&self, file: Fd) -> Entry {
        match self.method {
            Method::Allocate(mode) => opcode::Fallocate::new(file, self.left)
                .offset(self.offset)
                .mode(mode)
                .build(),
            Method::Write => {
                let most = u32::try_from(ZEROES.len()).unwrap_or(0);
                let len = u32::try_from(self.left).map_or(most, |left| left.min(most));
                opcode::Write::new(file, ZEROES.as_ptr(), len)
                    .offset(self.offset)
                    .build()
            }
        }
    }

    /// Takes the result of a step.
    pub(crate) fn advance(&mut self, result: io::Result<usize>) -> Progress {
        match (&self.method, result) {
            (Method::Allocate(_), Err(error)) if is_missing(&error) => {
                self.method = Method::Write;
                Progress::More
            }
            (_, Err(error)) => Progress::Over(Err(error)),
            (Method::Allocate(_), Ok(_)) => Progress::Over(Ok(())),
            (Method::Write, Ok(0)) => Progress::Over(Err(io::ErrorKind::WriteZero.into())),
            (Method::Write, Ok(count)) => {
                self.offset = self.offset.saturating_add(count as u64);
                self.left = self.left.saturating_sub(count as u64);
                match self.left {
                    0 => Progress::Over(Ok(())),
                    _ => Progress::More,
                }
            }
        }
    }
}

/// Whether the file system cannot do that: a pipe has no holes either.
fn is_missing(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(errno, Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ESPIPE))
}
