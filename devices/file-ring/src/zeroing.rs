//! Makes a part of a file read as zero: by the file system, or by writes of bounded length.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::Fd;
use rustix::fs::FallocateFlags;

use crate::progress::Progress;

/// The data that one step writes.
static ZEROES: [u8; 1 << 16] = [0; 1 << 16];

/// The method of zeroing.
enum Method {
    /// fallocate(2) with these flags.
    Allocate(FallocateFlags),
    Write,
}

/// A part of a file that does not read as zero yet.
pub(crate) struct Zeroing {
    offset: u64,
    left: u64,
    method: Method,
}

impl Zeroing {
    /// Makes a zeroing of `len` bytes from `offset` on. With `deallocate` their storage is freed,
    /// if the file system supports that.
    pub(crate) fn new((offset, len): (u64, u64), deallocate: bool) -> Self {
        let flags = if deallocate {
            FallocateFlags::PUNCH_HOLE
        } else {
            FallocateFlags::ZERO_RANGE
        };
        Self {
            offset,
            left: len,
            method: Method::Allocate(flags | FallocateFlags::KEEP_SIZE),
        }
    }

    /// Returns the next step.
    pub(crate) fn entry(&self, file: Fd) -> Entry {
        match self.method {
            Method::Allocate(flags) => opcode::Fallocate::new(file, self.left)
                .offset(self.offset)
                .mode(i32::from_ne_bytes(flags.bits().to_ne_bytes()))
                .build(),
            Method::Write => {
                let zeroes = self.zeroes();
                let len = u32::try_from(zeroes.len()).unwrap_or(0);
                opcode::Write::new(file, zeroes.as_ptr(), len)
                    .offset(self.offset)
                    .build()
            }
        }
    }

    /// Returns the data that the next step writes.
    fn zeroes(&self) -> &'static [u8] {
        let len = usize::try_from(self.left).map_or(ZEROES.len(), |left| left.min(ZEROES.len()));
        ZEROES.get(..len).unwrap_or_default()
    }

    /// Executes all steps at once, by system calls.
    pub(crate) fn finish(mut self, file: &File) -> io::Result<()> {
        loop {
            let result = match self.method {
                Method::Allocate(flags) => {
                    let allocated = rustix::fs::fallocate(file, flags, self.offset, self.left);
                    allocated.map(|()| 0).map_err(io::Error::from)
                }
                Method::Write => file.write_at(self.zeroes(), self.offset),
            };
            if let Progress::Over(outcome) = self.advance(result) {
                return outcome;
            }
        }
    }

    /// Takes the result of a step.
    pub(crate) fn advance(&mut self, result: io::Result<usize>) -> Progress {
        match (&self.method, result) {
            (_, Err(error)) if error.kind() == io::ErrorKind::Interrupted => Progress::More,
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

/// Returns `true` if fallocate(2) is not possible here, so that zeros must be written: the file
/// system, or a pipe, has no holes, or the range does not end at sectors of a block device
/// (EINVAL).
fn is_missing(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(
        errno,
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ESPIPE | libc::EINVAL)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file system or device that refuses fallocate(2).
    #[test]
    fn zeroes_are_written_where_fallocate_is_refused() {
        for errno in [libc::EOPNOTSUPP, libc::EINVAL] {
            let mut zeroing = Zeroing::new((0x200, 0x10200), true);
            let refused = zeroing.advance(Err(io::Error::from_raw_os_error(errno)));
            assert!(matches!(refused, Progress::More), "errno {errno}");
            assert_eq!(zeroing.zeroes().len(), 1 << 16);
            assert!(matches!(zeroing.advance(Ok(1 << 16)), Progress::More));
            assert_eq!((zeroing.offset, zeroing.zeroes().len()), (0x10200, 0x200));
            assert!(matches!(zeroing.advance(Ok(0x200)), Progress::Over(Ok(()))));
        }
        let mut zeroing = Zeroing::new((0, 0x200), true);
        let failed = zeroing.advance(Err(io::Error::from_raw_os_error(libc::EIO)));
        assert!(matches!(failed, Progress::Over(Err(_))));
    }
}
