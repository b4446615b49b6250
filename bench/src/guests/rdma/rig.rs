//! The guest with the adapters, and the copy loop for comparison.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::time::ClockId;
use peerbar_lab::Lab;
use peerbar_lab::exit::Failure;
use peerbar_lab::scenario::Scenario;
use peerbar_report::RdmaRate;

use super::load::{MAKE_RXE, Request};
use crate::cpu_time::cpu_time;
use crate::jobs::exact;
use crate::limits::Copies;
use crate::loaded_queue::Direction;
use crate::suite::GuestContext;

/// Two GPUs and two adapters below one switch. The check, which must pass, installs the program of
/// [`Request`].
const SCENARIO: &str = r#"
name = "bench-rdma"
timeout = "4m"
tools = true
packages = ["ibverbs-providers", "perftest"]
machine = { memory = "1G" }
switch = [{ name = "switch0" }]
gpu = [
    { name = "gpu0", below = "switch0", vram = "64M" },
    { name = "gpu1", below = "switch0", vram = "64M" },
]
nic = [{ name = "nic0", below = "switch0" }, { name = "nic1", below = "switch0" }]
module = [{ name = "rdma_rxe" }]
[[check]]
kind = "rdma"
nic = "nic0"
peer = "nic1"
from = { vram = "gpu0" }
to = { vram = "gpu1" }
sizes = [64, "1M"]
"#;

/// The guest.
pub(super) struct Rig {
    lab: Lab,
}

/// The result of a load.
pub(super) struct Loaded {
    pub(super) rate: RdmaRate,
    /// Processor time of all servers during the load.
    pub(super) servers: Duration,
}

impl Loaded {
    /// Returns the number of executed requests.
    pub(super) fn requests(&self) -> f64 {
        exact(self.rate.requests)
    }

    pub(super) fn requests_a_second(&self) -> f64 {
        self.requests() / self.rate.seconds
    }
}

impl Rig {
    /// Boots it, with software RoCE if `with_rxe` is set.
    pub(super) fn start(context: &mut GuestContext<'_>, with_rxe: bool) -> Result<Self, Failure> {
        let scenario = Scenario::parse_interactive(Path::new("bench-rdma.toml"), SCENARIO)?;
        context.note_versions(&scenario)?;
        let lab = context.lab_options().start(scenario)?;
        let mut rig = Self { lab };
        if with_rxe {
            rig.command(MAKE_RXE)?;
        }
        Ok(rig)
    }

    /// Runs a line in the guest, which must succeed. Returns its output.
    pub(super) fn command(&mut self, line: &str) -> anyhow::Result<String> {
        let output = self.lab.command(line)?;
        let (status, text) = (output.status, output.text);
        ensure!(
            status == 0,
            "`{line}` ended with status {status} in the guest: {text}"
        );
        Ok(text)
    }

    /// Lets an adapter execute such requests for `time`.
    pub(super) fn load(&mut self, request: &Request, time: Duration) -> anyhow::Result<Loaded> {
        let line = request.line(time);
        let before = self.of_servers()?;
        let text = self.command(&line)?;
        let servers = self.of_servers()?.saturating_sub(before);
        let rate: RdmaRate =
            serde_json::from_str(&text).with_context(|| format!("`{line}` printed: {text}"))?;
        ensure!(
            rate.requests > 0 && rate.seconds > 0.0,
            "`{line}` measured nothing: {text}"
        );
        Ok(Loaded { rate, servers })
    }

    /// Shuts the guest down. It is an error if anything in its run failed.
    pub(super) fn end(self) -> Result<(), Failure> {
        let ended = self.lab.shut_down()?;
        Ok(ensure_passed(ended.is_passed(), &ended.verdict)?)
    }

    fn of_servers(&self) -> anyhow::Result<Duration> {
        self.lab
            .servers()
            .map(|(_, process)| cpu_time(process))
            .sum()
    }
}

/// Fails unless the guest's run was clean to its end.
pub(super) fn ensure_passed(
    is_passed: bool,
    verdict: &impl std::fmt::Display,
) -> anyhow::Result<()> {
    ensure!(is_passed, "the guest's run failed: {verdict}");
    Ok(())
}

/// The rate at which one thread copies while the guest is idle.
pub(super) struct CopyLimit {
    copies: Copies,
    bytes: u32,
}

/// A rate of copies, in bytes.
pub(super) struct Copied {
    /// For each second.
    pub(super) rate: f64,
    /// For each second of the thread's processor time.
    pub(super) rate_of_processor: f64,
}

impl CopyLimit {
    /// Number of pieces on each side, equal to the number of requests in progress.
    const PIECES: usize = 16;
    const TIME: Duration = Duration::from_millis(200);

    /// Copies pieces of `bytes` bytes.
    pub(super) fn new(bytes: u32) -> anyhow::Result<Self> {
        let all = usize::try_from(bytes)? * Self::PIECES;
        Ok(Self {
            copies: Copies::new(all, all)?,
            bytes,
        })
    }

    pub(super) fn measure(&mut self) -> anyhow::Result<Copied> {
        let thread = || ClockId::CLOCK_THREAD_CPUTIME_ID.now().map(Duration::from);
        let (start, before) = (Instant::now(), thread()?);
        let size = usize::try_from(self.bytes)?;
        let copies = self
            .copies
            .rate(Direction::Read, size, Self::PIECES, Self::TIME)?;
        let (time, worked) = (start.elapsed(), thread()?.saturating_sub(before));
        let rate = copies * f64::from(self.bytes);
        Ok(Copied {
            rate,
            rate_of_processor: rate * time.as_secs_f64() / worked.as_secs_f64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_of_the_guest_can_be_read() {
        let parsed = Scenario::parse_interactive(Path::new("x.toml"), SCENARIO).unwrap();
        assert_eq!((parsed.nics.len(), parsed.gpus.len()), (2, 2));
    }

    #[test]
    fn copies_take_no_more_of_a_processor_than_of_the_clock() {
        let copied = CopyLimit::new(1 << 12).unwrap().measure().unwrap();
        assert!(copied.rate > 0.0);
        assert!(copied.rate_of_processor >= 0.99 * copied.rate);
    }

    #[test]
    fn failed_run_of_the_guest_is_an_error() {
        assert!(ensure_passed(true, &"passed").is_ok());
        let error = ensure_passed(false, &"failed: KASAN").unwrap_err();
        assert!(error.to_string().ends_with("failed: KASAN"), "{error}");
    }
}
