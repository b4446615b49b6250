//! A check whose two ends are in different guests. This process conducts; each end is a program in its guest.

mod counting;
mod lost;

use std::io::{self, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use peerbar_rdma_end::{
    Chain, End, Ends, Error, FileRange, LineEnd, MARGIN, Permitted, REFUSE_BYTES, Way, in_one_line,
    refuse,
};
use peerbar_report::exec::ProgramRequest;
use peerbar_report::{
    Measure, Rdma, RdmaChain, RdmaChainSide, RdmaMemory, Subtest, Verdict, inference, size_range,
};

use self::counting::{Sample, count};
use crate::child::Killer;
use crate::count::counted;
use crate::counters::CounterFiles;
use crate::guest_program::{GuestProgram, ProgramError};
use crate::lab_error::LabError;
use crate::program_streams::ProgramStreams;
use crate::report::Row;
use crate::scenario::{AcrossCheck, AcrossEnd};
use crate::terminal::printable;

/// The longest path of a disk in a guest.
const LONGEST_PATH: u64 = 4096;
/// Path in a guest of the program of an end.
const PROGRAM: &str = "/opt/peerbar/peerbar-verbs";

/// The results of both ends.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    /// A result for each transfer.
    subtests: Vec<Subtest>,
    /// Payload bytes of those that succeeded.
    payload: u64,
    /// The access of one end to the other that was permitted, if that must reject all else.
    permitted: Permitted,
    /// Total time of these, one after the other.
    elapsed: Duration,
    /// The reason why an end could not continue.
    failure: Option<String>,
    /// The counters of all devices before the transfers, and after them.
    before: Sample,
    after: Sample,
}

