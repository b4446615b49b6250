//! `rdma-chain`: from a disk to a GPU, over the wire, to another GPU and to its disk.

use std::path::{Path, PathBuf};
use std::time::Duration;

use peerbar_report::{RdmaChain, RdmaMemory};

use crate::conductor::{
    Counted, EndSpec, Results, Site, Step, TwoEnds, between, counted, length, memory_size,
};
use crate::ends::{Ends, Side, Way};
use crate::error::{Error, Result, in_one_line};
use crate::message::{Command, Content};

impl TwoEnds for RdmaChain {
    fn ends(&self) -> [EndSpec<'_>; 2] {
        [&self.from, &self.to].map(|side| EndSpec {
            nic: &side.nic,
            memory: RdmaMemory::Vram(side.gpu.clone()),
            disk: Some(&side.disk),
        })
    }

    fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// Moves each size from disk to disk, by writes and then by reads, at a different offset each
    /// time.
    fn conduct(&self, site: &mut dyn Site, results: &mut Results) -> Step<()> {
        let [source, target] = [&self.from, &self.to].map(|side| site.disk(&side.nic, &side.disk));
        let steps = steps(&self.sizes, &source?, &target?)?;
        let seeds: Vec<u64> = steps.iter().map(|_| fastrand::u64(..)).collect();
        between(site, self.ends(), memory_size(&self.sizes), |site, ends| {
            for (&seed, step) in seeds.iter().zip(&steps) {
                let stored = ends.store(&step.source, step.length, seed);
                stored.map_err(of_disk("filling", &self.from.disk))?;
                // So the data at the end differs from the data before.
                let overwritten = ends.overwrite(&step.target, step.length, !seed);
                overwritten.map_err(of_disk("filling", &self.to.disk))?;
            }
            counted(site, |_| {
                steps.iter().try_for_each(|step| {
                    let name = format!("{} bytes by {}", step.length, step.way);
                    let moved = ends.chain(step);
                    results.add(name, step.length, moved)
                })
            })?;
            for (&seed, step) in seeds.iter().zip(&steps) {
                let (length, at) = (step.length, step.target.at);
                let range = format!("{length} bytes at {at}, content of seed {seed}, of");
                let seen = ends.compare(&step.target, length, seed);
                seen.map_err(of_disk(&range, &self.to.disk))?;
            }
            Ok(())
        })
    }

    fn judge_payload(&self, counted: Counted<'_>, results: &Results) -> Step<()> {
        self.judge(counted.flows, counted.uncounted, results.payload)
    }
}

/// Describes an error by the work that failed and its disk.
fn of_disk(work: &str, disk: &str) -> impl Fn(Error) -> String {
    move |error| format!("{work} {disk}: {}", in_one_line(&error))
}

/// Returns the steps from `source` to `target`: each size by writes, then each by reads, one after
/// the other on both.
fn steps(sizes: &[u64], source: &Path, target: &Path) -> Step<Vec<Chain>> {
    let mut at = 0;
    let mut steps = Vec::new();
    for way in [Way::Write, Way::Read] {
        for &size in sizes {
            let range = |path: &Path| FileRange {
                path: path.to_owned(),
                at,
            };
            steps.push(Chain {
                source: range(source),
                target: range(target),
                length: length(size)?,
                way,
            });
            at = at.saturating_add(size);
        }
    }
    Ok(steps)
}

/// A part of a file or of a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileRange {
    /// The file.
    path: PathBuf,
    /// First byte.
    at: u64,
}

/// A transfer from file to file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// A file that the near end opens.
    source: FileRange,
    /// A file that the far end opens.
    target: FileRange,
    /// Number of bytes: whole blocks of both files.
    length: u32,
    /// The way from end to end. With [`Way::Read`], the far end is the requester.
    way: Way,
}

