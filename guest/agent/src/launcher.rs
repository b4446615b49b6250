//! The requests of a running check to the launcher, through the port of the report.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use parking_lot::Mutex;
use peerbar_report::{ClockSample, Counters, DeviceCounters, Line, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

/// Time limit for an answer. It is shorter than the time of a check, so that a check without an
/// answer ends by itself.
const TIME_OUT: Duration = Duration::from_secs(15);

/// Longest accepted answer in bytes.
const ANSWER_LIMIT: usize = 4 << 20;

/// Characters of a line that is shown while a command runs.
const LONGEST_SHOWN: usize = 1000;

/// The launcher, at the other end of the port. While a check runs, nothing else writes to the port.
#[derive(Debug)]
pub struct Launcher(Mutex<Connection>);

#[derive(Debug)]
struct Connection {
    port: File,
    /// Number of requests for counters that have been sent.
    requests: u64,
    /// Data that has been received and not yet taken.
    received: Vec<u8>,
}

impl Launcher {
    /// Makes the launcher behind `port`, a port that blocks.
    pub(crate) fn at(port: File) -> Self {
        Launcher(Mutex::new(Connection {
            port,
            requests: 0,
            received: Vec::new(),
        }))
    }

    /// Requests that the server of the device `name` be killed. Returns before it is dead.
    pub fn kill_server(&self, name: &str) -> anyhow::Result<()> {
        self.0.lock().send(&Line::Kill(name.to_owned()))
    }

    /// Shows a line that a command prints, while it runs.
    ///
    /// # Errors
    /// The launcher has stopped reading.
    pub(crate) fn show(&self, text: &str) -> anyhow::Result<()> {
        let text = text.replace(|c: char| c.is_control() && c != '\t', " ");
        let end = text.char_indices().nth(LONGEST_SHOWN).map(|(end, _)| end);
        let text = end.and_then(|end| text.get(..end)).unwrap_or(&text);
        self.0.lock().send(&Line::Output(text.to_owned()))
    }

    /// Waits for the next request of an interactive plan. A launcher that is gone has none.
    pub(crate) fn next_request(&self) -> anyhow::Result<Request> {
        let mut connection = self.0.lock();
        loop {
            let line = connection.line(None)?;
            // Skips an answer that came too late for its request.
            if serde_json::from_slice::<Counters>(&line).is_err() {
                return serde_json::from_slice(&line).context(
                    "invalid request from the launcher: are launcher and agent from the same build?",
                );
            }
        }
    }

    /// Returns the DMA counters of all devices, by name, at a moment between call and return. No
    /// device takes part in this, so it works while one hangs.
    ///
    /// # Errors
    /// No answer in time, or an invalid one.
    pub(crate) fn counters(&self) -> anyhow::Result<BTreeMap<String, DeviceCounters>> {
        Ok(self.answer()?.devices)
    }

    /// Returns the launcher's complete answer to a request for counters.
    ///
    /// # Errors
    /// As for [`Launcher::counters`].
    pub(crate) fn answer(&self) -> anyhow::Result<Counters> {
        self.0.lock().counters(TIME_OUT)
    }

    /// Returns the time that the host's processors have worked as those of this guest, if the host
    /// knows it.
    ///
    /// # Errors
    /// As for [`Launcher::counters`].
    pub(crate) fn processor_time(&self) -> anyhow::Result<Option<Duration>> {
        let time = self.0.lock().counters(TIME_OUT)?.processors_ns;
        Ok(time.map(Duration::from_nanos))
    }

    /// Returns the launcher's clock, between two readings of the guest's.
    ///
    /// # Errors
    /// As for [`Launcher::counters`].
    pub(crate) fn clock(&self) -> anyhow::Result<ClockSample> {
        let mut connection = self.0.lock();
        let before = now_ns()?;
        let host = connection.counters(TIME_OUT)?.host_ns;
        let after = now_ns()?;
        Ok(ClockSample {
            before,
            host,
            after,
        })
    }
}

/// Returns CLOCK_MONOTONIC in nanoseconds.
fn now_ns() -> anyhow::Result<u64> {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic))?;
    Ok(u64::try_from(now.as_nanos())?)
}

impl Connection {
    fn send(&mut self, line: &Line) -> anyhow::Result<()> {
        self.port
            .write_all(format!("{line}\n").as_bytes())
            .context("cannot write to the launcher")
    }

