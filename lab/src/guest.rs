//! A running guest: QEMU, the servers behind its devices, its console and its report.

mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use peerbar_flight::monotonic_ns;
use peerbar_images::Cache;
use peerbar_report::{Counters, DeviceCounters, Line, Request};
use rustix::io::ioctl_fionbio;

use crate::bounded_file::BoundedFile;
use crate::bridge_watch::{BridgeWatch, SwitchSocket};
use crate::child::{Child, Killer};
use crate::console::Console;
use crate::counters::CounterFiles;
use crate::events::{Event, EventSource, Events};
use crate::exit::Failure;
use crate::folder::SocketLink;
use crate::kvm::GivenUp;
use crate::parent_death;
use crate::processor_time;
use crate::report::Report;
use crate::servers::{self, Server};
use crate::verdict::Ending;

/// The guest's serial console in a run's folder.
pub const CONSOLE_LOG: &str = "console.log";
/// The guest's trace events in a run's folder, if they were wanted.
pub const GUEST_TRACE: &str = "guest.trace";
/// Bytes that a pipe holds (pipe(7)).
const PIPE: usize = 64 << 10;
/// Longest time that QEMU may take to end after a request.
const END: Duration = Duration::from_secs(2);
/// Longest time that QEMU may take to fetch the plan, a request or an answer from its socket. It
/// does not while the guest reads nothing.
const PLAN: Duration = Duration::from_secs(5);

/// A guest that has been started. On drop, all its processes are killed and reaped.
pub struct Guest<'a> {
    qemu: Child,
    servers: Vec<Server>,
    /// Dropped after QEMU, whose monitor it may wait for.
    bridges: Option<BridgeWatch>,
    /// The sockets of the switches that it answers.
    switches: Vec<SwitchSocket>,
    events: Events<'a>,
    plan: String,
    counters: Arc<CounterFiles>,
    /// The devices whose server a check of the scenario has killed.
    losable: BTreeSet<String>,
    /// The device whose server the last requested check has killed.
    requested_loss: Option<String>,
    /// The agent's port, for answers.
    port: Option<UnixStream>,
    started: Instant,
    /// The link to the socket of its vsock ports.
    _link: Option<SocketLink>,
    /// The link to the socket of QEMU's monitor.
    _monitor: SocketLink,
    /// QEMU's status, once it has ended.
    ended: Option<ExitStatus>,
    /// File for the kernel's trace events, if they are wanted.
    trace: Option<BoundedFile>,
    qemu_log: BoundedFile,
    search: GivenUp,
    /// QEMU's line, if KVM has given the guest up.
    given_up: Option<String>,
    /// QEMU's standard error, for its last messages.
    qemu_said: ChildStderr,
    /// Number of open streams among console, QEMU's output, report and trace.
    open: usize,
    /// Protects the guest's files from being pruned.
    _cache: Cache,
    /// Its serial console.
    pub console: Console,
    /// The agent's report.
    pub report: Report,
}

/// An event of a guest that goes on.
pub enum GuestEvent {
    /// Lines of the console.
    Console(Vec<String>),
    /// Lines of the report. The agent's requests among them have been served.
    Report(Vec<Line>),
    /// The other end of [`Guest::add_work`]'s stream is closed.
    WorkDone,
    /// This process was asked to end by a signal.
    Signal(i32),
    /// The time limit is over.
    Late,
}

/// The decision of a follower of a guest after an event: see [`Guest::follow`].
pub enum Next<T> {
    /// Follow the guest further, unless the event was a signal or the end of the time limit.
    Follow,
    /// Follow the guest further, whatever the event was, for at most this long.
    FollowFor(Duration),
    /// The follower is done.
    Done(T),
}