impl Ends<'_> {
    /// Reads the source into the near end's memory, moves it to the far end's, and writes it to the
    /// target. Compares only the memory around it. Returns the time on the wire.
    fn chain(&mut self, chain: &Chain) -> Result<Duration> {
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
    fn overwrite(&mut self, target: &FileRange, length: u32, seed: u64) -> Result<()> {
        let span = self.prepare(Side::Far, length)?;
        self.done(
            Side::Far,
            &Command::Put {
                span,
                content: Content::Seed(seed),
            },
        )?;
        let FileRange { path, at } = target.clone();
        self.done(Side::Far, &Command::Store { path, at, span })?;
        self.compare(target, length, seed)
    }

    /// Writes `length` bytes of the content of `seed` to `target`, which the near end opens,
    /// through its memory.
    fn store(&mut self, target: &FileRange, length: u32, seed: u64) -> Result<()> {
        let span = self.prepare(Side::Near, length)?;
        self.done(
            Side::Near,
            &Command::Put {
                span,
                content: Content::Seed(seed),
            },
        )?;
        let FileRange { path, at } = target.clone();
        self.done(Side::Near, &Command::Store { path, at, span })
    }

    /// Reads `source`, which the far end opens, into its memory, and compares it with `length`
    /// bytes of the content of `seed`.
    fn compare(&mut self, source: &FileRange, length: u32, seed: u64) -> Result<()> {
        let span = self.prepare(Side::Far, length)?;
        let FileRange { path, at } = source.clone();
        self.done(Side::Far, &Command::Load { path, at, span })?;
        self.done(Side::Far, &Command::expect(span, Content::Seed(seed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::MARGIN;
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
        let (mut near, mut far) = FakeEnd::pair(4 * MARGIN);
        let mut ends = Ends::connect(&mut near, &mut far).unwrap();
        for (seed, way) in (1..).zip([Way::Write, Way::Read, Way::Send]) {
            let chain = chain(way);
            ends.store(&chain.source, 4096, seed).unwrap();
            assert!(ends.compare(&chain.target, 4096, seed).is_err());
            ends.chain(&chain).unwrap();
            ends.compare(&chain.target, 4096, seed).unwrap();
        }
    }

    /// Connects the ends, and gives the far end's disk the content of seed 1 at the target of the
    /// chain.
    fn with_old_content<'a>(near: &'a mut FakeEnd, far: &'a mut FakeEnd) -> Ends<'a> {
        let mut ends = Ends::connect(near, far).unwrap();
        let first = chain(Way::Write);
        ends.store(&first.source, 4096, 1).unwrap();
        ends.chain(&first).unwrap();
        ends.compare(&first.target, 4096, 1).unwrap();
        ends
    }

    #[test]
    fn chain_that_stores_nothing_fails_whatever_lay_there() {
        let (mut near, mut far) = FakeEnd::pair(4 * MARGIN);
        let flaw = far.flaw();
        let mut ends = with_old_content(&mut near, &mut far);
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
        let (mut near, mut far) = FakeEnd::pair(4 * MARGIN);
        let flaw = far.flaw();
        let mut ends = with_old_content(&mut near, &mut far);
        flaw.set(Some(Flaw::StoresNothing));
        let target = chain(Way::Write).target;
        let error = ends.overwrite(&target, 4096, 2).unwrap_err();
        assert!(error.to_string().starts_with("far end: byte 0 of 4096"));
    }

    #[test]
    fn request_of_the_chain_that_completes_twice_fails_it() {
        let (mut near, mut far) = FakeEnd::pair(4 * MARGIN);
        near.set(Flaw::CompletesTwice);
        let mut ends = Ends::connect(&mut near, &mut far).unwrap();
        let error = ends.chain(&chain(Way::Write)).unwrap_err().to_string();
        assert!(error.starts_with("near end: Completed { id: 2,"), "{error}");
    }

    #[test]
    fn byte_beside_the_chain_s_content_fails_it() {
        let (mut near, mut far) = FakeEnd::pair(4 * MARGIN);
        near.set(Flaw::OneByteMore);
        let mut ends = Ends::connect(&mut near, &mut far).unwrap();
        let first = chain(Way::Write);
        ends.store(&first.source, 4096, 1).unwrap();
        let error = ends.chain(&first).unwrap_err().to_string();
        assert!(error.starts_with("far end: byte 0 of 4096"), "{error}");
    }

    #[test]
    fn chain_has_each_size_in_each_way_at_an_offset_of_its_own() {
        let [source, target] = ["a", "b"].map(Path::new);
        let steps = steps(&[4096, 8192], source, target).unwrap();
        let ranges = steps
            .iter()
            .map(|step| (step.way, step.source.at, step.length));
        let expected = [
            (Way::Write, 0, 4096),
            (Way::Write, 4096, 8192),
            (Way::Read, 12288, 4096),
            (Way::Read, 16384, 8192),
        ];
        assert_eq!(ranges.collect::<Vec<_>>(), expected);
        assert!(steps.iter().all(|step| step.source.at == step.target.at));
        assert!(super::steps(&[1 << 32], source, target).is_err());
    }
}
