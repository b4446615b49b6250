//! An RDMA check whose two ends are in different guests. This process conducts; each end is a program in its guest.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use peerbar_dma_log::{Completer, DmaKind, Purpose};
use peerbar_exec::ProgramRequest;
use peerbar_rdma_end::{Ends, Error, LineEnd, MARGIN, Way};
use peerbar_report::{
    DeviceCounters, Measure, PayloadFlow, Rdma, RdmaMemory, Subtest, Verdict, size_range,
};

use crate::guest_program::GuestProgram;
use crate::lab_error::LabError;
use crate::program_streams::ProgramStreams;
use crate::report::Row;

/// Where a guest has the program of an end.
const PROGRAM: &str = "/opt/peerbar/peerbar-verbs";

/// The counters of devices by their names.
type CountersByName = BTreeMap<String, DeviceCounters>;

/// What the ends have done.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    /// A result for each transfer.
    subtests: Vec<Subtest>,
    /// Payload bytes of those that succeeded.
    payload: u64,
    /// How long these took, one after the other.
    elapsed: Duration,
    /// Why an end could not go on.
    failure: Option<String>,
}

/// One end, before it is started.
struct EndProgram<'a> {
    /// The guest's socket for programs.
    socket: &'a Path,
    nic: &'a str,
    memory: &'a RdmaMemory,
}

/// Runs the ends of `check` in the guests of `sockets`, first the one that asks, until `deadline` or until one of `stops` becomes
/// readable.
pub(crate) fn transfers(
    check: &Rdma,
    sockets: &[PathBuf; 2],
    deadline: Instant,
    stops: &[UnixStream],
) -> Transfers {
    let mut done = Transfers::default();
    if let Err(failure) = done.conduct(check, sockets, deadline, stops) {
        done.failure = Some(failure);
    }
    done
}

impl Transfers {
    /// What is left where `error` has ended the run.
    pub(crate) fn failed(error: &LabError) -> Self {
        Self {
            failure: Some(error.to_string()),
            ..Self::default()
        }
    }

    fn conduct(
        &mut self,
        check: &Rdma,
        [near, far]: &[PathBuf; 2],
        deadline: Instant,
        stops: &[UnixStream],
    ) -> Result<(), String> {
        let largest = check.sizes.iter().copied().max().unwrap_or_default();
        let memory = largest.saturating_add(2 * MARGIN);
        let near = EndProgram {
            socket: near,
            nic: &check.nic,
            memory: &check.from,
        };
        let far = EndProgram {
            socket: far,
            nic: &check.peer,
            memory: &check.to,
        };
        let streams = |end: &EndProgram<'_>| end.start(memory, deadline, stops);
        let (near, far) = (streams(&near)?, streams(&far)?);
        let conducted = self.transfer_all(check, &near, &far);
        let ended = [(&check.nic, near), (&check.peer, far)].map(|(nic, end)| (nic, end.finish()));
        let mut reasons: Vec<String> = conducted.err().into_iter().collect();
        for (nic, end) in ended {
            match end {
                Ok((0, _)) => {}
                Ok((status, words)) => {
                    reasons.push(format!(
                        "the end of {nic} ended with status {status}: {}",
                        words.trim()
                    ));
                }
                Err(error) => reasons.push(format!("the end of {nic}: {}", chain(&error))),
            }
        }
        match reasons.is_empty() {
            true => Ok(()),
            false => Err(reasons.join("\n")),
        }
    }

    /// Transfers each size in each way.
    fn transfer_all(
        &mut self,
        check: &Rdma,
        near: &ProgramStreams<'_>,
        far: &ProgramStreams<'_>,
    ) -> Result<(), String> {
        let end = |streams| LineEnd::new(BufReader::new(streams), streams);
        let mut ends = Ends::connect(end(near), end(far)).map_err(|error| chain(&error))?;
        for (number, &size) in (1..).zip(&check.sizes) {
            let size = u32::try_from(size).map_err(|_| format!("{size} bytes are too many"))?;
            for way in Way::ALL {
                if !ends.takes(way, size) {
                    continue;
                }
                let moved = ends.transfer(way, size, number);
                let is_over = moved.as_ref().is_err_and(is_of_streams);
                self.add(way, size, moved);
                if is_over {
                    return Err("an end does not answer".to_owned());
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, way: Way, size: u32, moved: Result<Duration, Error>) {
        let (verdict, diagnostics) = match moved {
            Ok(elapsed) => {
                self.payload = self.payload.saturating_add(size.into());
                self.elapsed = self.elapsed.saturating_add(elapsed);
                (Verdict::Pass, Vec::new())
            }
            Err(error) => (Verdict::Fail, vec![chain(&error)]),
        };
        self.subtests.push(Subtest {
            name: format!("{way} {size}"),
            verdict,
            diagnostics,
            subtests: Vec::new(),
        });
    }

    /// The result of `check`, which the report calls `name`, by what the devices of both guests counted `before` and `after`.
    pub(crate) fn row(
        self,
        name: &str,
        check: &Rdma,
        before: &CountersByName,
        after: &CountersByName,
    ) -> Row {
        let mut measure = Measure {
            sizes: size_range(&check.sizes),
            bytes: self.payload,
            seconds: self.elapsed.as_secs_f64(),
            ..Measure::default()
        };
        let counted = count(&mut measure, before, after);
        let mut diagnostics: Vec<String> = self.failure.into_iter().collect();
        let failed = self.subtests.iter();
        let failed = failed.filter(|subtest| subtest.verdict == Verdict::Fail);
        diagnostics.extend(
            failed.map(|subtest| format!("{}: {}", subtest.name, subtest.diagnostics.join("; "))),
        );
        if diagnostics.is_empty() {
            let judged = counted.and_then(|()| check.judge(&measure.flows, self.payload));
            diagnostics.extend(judged.err());
        }
        Row {
            name: name.to_owned(),
            verdict: match diagnostics.is_empty() {
                true => Verdict::Pass,
                false => Verdict::Fail,
            },
            measure,
            diagnostics,
            subtests: self.subtests,
        }
    }
}

impl EndProgram<'_> {
    /// Starts it with `bytes` of memory.
    fn start<'s>(
        &self,
        bytes: u64,
        deadline: Instant,
        stops: &'s [UnixStream],
    ) -> Result<ProgramStreams<'s>, String> {
        let memory = match self.memory {
            RdmaMemory::GuestRam => "host".to_owned(),
            RdmaMemory::Vram(gpu) => format!("{{{gpu}}}"),
        };
        let nic = format!("{{{}}}", self.nic);
        let bytes = bytes.to_string();
        let words = [
            PROGRAM, "end", "--nic", &nic, "--memory", &memory, "--size", &bytes,
        ];
        let program = GuestProgram::start(self.socket, &ProgramRequest::new(words));
        let program =
            program.map_err(|error| format!("the end of {}: {}", self.nic, chain(&error)))?;
        Ok(ProgramStreams::new(program, deadline, stops))
    }
}

