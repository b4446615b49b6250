//! The guest's trace events, kept in the run's folder.

use std::fs::File;
use std::io::Write;

use anyhow::Context;

/// The most bytes that are kept: the guest is not trusted with the host's disk.
const LARGEST: usize = 40 << 20;

/// A file of trace events that grows no further than [`LARGEST`].
pub(crate) struct GuestTrace {
    file: File,
    room: usize,
}

impl GuestTrace {
    /// One that is kept in `file`.
    pub(crate) fn new(file: File) -> Self {
        Self {
            file,
            room: LARGEST,
        }
    }

    /// Takes the next bytes. Those for which there is no room are dropped.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let bytes = bytes.get(..self.room).unwrap_or(bytes);
        self.room -= bytes.len();
        self.file
            .write_all(bytes)
            .context("cannot write the guest's trace events")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_without_end_are_cut() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut trace = GuestTrace::new(file.reopen().unwrap());
        let chunk = vec![b'x'; 3 << 20];
        for _ in 0..20 {
            trace.take(&chunk).unwrap();
        }
        assert_eq!(file.as_file().metadata().unwrap().len(), LARGEST as u64);
    }
}
