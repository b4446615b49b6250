//! A writer with a limit, for data from a guest: it is not trusted with the host's disk and memory.

use std::io::{self, Write};

use peerbar_report::Size;

/// Passes bytes on up to a limit. More is an error.
#[derive(Debug)]
pub struct Limited<W> {
    to: W,
    left: u64,
    limit: Size,
    way_out: &'static str,
}

impl<W> Limited<W> {
    /// Passes at most `limit` bytes to `to`. The error about more ends with the advice `way_out`.
    pub fn new(to: W, limit: Size, way_out: &'static str) -> Self {
        let left = limit.0;
        Self {
            to,
            left,
            limit,
            way_out,
        }
    }

    /// Returns the inner writer.
    pub fn into_inner(self) -> W {
        self.to
    }
}

impl<W: Write> Write for Limited<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let Some(left) = self.left.checked_sub(count) else {
            let (limit, way_out) = (self.limit, self.way_out);
            return Err(io::Error::other(format!("more than {limit}: {way_out}")));
        };
        self.to.write_all(bytes)?;
        self.left = left;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_limit_are_an_error() {
        let mut limited = Limited::new(Vec::new(), Size(4096), "ask for less");
        limited.write_all(&[7; 4096]).unwrap();
        let error = limited.write_all(&[8]).unwrap_err();
        assert_eq!(error.to_string(), "more than 4K: ask for less");
        assert_eq!(limited.into_inner(), [7; 4096]);
    }
}
