//! A file with data from a guest or caused by it, in the run's folder: the guest is not trusted
//! with the host's disk.

use std::fs::File;
use std::io::{self, Write};

/// A file that grows no further than its limit.
#[derive(Debug)]
pub(crate) struct BoundedFile {
    file: File,
    remaining: usize,
}

impl BoundedFile {
    /// `file` with at most `limit` bytes.
    pub(crate) fn new(file: File, limit: usize) -> Self {
        Self {
            file,
            remaining: limit,
        }
    }

    /// Takes the next bytes, and returns those that fit. The others are dropped.
    pub(crate) fn take<'bytes>(&mut self, bytes: &'bytes [u8]) -> io::Result<&'bytes [u8]> {
        let kept = bytes.get(..self.remaining).unwrap_or(bytes);
        self.file.write_all(kept)?;
        self.remaining = self.remaining.saturating_sub(kept.len());
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_without_end_are_cut() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut bounded = BoundedFile::new(file.reopen().unwrap(), 1000);
        assert_eq!(bounded.take(&[b'x'; 600]).unwrap().len(), 600);
        assert_eq!(bounded.take(&[b'y'; 600]).unwrap(), [b'y'; 400]);
        assert_eq!(bounded.take(b"z").unwrap(), b"");
        assert_eq!(file.as_file().metadata().unwrap().len(), 1000);
    }
}
