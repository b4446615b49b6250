//! The conductor of a check between two ends: it starts both, sends them commands, and collects the
//! results.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use peerbar_report::{Check, Measure, PayloadFlow, RdmaMemory, Subtest, Verdict, size_range};

use crate::end::End;
use crate::ends::{Ends, MARGIN};
use crate::error::{Error, in_one_line};
use crate::message::OwnResults;

/// The result of a step of a check, with the reason of a failure in words.
pub type Step<T> = std::result::Result<T, String>;

/// An end of a check, to be started.
#[derive(Clone, Debug)]
pub struct EndSpec<'a> {
    /// Its adapter.
    pub nic: &'a str,
    /// Its memory.
    pub memory: RdmaMemory,
    /// Its disk, if it has one.
    pub disk: Option<&'a str>,
}

impl<'a> EndSpec<'a> {
    /// Makes an end without a disk.
    #[must_use]
    pub fn new(nic: &'a str, memory: &RdmaMemory) -> Self {
        Self {
            nic,
            memory: memory.clone(),
            disk: None,
        }
    }
}

/// An end that has been started.
pub trait StartedEnd: End {
    /// Ends its input, and waits until it has ended.
    ///
    /// # Errors
    /// The reason why it ended with a failure.
    fn finish(self: Box<Self>) -> Step<()>;
}

/// A moment at which the devices' counters are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before the part of the check that is judged.
    Before,
    /// After it.
    After,
}

/// The place of a check: a guest that has both ends, or a host whose guests have one each.
pub trait Site {
    /// Starts an end with `bytes` of memory.
    ///
    /// # Errors
    /// The reason why it cannot be started.
    fn start(&mut self, end: &EndSpec<'_>, bytes: u64) -> Step<Box<dyn StartedEnd>>;

    /// Returns the block device of `disk` in the guest that has the adapter `nic`.
    ///
    /// # Errors
    /// The reason why it is not known.
    fn disk(&mut self, nic: &str, disk: &str) -> Step<PathBuf>;

    /// Kills the server of the part that the check loses.
    ///
    /// # Errors
    /// The reason why it cannot be killed.
    fn kill(&mut self) -> io::Result<()>;

    /// Reads the devices' counters.
    fn count(&mut self, moment: Moment);
}

/// The payload that the devices counted during the part of a check that is judged.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a> {
    /// The payload.
    pub flows: &'a [PayloadFlow],
    /// Devices that are not judged by it.
    pub uncounted: &'a [&'a str],
}

/// A check between two ends.
pub trait TwoEnds: Sync {
    /// Returns the requester's end, then the other one.
    fn ends(&self) -> [EndSpec<'_>; 2];

    /// Returns the sizes of its transfers in bytes.
    fn sizes(&self) -> &[u64] {
        &[]
    }

    /// Executes it at `site`, and adds its results.
    ///
    /// # Errors
    /// The reason why it could not continue.
    fn conduct(&self, site: &mut dyn Site, results: &mut Results) -> Step<()>;

    /// Judges it by the payload that the devices counted.
    ///
    /// # Errors
    /// The difference between the counters and the results.
    fn judge_payload(&self, counted: Counted<'_>, results: &Results) -> Step<()>;

    /// Returns `true` if DMA may fail in it.
    fn fails_dma(&self) -> bool {
        false
    }
}

/// The kinds of checks between two ends.
pub const TWO_ENDED: [&str; 4] = ["rdma", "rdma-chain", "rdma-lost", "rdma-refused"];

/// Returns `check` as a check between two ends, if it is one.
#[must_use]
pub fn two_ends(check: &Check) -> Option<&dyn TwoEnds> {
    match check {
        Check::Rdma(check) => Some(check),
        Check::RdmaChain(check) => Some(check),
        Check::RdmaLost(check) => Some(check),
        Check::RdmaRefused(check) => Some(check),
        _ => None,
    }
}

/// Bytes that the responder's adapter was permitted to move with its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permitted {
    /// To its memory.
    pub written: u64,
    /// From it.
    pub read: u64,
}

/// The results of a check between two ends.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// A result for each part.
    pub subtests: Vec<Subtest>,
    /// Payload bytes of the transfers that succeeded.
    pub payload: u64,
    /// Total time of these, one after the other.
    pub elapsed: Duration,
    /// The access of one end to the other that was permitted, if that must refuse all else.
    pub permitted: Permitted,
    /// Number of completions in queues of an end, if the check is about these.
    pub completions: u64,
    /// The reason why the check could not continue.
    pub failure: Option<String>,
}