    fn counters(&mut self, time_out: Duration) -> anyhow::Result<Counters> {
        self.requests = self.requests.saturating_add(1);
        self.send(&Line::Counters(self.requests))?;
        let deadline = Instant::now() + time_out;
        loop {
            let answer: Counters = serde_json::from_slice(&self.line(Some((deadline, time_out)))?)
                .context(
                    "invalid answer from the launcher: are launcher and agent from the same build?",
                )?;
            // An earlier one came too late for its request.
            if answer.request == self.requests {
                return Ok(answer);
            }
        }
    }

    /// Returns the next line, without its newline. Fails at the deadline, if there is one, with the
    /// time-out that it stands for.
    fn line(&mut self, limit: Option<(Instant, Duration)>) -> anyhow::Result<Vec<u8>> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let rest = self.received.split_off(end.saturating_add(1));
                let mut line = std::mem::replace(&mut self.received, rest);
                line.truncate(end);
                return Ok(line);
            }
            ensure!(
                self.received.len() <= ANSWER_LIMIT,
                "the launcher's answer is longer than {ANSWER_LIMIT} bytes"
            );
            self.receive(limit)?;
        }
    }

    fn receive(&mut self, limit: Option<(Instant, Duration)>) -> anyhow::Result<()> {
        let left = limit.map(|(deadline, _)| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.map(Timespec::try_from).transpose()?;
        let ready = rustix::io::retry_on_intr(|| {
            poll(
                &mut [PollFd::new(&self.port, PollFlags::IN)],
                timeout.as_ref(),
            )
        });
        let ready = ready.context("cannot wait for the launcher")?;
        if let Some((_, time_out)) = limit.filter(|_| ready == 0) {
            bail!(
                "the launcher has not sent the DMA counters within {} s: see whether it still runs, and whether \
                 it and this agent are from the same build",
                time_out.as_secs()
            );
        }
        let mut chunk = [0; 4096];
        let count = self.port.read(&mut chunk);
        let count = count.context("cannot read from the launcher")?;
        ensure!(count > 0, "the launcher has closed the port");
        self.received
            .extend_from_slice(chunk.get(..count).unwrap_or_default());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    fn connected() -> (Launcher, UnixStream) {
        let (agent, launcher) = UnixStream::pair().unwrap();
        (Launcher::at(File::from(OwnedFd::from(agent))), launcher)
    }

    fn answer(request: u64) -> String {
        let answer = Counters {
            request,
            host_ns: 5,
            processors_ns: Some(9),
            devices: [(
                format!("disk{request}"),
                DeviceCounters::None("a test".into()),
            )]
            .into(),
        };
        format!("{}\n", serde_json::to_string(&answer).unwrap())
    }

    #[test]
    fn counters_are_those_of_the_latest_request() {
        let (agent, launcher) = connected();
        // A late answer to an earlier request, and the right one in two pieces.
        let answers = thread::spawn(move || {
            let mut lines = BufReader::new(launcher.try_clone().unwrap()).lines();
            assert_eq!(lines.next().unwrap().unwrap(), "# counters 1");
            let text = answer(0) + &answer(1);
            let (start, end) = text.split_at(text.len() - 5);
            (&launcher).write_all(start.as_bytes()).unwrap();
            (&launcher).write_all(end.as_bytes()).unwrap();
            launcher
        });
        let counters = agent.counters().unwrap();
        answers.join().unwrap();
        assert_eq!(counters.into_keys().collect::<Vec<_>>(), ["disk1"]);
    }

    #[test]
    fn late_answer_is_no_request() {
        let (agent, mut launcher) = connected();
        let text = answer(7) + "\"end\"\n";
        launcher.write_all(text.as_bytes()).unwrap();
        assert_eq!(agent.next_request().unwrap(), Request::End);
        drop(launcher);
        let error = agent.next_request().unwrap_err().to_string();
        assert_eq!(error, "the launcher has closed the port");
    }

    #[test]
    fn silent_or_gone_launcher_ends_the_request() {
        let (agent, launcher) = connected();
        let error = agent.0.lock().counters(Duration::ZERO).unwrap_err();
        let silent = "the launcher has not sent the DMA counters within 0 s: ";
        assert!(error.to_string().starts_with(silent), "{error}");
        launcher.shutdown(std::net::Shutdown::Write).unwrap();
        let error = agent.counters().unwrap_err().to_string();
        assert_eq!(error, "the launcher has closed the port");
    }
}