impl Guest<'_> {
    /// Makes [`Guest::follow`] report [`GuestEvent::WorkDone`] once the other end of `stream` is
    /// closed. A byte that comes by it is a signal's number.
    pub fn add_work(&mut self, stream: UnixStream) {
        self.events.add_bytes(EventSource::Work, stream);
    }

    /// Makes [`Guest::follow`] report nothing about work that was added before.
    pub fn remove_work(&mut self) {
        self.events.remove(EventSource::Work);
    }

    /// When QEMU was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Returns the process of QEMU.
    pub fn qemu(&self) -> u32 {
        self.qemu.id()
    }

    /// Returns the processes of the servers, and their names in the scenario.
    pub fn servers(&self) -> impl Iterator<Item = (&str, u32)> {
        let servers = self.servers.iter();
        servers.map(|server| (server.name.as_str(), server.child.id()))
    }

    /// Stops telling its switches the windows of their ports, and returns their sockets for the
    /// next guest.
    pub(crate) fn hand_over_switches(&mut self) -> Vec<SwitchSocket> {
        self.bridges = None;
        self.switches.clone()
    }

    /// Returns the names of the servers that have not ended.
    pub fn serving(&mut self) -> anyhow::Result<BTreeSet<String>> {
        let mut serving = BTreeSet::new();
        for server in &mut self.servers {
            if server.child.ended()?.is_none() {
                serving.insert(server.name.clone());
            }
        }
        Ok(serving)
    }

    /// Returns `true` if nothing has come from inside yet, so that it may never have run.
    pub fn is_silent(&self) -> bool {
        self.console.tail().is_empty() && self.report.is_empty()
    }

    /// Follows the guest for at most `limit`, until `take` is done with it. Returns the result of
    /// `take`, or the reason why the guest is no longer followed.
    ///
    /// # Errors
    /// Those of `take`, or something on the host that fails.
    pub fn follow<T, E: From<anyhow::Error>>(
        &mut self,
        mut limit: Duration,
        mut take: impl FnMut(&mut Self, GuestEvent) -> Result<Next<T>, E>,
    ) -> Result<Result<T, Ending>, E> {
        let mut deadline = Instant::now() + limit;
        loop {
            let event = match self.next_event(deadline)? {
                Ok(event) => event,
                Err(ending) => return Ok(Err(ending)),
            };
            let ending = match event {
                GuestEvent::Signal(signal) => Some(Ending::Signal(signal)),
                GuestEvent::Late => Some(Ending::TimedOut(limit.as_secs())),
                _ => None,
            };
            match (take(self, event)?, ending) {
                (Next::Done(value), _) => return Ok(Ok(value)),
                (Next::Follow, Some(ending)) => return Ok(Err(ending)),
                (Next::Follow, None) => {}
                (Next::FollowFor(next), _) => {
                    limit = next;
                    deadline = Instant::now() + limit;
                }
            }
        }
    }

    /// Follows the guest to its end, for at most `limit`.
    ///
    /// # Errors
    /// Something on the host that fails.
    pub fn ending(&mut self, limit: Duration) -> anyhow::Result<Ending> {
        let followed = self.follow(limit, |_, _| Ok::<_, anyhow::Error>(Next::Follow))?;
        followed.map_or_else(Ok, |never: Infallible| match never {})
    }

    /// Waits for the next event until `deadline`. Returns an ending once the guest does not go on.
    fn next_event(&mut self, deadline: Instant) -> anyhow::Result<Result<GuestEvent, Ending>> {
        loop {
            if let Some(status) = self.ended.filter(|_| self.open == 0) {
                return Ok(Err(Ending::Ended(status)));
            }
            if let Some(line) = &self.given_up {
                return Ok(Err(Ending::GivenUp(line.clone())));
            }
            let Some(event) = self.events.next(deadline)? else {
                return Ok(Ok(GuestEvent::Late));
            };
            match event {
                Event::Data(EventSource::Console, bytes) => {
                    return Ok(Ok(GuestEvent::Console(self.console.take(&bytes)?)));
                }
                Event::Data(EventSource::Report, bytes) => {
                    let lines = self.report.take(&bytes)?;
                    self.answer(&lines)?;
                    return Ok(self.lose_for(&lines)?.map(|()| GuestEvent::Report(lines)));
                }
                Event::Signal(signal) => return Ok(Ok(GuestEvent::Signal(signal))),
                Event::Data(EventSource::Trace, bytes) => {
                    if let Some(trace) = &mut self.trace {
                        trace
                            .take(&bytes)
                            .context("cannot write the guest's trace events")?;
                    }
                }
                Event::Data(EventSource::QemuLog, bytes) => {
                    self.log(&bytes)?;
                    self.given_up = self.search.take(&bytes);
                }
                Event::Connected(EventSource::Trace, stream) => {
                    self.events.add_bytes(EventSource::Trace, stream);
                    self.open = self.open.saturating_add(1);
                }
                Event::Connected(_, stream) => self.connected(stream)?,
                Event::Closed(
                    EventSource::Console
                    | EventSource::QemuLog
                    | EventSource::Report
                    | EventSource::Trace,
                ) => self.open = self.open.saturating_sub(1),
                Event::Ended(EventSource::Qemu) => self.ended = self.qemu.ended()?,
                Event::Ended(EventSource::Server(index)) => {
                    if let Some(message) = self.server_ended(index)? {
                        return Ok(Err(Ending::ServerDied(message)));
                    }
                }
                Event::Closed(EventSource::Work) => return Ok(Ok(GuestEvent::WorkDone)),
                Event::Data(EventSource::Work, bytes) => {
                    if let Some(signal) = bytes.first() {
                        return Ok(Ok(GuestEvent::Signal((*signal).into())));
                    }
                }
                Event::Data(..) | Event::Closed(_) | Event::Ended(_) => {}
            }
        }
    }

    /// Sends `request` to an agent that is ready for it.
    pub fn request(&mut self, request: &Request) -> anyhow::Result<()> {
        let line = serde_json::to_string(request).context("cannot write a request")? + "\n";
        let port = self.port.as_ref().context("the agent's port is closed")?;
        if let Request::Check(check) = request {
            self.console.expect_warnings(check.warnings());
            self.requested_loss = check.kills().map(str::to_owned);
        }
        self.report.check_begins();
        write_within(port, line.as_bytes(), PLAN)
            .context("the guest does not take a request for the agent")
    }

    /// Returns the DMA counters of each device at this moment, by its name.
    pub fn counters(&self) -> BTreeMap<String, DeviceCounters> {
        self.counters.read()
    }

    /// Returns the same counters, to be read while the guest goes on.
    pub(crate) fn counter_files(&self) -> Arc<CounterFiles> {
        Arc::clone(&self.counters)
    }

    /// Answers the last request for counters in `lines`: the agent waits for one answer at a time.
    /// An agent that has already gone needs none.
    fn answer(&mut self, lines: &[Line]) -> anyhow::Result<()> {
        let request = lines.iter().rev().find_map(|line| match line {
            Line::Counters(request) => Some(*request),
            _ => None,
        });
        let (Some(request), Some(port)) = (request, &self.port) else {
            return Ok(());
        };
        let answer = Counters {
            request,
            host_ns: monotonic_ns(),
            processors_ns: processor_time::of_guest(self.qemu.id()),
            devices: self.counters.read(),
        };
        let answer = serde_json::to_string(&answer).context("cannot write the counters")?;
        if let Err(error) = write_within(port, format!("{answer}\n").as_bytes(), PLAN) {
            log::debug!("the agent does not take the counters: {error}");
            self.port = None;
        }
        Ok(())
    }

    /// Kills the servers that `lines` of the report ask for: the guest sees the devices pulled
    /// out. Returns an ending if it may not ask for them.
    fn lose_for(&mut self, lines: &[Line]) -> anyhow::Result<Result<(), Ending>> {
        let requested = self.requested_loss.as_ref();
        let names = match deaths(lines, &self.losable, requested) {
            Ok(names) => names,
            Err(ending) => return Ok(Err(ending)),
        };
        for name in names {
            let server = self.server_to_lose(name)?;
            server.lost = true;
            server.child.kill()?;
        }
        Ok(Ok(()))
    }

    /// Returns an object that kills the server of `name`, for a check that asks for its death.
    pub(crate) fn expect_death(&mut self, name: &str) -> anyhow::Result<Killer> {
        self.server_to_lose(name)?.expect_death()
    }

    fn server_to_lose(&mut self, name: &str) -> anyhow::Result<&mut Server> {
        let server = self.servers.iter_mut().find(|server| server.name == name);
        server.with_context(|| format!("a check asks for the death of {name}, which has no server"))
    }

    /// Accepts warnings of these functions of the guest's kernel from now on.
    pub(crate) fn expect_warnings(&mut self, functions: &[&'static str]) {
        self.console.expect_warnings(functions);
    }

    /// Ends QEMU if it has not ended, then the servers. The last value is the exit message of the
    /// first server that failed.
    pub fn stop(mut self) -> anyhow::Result<(Console, Report, Option<String>)> {
        self.qemu.end(END)?;
        self.log_rest()?;
        let complaint = servers::stop(&mut self.servers)?;
        Ok((self.console, self.report, complaint))
    }

    /// Stores output of QEMU.
    fn log(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let kept = self.qemu_log.take(bytes);
        kept.map(drop).context("cannot write QEMU's output")
    }

    /// Stores QEMU's last output. No process writes into its pipe any more.
    fn log_rest(&mut self) -> anyhow::Result<()> {
        ioctl_fionbio(&self.qemu_said, true).context("cannot read QEMU's output")?;
        let mut bytes = vec![0; PIPE];
        // An end and an error say the same: there is nothing more.
        let count = self.qemu_said.read(&mut bytes).unwrap_or_default();
        bytes.truncate(count);
        self.log(&bytes)
    }

    fn connected(&mut self, stream: UnixStream) -> anyhow::Result<()> {
        write_within(&stream, self.plan.as_bytes(), PLAN)
            .context("QEMU does not take the plan for the agent")?;
        let port = stream.try_clone();
        self.port = Some(port.context("cannot share the agent's port")?);
        self.events.add_bytes(EventSource::Report, stream);
        self.open = self.open.saturating_add(1);
        Ok(())
    }

    /// Returns the exit message of a server that has ended, unless a check asked for its death. A
    /// server continues when QEMU leaves it, so any other end is a fault, even with status 0.
    fn server_ended(&mut self, index: usize) -> anyhow::Result<Option<String>> {
        let server = self.servers.get_mut(index).context("an end of no server")?;
        let status = server
            .child
            .ended()?
            .context("a server that ended and did not")?;
        Ok((!server.lost).then(|| servers::exit_message(server, status)))
    }
}