/// The resources of a check in its guests.
pub(crate) struct Guests<'a> {
    /// The adapters of both ends with their guests' sockets for programs, that of the guest that asks first.
    pub(crate) sockets: [(&'a str, PathBuf); 2],
    /// The counters of all devices of all guests.
    pub(crate) counters: &'a [Arc<CounterFiles>],
    /// Become readable when the check must be abandoned.
    pub(crate) stops: &'a [UnixStream],
    /// The time at which it is abandoned in any case.
    pub(crate) deadline: Instant,
    /// Kills the part that the check loses.
    pub(crate) killer: Option<Killer>,
}

/// Executes the parts of both ends of `check`.
pub(crate) fn transfers(check: &AcrossCheck, guests: &Guests<'_>) -> Transfers {
    let mut done = Transfers::default();
    if let Err(failure) = done.conduct(check, guests) {
        done.failure = Some(failure);
    }
    done
}

impl Transfers {
    /// Returns the result of a run that `error` has ended.
    pub(crate) fn failed(error: &LabError) -> Self {
        Self {
            failure: Some(error.to_string()),
            ..Self::default()
        }
    }

    fn conduct(&mut self, check: &AcrossCheck, guests: &Guests<'_>) -> Result<(), String> {
        let largest = check.sizes().iter().copied().max().unwrap_or_default();
        let bytes = largest.saturating_add(2 * MARGIN);
        match check {
            AcrossCheck::Transfers(transfers) => guests.between(check.ends(), bytes, |streams| {
                let mut ends = connect(streams)?;
                self.before = guests.count();
                let done = self.between_memories(transfers, &mut ends);
                self.after = guests.count();
                done
            }),
            AcrossCheck::Chain(chain) => guests.between(check.ends(), bytes, |streams| {
                self.between_disks(chain, guests, &mut connect(streams)?)
            }),
            AcrossCheck::Lost(lost) => self.lose(lost, check.ends(), guests),
            AcrossCheck::Refused(refused) => {
                self.refuse(refused.gpu.is_some(), check.ends(), guests)
            }
        }
    }

    /// Transfers each size in each way.
    fn between_memories<N: End, F: End>(
        &mut self,
        check: &Rdma,
        ends: &mut Ends<N, F>,
    ) -> Result<(), String> {
        for &size in &check.sizes {
            let size = length(size)?;
            for way in Way::ALL {
                if ends.takes(way, size) {
                    let moved = ends.transfer(way, size, fastrand::u64(..));
                    self.add(format!("{way} {size}"), size, moved)?;
                }
            }
        }
        Ok(())
    }

    /// Moves each size from disk to disk, by writes and then by reads, at a different offset each
    /// time.
    fn between_disks<N: End, F: End>(
        &mut self,
        check: &RdmaChain,
        guests: &Guests<'_>,
        ends: &mut Ends<N, F>,
    ) -> Result<(), String> {
        let source = guests.disk(&check.from)?;
        let target = guests.disk(&check.to)?;
        let steps = steps(&check.sizes, &source, &target)?;
        let seeds: Vec<u64> = steps.iter().map(|_| fastrand::u64(..)).collect();
        log::info!("contents of {} have the seeds {seeds:?}", check.from.disk);
        for (&seed, step) in seeds.iter().zip(&steps) {
            let stored = ends.store(&step.source, step.length, seed);
            stored
                .map_err(|error| format!("filling {}: {}", check.from.disk, in_one_line(&error)))?;
            // So the data at the end differs from the data before.
            let overwritten = ends.overwrite(&step.target, step.length, !seed);
            overwritten
                .map_err(|error| format!("filling {}: {}", check.to.disk, in_one_line(&error)))?;
        }
        self.before = guests.count();
        let moved = steps.iter().try_for_each(|step| {
            let name = format!("{} bytes by {}", step.length, step.way);
            let moved = ends.chain(step);
            self.add(name, step.length, moved)
        });
        self.after = guests.count();
        moved?;
        for (&seed, step) in seeds.iter().zip(&steps) {
            let seen = ends.compare(&step.target, step.length, seed);
            let range = format!(
                "{} bytes at {}, content of seed {seed},",
                step.length, step.target.at
            );
            seen.map_err(|error| format!("{range} of {}: {}", check.to.disk, in_one_line(&error)))?;
        }
        Ok(())
    }

    /// Adds the result of a transfer of `size` bytes.
    ///
    /// # Errors
    /// An end is unusable.
    fn add(
        &mut self,
        name: String,
        size: u32,
        moved: Result<Duration, Error>,
    ) -> Result<(), String> {
        let is_over = moved.as_ref().is_err_and(Error::is_of_streams);
        let (verdict, diagnostics) = match moved {
            Ok(elapsed) => {
                self.payload = self.payload.saturating_add(size.into());
                self.elapsed = self.elapsed.saturating_add(elapsed);
                (Verdict::Pass, Vec::new())
            }
            Err(error) => (Verdict::Fail, vec![in_one_line(&error)]),
        };
        self.subtests.push(Subtest {
            name,
            verdict,
            diagnostics,
            subtests: Vec::new(),
        });
        match is_over {
            true => Err("an end does not answer".to_owned()),
            false => Ok(()),
        }
    }

    /// Adds the results of `work`, none with a size. Returns the value of `work`.
    fn results<T>(
        &mut self,
        work: impl FnOnce(&mut dyn FnMut(&str, Result<(), Error>)) -> Result<T, Error>,
    ) -> Result<T, String> {
        let mut over = Ok(());
        let done = work(&mut |name, result| {
            let added = self.add(name.to_owned(), 0, result.map(|()| Duration::ZERO));
            over = over.clone().and(added);
        });
        let done = done.map_err(|error| in_one_line(&error))?;
        over.map(|()| done)
    }

    /// Lets the first of `ends` send requests to the second that this must reject. The second has
    /// memory of a GPU if `of_gpu`.
    fn refuse(
        &mut self,
        of_gpu: bool,
        ends: [AcrossEnd<'_>; 2],
        guests: &Guests<'_>,
    ) -> Result<(), String> {
        guests.between(ends, REFUSE_BYTES, |[near, far]| {
            self.before = guests.count();
            let done = self.results(|report| refuse(lines(near), lines(far), of_gpu, report));
            self.after = guests.count();
            self.permitted = done?;
            Ok(())
        })
    }

    /// Returns the result of `check`, which has the name `name` in the report. `uncounted` devices
    /// are not judged, and failed DMA only if no faults are injected.
    pub(crate) fn row(
        self,
        name: &str,
        check: &AcrossCheck,
        uncounted: &[&str],
        has_faults: bool,
    ) -> Row {
        let mut measure = Measure {
            sizes: size_range(check.sizes()),
            bytes: self.payload,
            seconds: self.elapsed.as_secs_f64(),
            ..Measure::default()
        };
        let (before, after) = (&self.before.counters, &self.after.counters);
        let sampled = count(&mut measure, uncounted, before, after);
        let mut diagnostics: Vec<String> = self.failure.iter().cloned().collect();
        let failed = self.subtests.iter();
        let failed = failed.filter(|subtest| subtest.verdict == Verdict::Fail);
        diagnostics.extend(
            failed.map(|subtest| format!("{}: {}", subtest.name, subtest.diagnostics.join("; "))),
        );
        if diagnostics.is_empty() {
            let judge = || check.judge(&measure.flows, uncounted, self.payload, self.permitted);
            diagnostics.extend(sampled.and_then(|()| judge()).err());
            if measure.failures > 0 && !has_faults && !check.fails_dma() {
                let failures = counted(measure.failures, "DMA request");
                diagnostics.push(format!("{failures} failed, but none should have"));
            }
        }
        let verdict = match diagnostics.is_empty() {
            true => Verdict::Pass,
            false => Verdict::Fail,
        };
        diagnostics.extend(self.inferences(uncounted));
        Row {
            name: name.to_owned(),
            verdict,
            measure,
            diagnostics,
            subtests: self.subtests,
        }
    }
}

impl Transfers {
    /// Describes the inferred counts, in words for each device except those that are `uncounted`.
    fn inferences(&self, uncounted: &[&str]) -> impl Iterator<Item = String> {
        let after = self.after.inferred.iter();
        let after = after.filter(|(name, _)| !uncounted.contains(&name.as_str()));
        after.filter_map(|(name, after)| {
            let before = self.before.inferred.get(name).copied().unwrap_or(0);
            inference(name, after.saturating_sub(before))
        })
    }
}

impl<'a> Guests<'a> {
    /// Starts two ends with `bytes` of memory each, executes `work` with them, and waits until they
    /// have ended.
    fn between<T>(
        &self,
        ends: [AcrossEnd<'_>; 2],
        bytes: u64,
        work: impl FnOnce(&[ProgramStreams<'a>; 2]) -> Result<T, String>,
    ) -> Result<T, String> {
        let [near, far] = &ends;
        let streams = [self.start(near, bytes)?, self.start(far, bytes)?];
        let done = work(&streams);
        let mut reasons = Vec::new();
        for (end, streams) in ends.iter().zip(streams) {
            reasons.extend(ended(end.nic, streams.finish()).err());
        }
        match done {
            Ok(done) if reasons.is_empty() => Ok(done),
            Ok(_) => Err(reasons.join("\n")),
            Err(error) => {
                reasons.insert(0, error);
                Err(reasons.join("\n"))
            }
        }
    }

    /// Starts an end with `bytes` of memory.
    fn start(&self, end: &AcrossEnd<'_>, bytes: u64) -> Result<ProgramStreams<'a>, String> {
        let memory = match &end.memory {
            RdmaMemory::GuestRam => "host".to_owned(),
            RdmaMemory::Vram(gpu) => format!("{{{gpu}}}"),
        };
        let nic = format!("{{{}}}", end.nic);
        let bytes = bytes.to_string();
        let words = [
            PROGRAM, "end", "--nic", &nic, "--memory", &memory, "--size", &bytes,
        ];
        let started = self.program(self.socket(end.nic), &ProgramRequest::new(words));
        started.map_err(|error| format!("the end of {}: {}", end.nic, in_one_line(&error)))
    }

    /// Returns the socket of the guest that has the adapter `nic`, which is one of both.
    fn socket(&self, nic: &str) -> &Path {
        let [(near, near_socket), (_, far_socket)] = &self.sockets;
        match *near == nic {
            true => near_socket,
            false => far_socket,
        }
    }

    /// Returns the block device of a side's disk in its guest, which fills placeholders in.
    fn disk(&self, side: &RdmaChainSide) -> Result<PathBuf, String> {
        let disk = &side.disk;
        let placeholder = format!("{{{disk}:disk}}");
        let request = ProgramRequest::new(["echo", &placeholder]);
        let read = || -> io::Result<String> {
            let socket = self.socket(&side.nic);
            let streams = self.program(socket, &request).map_err(io::Error::other)?;
            let mut path = String::new();
            (&streams).take(LONGEST_PATH).read_to_string(&mut path)?;
            match streams.finish()? {
                (0, _) if !path.trim().is_empty() => Ok(path),
                (status, words) => {
                    let words = said(&words);
                    let message = format!("its name is not known there (status {status}): {words}");
                    Err(io::Error::other(message))
                }
            }
        };
        let path = read().map_err(|error| format!("asking for {disk}: {}", in_one_line(&error)))?;
        Ok(PathBuf::from(path.trim_end()))
    }

    fn program(
        &self,
        socket: &Path,
        request: &ProgramRequest,
    ) -> Result<ProgramStreams<'a>, ProgramError> {
        let program = GuestProgram::start(socket, request)?;
        Ok(ProgramStreams::new(program, self.deadline, self.stops))
    }

    fn count(&self) -> Sample {
        let mut sample = Sample::default();
        let files = self.counters.iter();
        for (name, counters, inferred) in files.flat_map(|files| files.read_inferred()) {
            sample.inferred.insert(name.clone(), inferred);
            sample.counters.insert(name, counters);
        }
        sample
    }
}

/// Returns the error output of a program in one line.
fn said(words: &str) -> String {
    printable(words.trim().replace('\n', "; ").as_bytes())
}

/// Returns the reason why the end of the adapter `nic` failed, if it did.
fn ended(nic: &str, end: io::Result<(i32, String)>) -> Result<(), String> {
    match end {
        Ok((0, _)) => Ok(()),
        Ok((status, words)) => {
            let words = said(&words);
            Err(format!(
                "the end of {nic} ended with status {status}: {words}"
            ))
        }
        Err(error) => Err(format!("the end of {nic}: {}", in_one_line(&error))),
    }
}

/// Makes both ends known to each other.
fn connect<'s, 'p>(
    [near, far]: &'s [ProgramStreams<'p>; 2],
) -> Result<Ends<Lines<'s, 'p>, Lines<'s, 'p>>, String> {
    Ends::connect(lines(near), lines(far)).map_err(|error| in_one_line(&error))
}

/// Messages to an end and from it.
type Lines<'s, 'p> = LineEnd<BufReader<&'s ProgramStreams<'p>>, &'s ProgramStreams<'p>>;

/// Returns the messages of these streams.
fn lines<'s, 'p>(streams: &'s ProgramStreams<'p>) -> Lines<'s, 'p> {
    LineEnd::new(BufReader::new(streams), streams)
}

/// Returns the steps from `source` to `target`: each size by writes, then each by reads, one after
/// the other on both.
fn steps(sizes: &[u64], source: &Path, target: &Path) -> Result<Vec<Chain>, String> {
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

fn length(size: u64) -> Result<u32, String> {
    u32::try_from(size).map_err(|_| format!("{size} bytes are too many"))
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Completer, DeviceEvents, Direction, Entry, Purpose, Route};
    use peerbar_report::{DeviceCounters, RdmaLoad, RdmaLost, RdmaRefused};

    use super::counting::CountersByName;
    use super::*;

    fn check() -> AcrossCheck {
        AcrossCheck::Transfers(Rdma {
            nic: "a".to_owned(),
            peer: "b".to_owned(),
            from: RdmaMemory::Vram("g".to_owned()),
            to: RdmaMemory::Vram("h".to_owned()),
            sizes: vec![64],
            seconds: None,
        })
    }

    /// Counters of `a`, which has read, and of `b`, which has written.
    fn counters(bytes: u64, completer: Completer) -> CountersByName {
        let entry = |direction| Entry {
            purpose: Purpose::Payload,
            route: Route::Peer,
            completer,
            direction,
            requests: 1,
            bytes,
            failures: 0,
        };
        let counted = |direction| DeviceCounters::Counted {
            dma: vec![entry(direction)],
            events: DeviceEvents::default(),
        };
        let read = ("a".to_owned(), counted(Direction::Read));
        let written = ("b".to_owned(), counted(Direction::Write));
        [read, written].into()
    }

    fn done(before: &CountersByName, after: &CountersByName) -> Transfers {
        let sample = |counters: &CountersByName| Sample {
            counters: counters.clone(),
            ..Sample::default()
        };
        let mut done = Transfers {
            before: sample(before),
            after: sample(after),
            ..Transfers::default()
        };
        let moved = Ok(Duration::from_millis(1));
        done.add("write 64".to_owned(), 64, moved).unwrap();
        done
    }

    #[test]
    fn transfer_is_judged_by_what_devices_counted_meanwhile() {
        use Completer::{GuestRam, PeerBar};

        let judged = |before: &CountersByName, after: &CountersByName| {
            let row = done(before, after).row("x", &check(), &[], false);
            (row.verdict, row.diagnostics.join("; "), row.measure)
        };
        let before = counters(100, PeerBar);
        let (verdict, why, measure) = judged(&before, &counters(164, PeerBar));
        assert_eq!((verdict, why.as_str()), (Verdict::Pass, ""));
        assert_eq!(
            (measure.peer_bytes, measure.ram_bytes, measure.bytes),
            (128, 0, 64)
        );
        for (after, wanted) in [
            (counters(165, PeerBar), "65 read and 65 written"),
            (counters(64, GuestRam), "128 with guest RAM"),
            (counters(99, PeerBar), "a DMA counter of a went back"),
            (CountersByName::new(), "a has no counters any more"),
        ] {
            let (verdict, why, _) = judged(&before, &after);
            assert!(verdict == Verdict::Fail && why.contains(wanted), "{why}");
        }
        let mut failed = counters(164, PeerBar);
        if let Some(DeviceCounters::Counted { dma, .. }) = failed.get_mut("b") {
            dma[0].failures = 2;
        }
        let (_, why, _) = judged(&before, &failed);
        assert_eq!(why, "2 DMA requests failed, but none should have");
        let with_faults = done(&before, &failed).row("x", &check(), &[], true);
        assert_eq!(with_faults.verdict, Verdict::Pass);
        let nothing = [(
            "a".to_owned(),
            DeviceCounters::None("it is QEMU's".to_owned()),
        )];
        let (_, why, _) = judged(&CountersByName::new(), &nothing.into());
        assert_eq!(why, "a has no DMA counters: it is QEMU's");
    }

    #[test]
    fn inferred_owner_of_memory_is_said_and_passes() {
        let before = counters(100, Completer::PeerBar);
        let mut done = done(&before, &counters(164, Completer::PeerBar));
        let inferred = |a, b| [("a".to_owned(), a), ("b".to_owned(), b)].into();
        (done.before.inferred, done.after.inferred) = (inferred(7, 7), inferred(71, 7));
        done.after.inferred.insert("disk".to_owned(), 9);
        let row = done.row("x", &check(), &["disk"], false);
        assert_eq!(row.verdict, Verdict::Pass);
        let [said] = &row.diagnostics[..] else {
            panic!("{:?}", row.diagnostics);
        };
        let wanted = "a does not know whose the memory of 64 bytes of its DMA is";
        assert!(said.starts_with(wanted), "{said}");
    }

    #[test]
    fn loss_may_fail_dma_and_moves_what_was_acknowledged() {
        use Completer::{GuestRam, PeerBar};

        let check = AcrossCheck::Lost(RdmaLost {
            nic: "a".to_owned(),
            peer: "b".to_owned(),
            from: RdmaMemory::Vram("g".to_owned()),
            to: RdmaMemory::Vram("h".to_owned()),
            loses: "h".to_owned(),
            by: RdmaLoad::Writes,
            seconds: None,
        });
        let judged = |completer, bytes| {
            let before = counters(0, completer);
            let mut after = counters(bytes, completer);
            if let Some(DeviceCounters::Counted { dma, .. }) = after.get_mut("b") {
                dma[0].failures = 2;
            }
            let row = done(&before, &after).row("x", &check, &[], false);
            row.diagnostics.join("; ")
        };
        assert_eq!(judged(PeerBar, 65), "");
        let short = judged(PeerBar, 63);
        assert!(short.contains("show 63 moved with VRAM of g"), "{short}");
        let bounced = judged(GuestRam, 64);
        assert!(bounced.contains("with VRAM of g only"), "{bounced}");
    }

    #[test]
    fn refusals_are_judged_by_what_was_permitted() {
        let check = AcrossCheck::Refused(RdmaRefused {
            nic: "a".to_owned(),
            peer: Some("b".to_owned()),
            gpu: Some("g".to_owned()),
            seconds: None,
        });
        let before = counters(0, Completer::PeerBar);
        for (written, wanted) in [(64, ""), (65, "its counters show 65")] {
            let after = counters(written, Completer::PeerBar);
            let mut refused = done(&before, &after);
            refused.permitted.written = 64;
            let why = refused.row("x", &check, &[], false).diagnostics.join("; ");
            assert_eq!(why.is_empty(), wanted.is_empty(), "{why}");
            assert!(why.ends_with(wanted), "{why}");
        }
    }

    #[test]
    fn failed_transfer_fails_the_check_with_its_name() {
        let [before, after] = [0, 64].map(|bytes| counters(bytes, Completer::PeerBar));
        let mut failed = done(&before, &after);
        let ended = failed.add("read 64".to_owned(), 64, Err(Error::Ended));
        failed.failure = ended.err();
        let row = failed.row("x", &check(), &[], false);
        assert_eq!((row.verdict, row.subtests.len()), (Verdict::Fail, 2));
        let why = row.diagnostics.join("; ");
        let wanted =
            "an end does not answer; read 64: an end of the transfer has ended before its answer";
        assert!(why.starts_with(wanted), "{why}");
    }

    #[test]
    fn chain_has_each_size_in_each_way_at_an_offset_of_its_own() {
        let steps = steps(&[4096, 8192], Path::new("a"), Path::new("b")).unwrap();
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
        assert!(super::steps(&[1 << 32], Path::new("a"), Path::new("b")).is_err());
    }
}
