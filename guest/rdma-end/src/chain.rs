//! From a disk to a GPU, over the wire, to another GPU and to its disk.

use std::path::PathBuf;
use std::time::Duration;

use crate::ends::Side;
use crate::{Command, End, Ends, Result, Way};

/// A part of a file or of a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// The file.
    pub path: PathBuf,
    /// First byte.
    pub at: u64,
}

/// A transfer from file to file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// A file that the near end opens.
    pub source: FileRange,
    /// A file that the far end opens.
    pub target: FileRange,
    /// Number of bytes: whole blocks of both files.
    pub length: u32,
    /// The way from end to end. With [`Way::Read`], the far end is the requester.
    pub way: Way,
}

impl<N: End, F: End> Ends<N, F> {
    /// Reads the source into the near end's memory, moves it to the far end's, and writes it to the
    /// target. Compares only the memory around it. Returns the time on the wire.
    ///
    /// # Errors
    /// As for [`Ends::transfer`].
    pub fn chain(&mut self, chain: &Chain) -> Result<Duration> {
        let span = self.prepare(Side::Near, chain.length)?;
        self.prepare(Side::Far, chain.length)?;
        let FileRange { path, at } = chain.source.clone();
        self.done(Side::Near, &Command::Load { path, at, span })?;
        let asking = match chain.way {
            Way::Read => Side::Far,
            _ => Side::Near,
        };
        let elapsed = self.carry(chain.way, asking, span, chain.source.at)?;
        let FileRange { path, at } = chain.target.clone();
        self.done(Side::Far, &Command::Store { path, at, span })?;
        self.expect_margins(Side::Near, span)?;
        self.expect_margins(Side::Far, span)?;
        self.expect_no_more()?;
        Ok(elapsed)
    }

    /// Writes `length` bytes of the content of `seed` to `target`, which the far end opens, through
    /// its memory, and compares them there. If a later [`Ends::compare`] finds the content of
    /// another seed, that was written after this.
    ///
    /// # Errors
    /// As for [`Ends::transfer`].
    pub fn overwrite(&mut self, target: &FileRange, length: u32, seed: u64) -> Result<()> {
        let span = self.prepare(Side::Far, length)?;
        self.done(Side::Far, &Command::Put { span, seed })?;
        let FileRange { path, at } = target.clone();
        self.done(Side::Far, &Command::Store { path, at, span })?;
        self.compare(target, length, seed)
    }

    /// Writes `length` bytes of the content of `seed` to `target`, which the near end opens,
    /// through its memory.
    ///
    /// # Errors
    /// As for [`Ends::transfer`].
    pub fn store(&mut self, target: &FileRange, length: u32, seed: u64) -> Result<()> {
        let span = self.prepare(Side::Near, length)?;
        self.done(Side::Near, &Command::Put { span, seed })?;
        let FileRange { path, at } = target.clone();
        self.done(Side::Near, &Command::Store { path, at, span })
    }

    /// Reads `source`, which the far end opens, into its memory, and compares it with `length`
    /// bytes of the content of `seed`.
    ///
    /// # Errors
    /// As for [`Ends::transfer`].
    pub fn compare(&mut self, source: &FileRange, length: u32, seed: u64) -> Result<()> {
        let span = self.prepare(Side::Far, length)?;
        let FileRange { path, at } = source.clone();
        self.done(Side::Far, &Command::Load { path, at, span })?;
        self.done(Side::Far, &Command::Expect { span, seed })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::MARGIN;
    use crate::fake::{FakeEnd, Flaw};

    fn file(path: &str, at: u64) -> FileRange {
        FileRange {
            path: path.into(),
            at,
        }
    }

    fn chain(way: Way) -> Chain {
        Chain {
            source: file("left", 512),
            target: file("right", 1024),
            length: 4096,
            way,
        }
    }

    #[test]
    fn content_of_one_disk_is_on_the_other_afterwards() {
        let (near, far) = FakeEnd::pair(4 * MARGIN);
        let mut ends = Ends::connect(near, far).unwrap();
        for (seed, way) in (1..).zip([Way::Write, Way::Read, Way::Send]) {
            let chain = chain(way);
            ends.store(&chain.source, 4096, seed).unwrap();
            assert!(ends.compare(&chain.target, 4096, seed).is_err());
            ends.chain(&chain).unwrap();
            ends.compare(&chain.target, 4096, seed).unwrap();
        }
    }

    /// Makes a far end whose disk already has the content of seed 1 at the target of the chain.
    fn ends_with_old_content() -> (Ends<FakeEnd, FakeEnd>, Rc<Cell<Option<Flaw>>>) {
        let (near, far) = FakeEnd::pair(4 * MARGIN);
        let flaw = far.flaw();
        let mut ends = Ends::connect(near, far).unwrap();
        let first = chain(Way::Write);
        ends.store(&first.source, 4096, 1).unwrap();
        ends.chain(&first).unwrap();
        ends.compare(&first.target, 4096, 1).unwrap();
        (ends, flaw)
    }

    #[test]
    fn chain_that_stores_nothing_fails_whatever_lay_there() {
        let (mut ends, flaw) = ends_with_old_content();
        let again = chain(Way::Read);
        ends.overwrite(&again.target, 4096, 2).unwrap();
        flaw.set(Some(Flaw::StoresNothing));
        ends.chain(&again).unwrap();
        let error = ends.compare(&again.target, 4096, 1).unwrap_err();
        assert!(error.to_string().starts_with("far end: byte 0 of 4096"));
        flaw.set(None);
        ends.chain(&again).unwrap();
        ends.compare(&again.target, 4096, 1).unwrap();
    }

    #[test]
    fn target_that_keeps_its_old_content_cannot_be_overwritten() {
        let (mut ends, flaw) = ends_with_old_content();
        flaw.set(Some(Flaw::StoresNothing));
        let target = chain(Way::Write).target;
        let error = ends.overwrite(&target, 4096, 2).unwrap_err();
        assert!(error.to_string().starts_with("far end: byte 0 of 4096"));
    }

    #[test]
    fn request_of_the_chain_that_completes_twice_fails_it() {
        let (near, far) = FakeEnd::pair(4 * MARGIN);
        near.set(Flaw::CompletesTwice);
        let mut ends = Ends::connect(near, far).unwrap();
        let error = ends.chain(&chain(Way::Write)).unwrap_err().to_string();
        assert!(error.starts_with("near end: Completed { id: 2,"), "{error}");
    }

    #[test]
    fn byte_beside_the_chain_s_content_fails_it() {
        let (near, far) = FakeEnd::pair(4 * MARGIN);
        near.set(Flaw::OneByteMore);
        let mut ends = Ends::connect(near, far).unwrap();
        let first = chain(Way::Write);
        ends.store(&first.source, 4096, 1).unwrap();
        let error = ends.chain(&first).unwrap_err().to_string();
        assert!(error.starts_with("far end: byte 0 of 4096"), "{error}");
    }
}
