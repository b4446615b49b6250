//! A check whose two ends are in different guests. This process conducts; each end is a program in
//! its guest.

mod counting;

use std::io::{self, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use peerbar_rdma_end::{
    Answer, Command, Counted, End, EndSpec, LineEnd, Moment, Results, Site, StartedEnd, Step,
    TwoEnds, in_one_line,
};
use peerbar_report::exec::ProgramRequest;
use peerbar_report::{Measure, RdmaMemory, Verdict, inference};

use self::counting::{Sample, count};
use crate::child::Killer;
use crate::counters::CounterFiles;
use crate::guest_program::{GuestProgram, ProgramError};
use crate::lab_error::LabError;
use crate::program_streams::ProgramStreams;
use crate::report::Row;
use crate::terminal::printable;

/// The longest path of a disk in a guest.
const LONGEST_PATH: u64 = 4096;
/// Path in a guest of the program of an end.
const PROGRAM: &str = "/opt/peerbar/peerbar-verbs";

/// A check that has been conducted.
#[derive(Debug, Default)]
pub(crate) struct Conducted {
    results: Results,
    /// The counters of all devices before the part that is judged, and after it.
    before: Sample,
    after: Sample,
}

/// The resources of a check in its guests.
pub(crate) struct Guests<'a> {
    /// The adapters of both ends with their guests' sockets for programs, that of the guest that
    /// asks first.
    pub(crate) sockets: [(&'a str, PathBuf); 2],
    /// The counters of all devices of all guests.
    pub(crate) counters: &'a [Arc<CounterFiles>],
    /// Become readable when the check must be abandoned.
    pub(crate) stops: Rc<[UnixStream]>,
    /// The time at which it is abandoned in any case.
    pub(crate) deadline: Instant,
    /// Kills the part that the check loses.
    pub(crate) killer: Option<Killer>,
}

/// The guests as the place of a check.
struct GuestsSite<'a> {
    guests: &'a Guests<'a>,
    before: Sample,
    after: Sample,
}

impl Conducted {
    /// Conducts `check`.
    pub(crate) fn of(check: &dyn TwoEnds, guests: &Guests<'_>) -> Self {
        let mut site = GuestsSite {
            guests,
            before: Sample::default(),
            after: Sample::default(),
        };
        Self {
            results: Results::of(check, &mut site),
            before: site.before,
            after: site.after,
        }
    }

    /// Returns the result of a run that `error` has ended.
    pub(crate) fn failed(error: &LabError) -> Self {
        Self {
            results: Results::failed(error.to_string()),
            ..Self::default()
        }
    }

    /// Returns the result of `check`, which has the name `name` in the report. `uncounted` devices
    /// are not judged, and failed DMA only if no faults are injected.
    pub(crate) fn row(
        self,
        name: &str,
        check: &dyn TwoEnds,
        uncounted: &[&str],
        has_faults: bool,
    ) -> Row {
        let mut measure = Measure::default();
        self.results.write_to(&mut measure, check);
        let (before, after) = (&self.before.counters, &self.after.counters);
        let sampled = count(&mut measure, uncounted, before, after);
        let mut diagnostics = self.results.failures();
        if diagnostics.is_empty() {
            let counted = Counted {
                flows: &measure.flows,
                uncounted,
            };
            let judge = || check.judge_payload(counted, &self.results);
            diagnostics.extend(sampled.and_then(|()| judge()).err());
            if measure.failures > 0 && !has_faults && !check.fails_dma() {
                let failures = crate::count::counted(measure.failures, "DMA request");
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
            subtests: self.results.subtests,
        }
    }

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

impl Guests<'_> {
    /// Returns the socket of the guest that has the adapter `nic`, which is one of both.
    fn socket(&self, nic: &str) -> &Path {
        let [(near, near_socket), (_, far_socket)] = &self.sockets;
        match *near == nic {
            true => near_socket,
            false => far_socket,
        }
    }

    /// Starts a program in the guest that has the adapter `nic`.
    fn program(&self, nic: &str, request: &ProgramRequest) -> Result<ProgramStreams, ProgramError> {
        let program = GuestProgram::start(self.socket(nic), request)?;
        Ok(ProgramStreams::new(
            program,
            self.deadline,
            Rc::clone(&self.stops),
        ))
    }

    /// Returns the path of a disk in its guest, which fills placeholders in.
    fn path(&self, nic: &str, disk: &str) -> io::Result<PathBuf> {
        let request = ProgramRequest::new(["echo", &format!("{{{disk}:disk}}")]);
        let mut streams = self.program(nic, &request).map_err(io::Error::other)?;
        let mut path = String::new();
        (&mut streams)
            .take(LONGEST_PATH)
            .read_to_string(&mut path)?;
        match streams.finish()? {
            (0, _) if !path.trim().is_empty() => Ok(PathBuf::from(path.trim_end())),
            (status, words) => {
                let words = said(&words);
                let message = format!("its name is not known there (status {status}): {words}");
                Err(io::Error::other(message))
            }
        }
    }
}

impl Site for GuestsSite<'_> {
    fn start(&mut self, end: &EndSpec<'_>, bytes: u64) -> Step<Box<dyn StartedEnd>> {
        let memory = match &end.memory {
            RdmaMemory::GuestRam => "host".to_owned(),
            RdmaMemory::Vram(gpu) => format!("{{{gpu}}}"),
        };
        let nic = format!("{{{}}}", end.nic);
        let bytes = bytes.to_string();
        let words = [
            PROGRAM, "end", "--nic", &nic, "--memory", &memory, "--size", &bytes,
        ];
        let started = self.guests.program(end.nic, &ProgramRequest::new(words));
        let streams =
            started.map_err(|error| format!("the end of {}: {}", end.nic, in_one_line(&error)))?;
        Ok(Box::new(GuestEnd {
            nic: end.nic.to_owned(),
            lines: LineEnd::new(BufReader::new(streams.clone()), streams.clone()),
            streams,
        }))
    }

    fn disk(&mut self, nic: &str, disk: &str) -> Step<PathBuf> {
        let path = self.guests.path(nic, disk);
        path.map_err(|error| format!("asking for {disk}: {}", in_one_line(&error)))
    }

    fn kill(&mut self) -> io::Result<()> {
        match &self.guests.killer {
            Some(killer) => killer.kill(),
            None => Err(io::Error::other("no device has to die")),
        }
    }

    fn count(&mut self, moment: Moment) {
        let mut sample = Sample::default();
        let files = self.guests.counters.iter();
        for (name, counters, inferred) in files.flat_map(|files| files.read_inferred()) {
            sample.inferred.insert(name.clone(), inferred);
            sample.counters.insert(name, counters);
        }
        match moment {
            Moment::Before => self.before = sample,
            Moment::After => self.after = sample,
        }
    }
}

/// An end in a guest.
struct GuestEnd {
    nic: String,
    lines: LineEnd<BufReader<ProgramStreams>, ProgramStreams>,
    streams: ProgramStreams,
}

impl End for GuestEnd {
    fn ask(&mut self, command: &Command) -> peerbar_rdma_end::Result<Answer> {
        self.lines.ask(command)
    }
}

impl StartedEnd for GuestEnd {
    fn finish(self: Box<Self>) -> Step<()> {
        let nic = &self.nic;
        match self.streams.finish() {
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
}

/// Returns the error output of a program in one line.
fn said(words: &str) -> String {
    printable(words.trim().replace('\n', "; ").as_bytes())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use peerbar_dma_log::{Completer, DeviceEvents, Direction, Entry, Purpose, Route};
    use peerbar_report::{DeviceCounters, Rdma, RdmaLoad, RdmaLost, RdmaRefused};

    use peerbar_rdma_end::Error;

    use super::counting::CountersByName;
    use super::*;

    fn check() -> Rdma {
        Rdma {
            nic: "a".to_owned(),
            peer: "b".to_owned(),
            from: RdmaMemory::Vram("g".to_owned()),
            to: RdmaMemory::Vram("h".to_owned()),
            sizes: vec![64],
            seconds: None,
        }
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

    fn done(before: &CountersByName, after: &CountersByName) -> Conducted {
        let sample = |counters: &CountersByName| Sample {
            counters: counters.clone(),
            ..Sample::default()
        };
        let mut results = Results::default();
        let moved = Ok(Duration::from_millis(1));
        results.add("write 64", 64, moved).unwrap();
        Conducted {
            results,
            before: sample(before),
            after: sample(after),
        }
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

        let check = RdmaLost {
            nic: "a".to_owned(),
            peer: "b".to_owned(),
            from: RdmaMemory::Vram("g".to_owned()),
            to: RdmaMemory::Vram("h".to_owned()),
            loses: "h".to_owned(),
            by: RdmaLoad::Writes,
            seconds: None,
        };
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
        let check = RdmaRefused {
            nic: "a".to_owned(),
            peer: Some("b".to_owned()),
            gpu: Some("g".to_owned()),
            seconds: None,
        };
        let before = counters(0, Completer::PeerBar);
        for (written, wanted) in [(64, ""), (65, "its counters show 65")] {
            let after = counters(written, Completer::PeerBar);
            let mut refused = done(&before, &after);
            refused.results.permitted.written = 64;
            let why = refused.row("x", &check, &[], false).diagnostics.join("; ");
            assert_eq!(why.is_empty(), wanted.is_empty(), "{why}");
            assert!(why.ends_with(wanted), "{why}");
        }
    }

    #[test]
    fn failed_transfer_fails_the_check_with_its_name() {
        let [before, after] = [0, 64].map(|bytes| counters(bytes, Completer::PeerBar));
        let mut failed = done(&before, &after);
        let ended = failed.results.add("read 64", 64, Err(Error::Ended));
        failed.results.failure = ended.err();
        let row = failed.row("x", &check(), &[], false);
        assert_eq!((row.verdict, row.subtests.len()), (Verdict::Fail, 2));
        let why = row.diagnostics.join("; ");
        let wanted =
            "an end does not answer; read 64: an end of the transfer has ended before its answer";
        assert!(why.starts_with(wanted), "{why}");
    }
}