/// Returns the devices whose death `lines` of the report ask for, or an ending if one is neither
/// among the `losable` nor the `requested` one.
fn deaths<'a>(
    lines: &'a [Line],
    losable: &BTreeSet<String>,
    requested: Option<&String>,
) -> Result<Vec<&'a str>, Ending> {
    let asked = lines.iter().filter_map(|line| match line {
        Line::Kill(name) => Some(name),
        _ => None,
    });
    let judged = asked.map(
        |name| match losable.contains(name) || requested == Some(name) {
            true => Ok(name.as_str()),
            false => Err(Ending::Stopped(format!(
                "the guest asks for the death of {name}, which no check loses"
            ))),
        },
    );
    judged.collect()
}

/// Writes all of `bytes` within `limit`, even if the other side reads slowly.
fn write_within(mut stream: &UnixStream, bytes: &[u8], limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    // The socket's time-out is for each of its buffers: a part fits into one.
    for mut part in bytes.chunks(4096) {
        while !part.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            stream.set_write_timeout(Some(left))?;
            match stream.write(part) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => part = part.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Starts QEMU with its console on a pipe and its own output at `stderr`.
pub fn spawn(command: &Command, stderr: impl Into<Stdio>) -> Result<Child, Failure> {
    let mut wrapped = parent_death::confined(command)?;
    wrapped
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr);
    Ok(Child::spawn(wrapped)?)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::path::Path;
    use std::thread;

    use peerbar_report::KnownWarnings;

    use super::*;
    use crate::folder::{Folder, QEMU_LOG};
    use crate::scenario::Scenario;
    use crate::signals;

    /// Longer than any of these guests is followed.
    const LONG: Duration = Duration::from_secs(100);

    /// Returns a guest in `runs` that has no server, and a shell that runs `script` as its QEMU.
    fn scripted(script: &str, runs: &Path) -> anyhow::Result<Guest<'static>> {
        let folder = Folder::named(runs, "run")?;
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut qemu = Child::spawn(command)?;
        let mut events = Events::new(&signals::NONE);
        let console = qemu.take_stdout().context("no console")?;
        events.add_bytes(EventSource::Console, console);
        events.add_child(EventSource::Qemu, qemu.pidfd())?;
        Ok(Guest {
            servers: Vec::new(),
            bridges: None,
            switches: Vec::new(),
            events,
            plan: String::new(),
            counters: Arc::new(CounterFiles::of(&Scenario::demo()?, runs)),
            losable: BTreeSet::new(),
            requested_loss: None,
            port: None,
            started: Instant::now(),
            _link: None,
            _monitor: folder.link("monitor", Path::new("none"))?,
            ended: None,
            trace: None,
            qemu_log: BoundedFile::new(folder.file(QEMU_LOG)?, 0),
            search: GivenUp::default(),
            given_up: None,
            qemu_said: qemu.take_stderr().context("no log")?,
            open: 1,
            _cache: Cache::at(&runs.join("cache"))?,
            console: Console::new(folder.file(CONSOLE_LOG)?, KnownWarnings::default()),
            report: Report::new(folder.file("report")?, false),
            qemu,
        })
    }

    #[test]
    fn guest_is_followed_until_it_ends_or_its_follower_is_done() {
        let runs = tempfile::tempdir().unwrap();
        let mut guest = scripted("echo one; echo two; exit 3", runs.path()).unwrap();
        let mut seen = Vec::new();
        let followed = guest.follow(LONG, |_, event| {
            if let GuestEvent::Console(lines) = event {
                seen.extend(lines);
            }
            Ok::<Next<()>, anyhow::Error>(Next::Follow)
        });
        let Err(Ending::Ended(status)) = followed.unwrap() else {
            panic!("another ending");
        };
        assert_eq!(
            (status.code(), seen.join(" ")),
            (Some(3), "one two".to_owned())
        );

        let runs = tempfile::tempdir().unwrap();
        let mut guest = scripted("echo up; exec sleep 1000", runs.path()).unwrap();
        let followed = guest.follow(LONG, |_, _| Ok::<_, anyhow::Error>(Next::Done(7)));
        assert_eq!(followed.unwrap().unwrap(), 7);
    }

    #[test]
    fn guest_is_followed_beyond_its_time_only_if_its_follower_says_so() {
        let runs = tempfile::tempdir().unwrap();
        let mut guest = scripted("exec sleep 1000", runs.path()).unwrap();
        let ending = guest.ending(Duration::ZERO).unwrap();
        assert!(matches!(ending, Ending::TimedOut(0)), "{ending:?}");
        let mut late = 0;
        let followed = guest.follow(Duration::ZERO, |guest, event| {
            if !matches!(event, GuestEvent::Late) {
                return Ok::<Next<()>, anyhow::Error>(Next::Follow);
            }
            late += 1;
            guest.qemu.kill()?;
            Ok(Next::FollowFor(LONG))
        });
        let ending = followed.unwrap().unwrap_err();
        assert!(
            matches!(ending, Ending::Ended(_)) && late == 1,
            "{ending:?}"
        );
    }

    #[test]
    fn signal_ends_a_guest_unless_its_follower_goes_on() {
        let runs = tempfile::tempdir().unwrap();
        let mut guest = scripted("exec sleep 1000", runs.path()).unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        guest.add_work(ours);
        theirs.write_all(&[15]).unwrap();
        let ending = guest.ending(LONG).unwrap();
        assert!(matches!(ending, Ending::Signal(15)), "{ending:?}");
        theirs.write_all(&[2]).unwrap();
        drop(theirs);
        let mut signals = Vec::new();
        let followed = guest.follow(LONG, |_, event| {
            Ok::<_, anyhow::Error>(match event {
                GuestEvent::Signal(signal) => {
                    signals.push(signal);
                    Next::FollowFor(LONG)
                }
                GuestEvent::WorkDone => Next::Done("done"),
                _ => Next::Follow,
            })
        });
        assert_eq!((followed.unwrap().unwrap(), signals), ("done", vec![2]));
    }

    #[test]
    fn guest_may_ask_only_for_the_death_of_what_a_check_loses() {
        let (losable, requested) = (BTreeSet::from(["g0".to_owned()]), "n0".to_owned());
        let ask = |names: &[&str]| {
            let lines: Vec<_> = names
                .iter()
                .map(|it| Line::Kill((*it).to_owned()))
                .collect();
            match deaths(&lines, &losable, Some(&requested)) {
                Ok(names) => Ok(names.join(" ")),
                Err(Ending::Stopped(reason)) => Err(reason),
                Err(_) => panic!("another ending"),
            }
        };
        assert_eq!(ask(&["g0", "n0"]), Ok("g0 n0".to_owned()));
        for other in ["d0", "s0", "g1", ""] {
            let refused = ask(&["g0", other]).unwrap_err();
            assert!(refused.contains(&format!("death of {other},")), "{refused}");
        }
    }

    #[test]
    fn write_to_slow_reader_ends_in_time() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        // Each read frees a buffer, so that each send goes on within its own time-out.
        let reader = thread::spawn(move || {
            let mut part = [0; 4096];
            while theirs.read(&mut part).unwrap() > 0 {
                thread::sleep(Duration::from_millis(10));
            }
        });
        let begun = Instant::now();
        let written = write_within(&ours, &vec![0; 64 << 20], Duration::from_millis(100));
        assert!(written.is_err());
        // The whole would take three minutes.
        assert!(begun.elapsed() < Duration::from_secs(60));
        ours.shutdown(std::net::Shutdown::Both).unwrap();
        reader.join().unwrap();
    }
}
