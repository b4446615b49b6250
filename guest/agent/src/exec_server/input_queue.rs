//! Input of a program that has arrived and has not been taken.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Write};

use anyhow::ensure;
use peerbar_report::exec::INPUT_WINDOW;

/// Input on its way to a program, limited by the window that the host observes.
#[derive(Debug, Default)]
pub(crate) struct InputQueue {
    bytes: VecDeque<u8>,
    /// `true` if no more input will come.
    ended: bool,
}

impl InputQueue {
    /// Takes input that the host has sent.
    ///
    /// # Errors
    /// The host has sent more than the window allows.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let held = self.bytes.len().saturating_add(bytes.len());
        ensure!(
            held <= usize::try_from(INPUT_WINDOW)?,
            "the host has sent {held} bytes of input at once: at most {INPUT_WINDOW} are allowed"
        );
        self.bytes.extend(bytes);
        Ok(())
    }

    /// Takes the end of the input.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Returns `true` if there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns `true` if there is input to write, or the end to pass on.
    pub(crate) fn is_due(&self) -> bool {
        !self.bytes.is_empty() || self.ended
    }

    /// Returns `true` if all input has been written and no more will come.
    pub(crate) fn is_finished(&self) -> bool {
        self.bytes.is_empty() && self.ended
    }

    /// Writes to `input`, which does not block, as much as it takes. Returns the number of bytes
    /// that have left the queue: input for a program that reads no more is dropped.
    pub(crate) fn write_to(&mut self, input: Option<&mut File>) -> u32 {
        let mut gone: usize = 0;
        while !self.bytes.is_empty() {
            let (bytes, _) = self.bytes.as_slices();
            let written = match &input {
                Some(file) => (&**file).write(bytes),
                None => Ok(bytes.len()),
            };
            let count = match written {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => self.bytes.len(),
            };
            self.bytes.drain(..count.min(self.bytes.len()));
            gone = gone.saturating_add(count);
        }
        u32::try_from(gone).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::pipe::pipe;

    use super::*;

    #[test]
    fn input_beyond_the_window_is_refused() {
        let mut queue = InputQueue::default();
        let window = vec![0; usize::try_from(INPUT_WINDOW).unwrap()];
        queue.push(&window).unwrap();
        assert!(queue.push(b"x").is_err());
        assert_eq!(queue.write_to(None), INPUT_WINDOW);
        queue.push(&window).unwrap();
    }

    #[test]
    fn input_goes_as_far_as_the_pipe_takes_it() {
        let (reader, writer) = pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let (mut reader, mut input) = (File::from(reader), File::from(writer));
        let mut queue = InputQueue::default();
        let mut sent = 0;
        // A pipe holds 64 KiB, so the second window does not fit.
        for _ in 0..2 {
            queue.push(&vec![1; 40_000]).unwrap();
            sent += queue.write_to(Some(&mut input));
        }
        assert!((40_000..80_000).contains(&sent), "{sent}");
        queue.end();
        assert!(queue.is_due() && !queue.is_finished());
        let mut space = vec![0; 65_536];
        let read = reader.read(&mut space).unwrap();
        assert_eq!(u32::try_from(read).unwrap(), sent);
        assert_eq!(sent + queue.write_to(Some(&mut input)), 80_000);
        assert!(queue.is_finished());
    }

    #[test]
    fn input_of_a_program_that_reads_no_more_is_dropped() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let mut input = File::from(writer);
        let mut queue = InputQueue::default();
        queue.push(b"abc").unwrap();
        assert_eq!(queue.write_to(Some(&mut input)), 3);
    }
}