impl Results {
    /// Conducts `check` at `site`, and returns its results.
    pub fn of(check: &dyn TwoEnds, site: &mut dyn Site) -> Self {
        let mut results = Self::default();
        results.failure = check.conduct(site, &mut results).err();
        results
    }

    /// Returns the results of a check that could not be conducted.
    #[must_use]
    pub fn failed(reason: String) -> Self {
        Self {
            failure: Some(reason),
            ..Self::default()
        }
    }

    /// Adds the result of a transfer of `size` bytes.
    ///
    /// # Errors
    /// An end is unusable.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        size: u32,
        moved: Result<Duration, Error>,
    ) -> Step<()> {
        let is_over = moved.as_ref().is_err_and(Error::is_of_streams);
        if let Ok(elapsed) = moved {
            self.payload = self.payload.saturating_add(size.into());
            self.elapsed = self.elapsed.saturating_add(elapsed);
        }
        let failure = moved.err().map(|error| in_one_line(&error));
        self.subtests.push(subtest(name.into(), failure));
        match is_over {
            true => Err("an end does not answer".to_owned()),
            false => Ok(()),
        }
    }

    /// Adds a result without payload.
    ///
    /// # Errors
    /// An end is unusable.
    pub fn check(&mut self, name: impl Into<String>, result: Result<(), Error>) -> Step<()> {
        self.add(name, 0, result.map(|()| Duration::ZERO))
    }

    /// Adds the results of an end's own tests.
    ///
    /// # Errors
    /// They did not run.
    pub(crate) fn add_own(&mut self, results: Result<OwnResults, Error>) -> Step<()> {
        let OwnResults { tests, completions } = results.map_err(|error| in_one_line(&error))?;
        let tests = tests.into_iter();
        self.subtests
            .extend(tests.map(|test| subtest(test.name, test.failure)));
        self.completions = completions;
        Ok(())
    }

    /// Returns each failure with the name of its part.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let failed = self.subtests.iter();
        let failed = failed.filter(|subtest| subtest.verdict == Verdict::Fail);
        let failed =
            failed.map(|subtest| format!("{}: {}", subtest.name, subtest.diagnostics.join("; ")));
        self.failure.iter().cloned().chain(failed).collect()
    }

    /// Writes the figures that do not come from counters.
    pub fn write_to(&self, measure: &mut Measure, check: &dyn TwoEnds) {
        measure.sizes = size_range(check.sizes());
        (measure.bytes, measure.seconds) = (self.payload, self.elapsed.as_secs_f64());
    }
}

fn subtest(name: String, failure: Option<String>) -> Subtest {
    let verdict = match failure {
        None => Verdict::Pass,
        Some(_) => Verdict::Fail,
    };
    Subtest {
        name,
        verdict,
        diagnostics: failure.into_iter().collect(),
        subtests: Vec::new(),
    }
}

/// Starts two ends with `bytes` of memory each, makes them known to each other, lets `work` use
/// them, and waits until they have ended.
pub(crate) fn between<T>(
    site: &mut dyn Site,
    [near, far]: [EndSpec<'_>; 2],
    bytes: u64,
    work: impl FnOnce(&mut dyn Site, &mut Ends<'_>) -> Step<T>,
) -> Step<T> {
    let (mut near, mut far) = (site.start(&near, bytes)?, site.start(&far, bytes)?);
    let done = Ends::connect(&mut near, &mut far).map_err(|error| in_one_line(&error));
    let done = done.and_then(|mut ends| work(site, &mut ends));
    let ended = [near.finish(), far.finish()];
    let reasons = done.as_ref().err().into_iter();
    let reasons = reasons.chain(ended.iter().filter_map(|ended| ended.as_ref().err()));
    let reasons: Vec<&str> = reasons.map(String::as_str).collect();
    match reasons.join("\n") {
        reasons if reasons.is_empty() => done,
        reasons => Err(reasons),
    }
}

/// Executes `work` between two readings of the counters.
pub(crate) fn counted<T>(site: &mut dyn Site, work: impl FnOnce(&mut dyn Site) -> T) -> T {
    site.count(Moment::Before);
    let done = work(site);
    site.count(Moment::After);
    done
}

/// Returns the bytes of memory that each end needs for transfers of these sizes.
#[must_use]
pub fn memory_size(sizes: &[u64]) -> u64 {
    let largest = sizes.iter().copied().max().unwrap_or_default();
    largest.saturating_add(2 * MARGIN)
}

/// Returns the length of a transfer of `size` bytes.
pub(crate) fn length(size: u64) -> Step<u32> {
    u32::try_from(size).map_err(|_| format!("{size} bytes are too many"))
}