/// Whether nothing more can be asked of an end.
fn is_of_streams(error: &Error) -> bool {
    matches!(
        error,
        Error::Stream(_) | Error::Ended | Error::NoMessage { .. } | Error::Unexpected { .. }
    )
}

/// Sums of what all devices did between two readings of their counters.
fn count(
    measure: &mut Measure,
    before: &CountersByName,
    after: &CountersByName,
) -> Result<(), String> {
    for (name, after) in after {
        let after = counted(name, after)?;
        let before = before
            .get(name)
            .ok_or_else(|| format!("{name} had no counters before"))?;
        let before = counted(name, before)?;
        for (kind, (bytes, failures)) in after {
            let (earlier, earlier_failures) = before.get(&kind).copied().unwrap_or_default();
            let growth = bytes
                .checked_sub(earlier)
                .zip(failures.checked_sub(earlier_failures));
            let (bytes, failures) =
                growth.ok_or_else(|| format!("a DMA counter of {name} went back"))?;
            measure.failures = measure.failures.saturating_add(failures);
            if kind.purpose == Purpose::Payload && bytes > 0 {
                add(measure, name, kind, bytes);
            }
        }
    }
    Ok(())
}

/// Adds payload of the device `requester`.
fn add(measure: &mut Measure, requester: &str, kind: DmaKind, bytes: u64) {
    let of_route = measure.routes.entry(kind.route).or_default();
    *of_route = of_route.saturating_add(bytes);
    match kind.completer {
        Completer::OwnMemory | Completer::PeerBar => {
            measure.peer_bytes = measure.peer_bytes.saturating_add(bytes);
        }
        Completer::GuestRam => measure.ram_bytes = measure.ram_bytes.saturating_add(bytes),
        Completer::Unknown | Completer::Nobody => {}
    }
    measure.flows.push(PayloadFlow {
        requester: requester.to_owned(),
        completer: kind.completer,
        route: kind.route,
        direction: kind.direction,
        bytes,
    });
}

/// Bytes and failures of a device by kind. A device that counts nothing cannot be judged.
fn counted(name: &str, counters: &DeviceCounters) -> Result<BTreeMap<DmaKind, (u64, u64)>, String> {
    let entries = match counters {
        DeviceCounters::Counted { dma, .. } => dma,
        DeviceCounters::None(reason) => {
            return Err(format!("{name} has no DMA counters: {reason}"));
        }
    };
    let mut kinds: BTreeMap<DmaKind, (u64, u64)> = BTreeMap::new();
    for entry in entries {
        let (bytes, failures) = kinds.entry(entry.kind()).or_default();
        *bytes = bytes.saturating_add(entry.bytes);
        *failures = failures.saturating_add(entry.failures);
    }
    Ok(kinds)
}

/// An error and what it came from, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(error), |error| error.source());
    let words: Vec<String> = sources.map(ToString::to_string).collect();
    words.join(": ")
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{DeviceEvents, Direction, Entry, Route};

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

    fn done() -> Transfers {
        let mut done = Transfers::default();
        done.add(Way::Write, 64, Ok(Duration::from_millis(1)));
        done
    }

    #[test]
    fn transfer_is_judged_by_what_devices_counted_meanwhile() {
        use Completer::{GuestRam, PeerBar};

        let judged = |before: &CountersByName, after: &CountersByName| {
            let row = done().row("x", &check(), before, after);
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
            (CountersByName::new(), "0 read and 0 written"),
        ] {
            let (verdict, why, _) = judged(&before, &after);
            assert!(verdict == Verdict::Fail && why.contains(wanted), "{why}");
        }
        let nothing = [(
            "a".to_owned(),
            DeviceCounters::None("it is QEMU's".to_owned()),
        )];
        let (_, why, _) = judged(&before, &nothing.into());
        assert_eq!(why, "a has no DMA counters: it is QEMU's");
    }

    #[test]
    fn failed_transfer_fails_the_check_with_its_name() {
        let mut failed = done();
        failed.add(Way::Read, 64, Err(Error::Ended));
        failed.failure = Some("an end does not answer".to_owned());
        let counted = counters(64, Completer::PeerBar);
        let row = failed.row("x", &check(), &counters(0, Completer::PeerBar), &counted);
        assert_eq!((row.verdict, row.subtests.len()), (Verdict::Fail, 2));
        let why = row.diagnostics.join("; ");
        let wanted =
            "an end does not answer; read 64: an end of the transfer has ended before its answer";
        assert!(why.starts_with(wanted), "{why}");
    }
}
