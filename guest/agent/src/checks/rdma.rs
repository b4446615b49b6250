//! Sends, writes and reads between queue pairs of RDMA adapters.

use anyhow::{Context, anyhow, bail, ensure};
use parking_lot::Mutex;
use peerbar_report::{Expectation, Measure, ProgramReport, Rdma, RdmaMemory, size_range};

use super::expectation::{self, Work};
use super::{CheckOutcome, Run};
use crate::guest_context::GuestContext;
use crate::tools::{Ran, ToolCommand};

/// The folder where the launcher puts the programs of this project.
const FOLDER: &str = "/opt/peerbar";
/// Start of the line in which the program reports its payload.
const PAYLOAD: &str = "# payload ";
/// The line with which it reports that requests are in progress.
const UNDER_LOAD: &str = "# under load";

impl Run for Rdma {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let (nic, peer) = (guest.nic(&self.nic)?, guest.nic(&self.peer)?);
        let sizes: Vec<String> = self.sizes.iter().map(u64::to_string).collect();
        let arguments = [
            ("--nic", nic.device.clone()),
            ("--peer", peer.device.clone()),
            ("--from", memory(guest, &self.from)?),
            ("--to", memory(guest, &self.to)?),
            ("--sizes", sizes.join(",")),
        ];
        measure.sizes = size_range(&self.sizes);
        let output = match run(guest, "transfer", &arguments, self.seconds, measure)? {
            CheckOutcome::Said(output) => output,
            other => return Ok(other),
        };
        let (payload, seconds) = payload(&output)?;
        (measure.bytes, measure.seconds) = (payload, seconds);
        let judged = self.judge(&measure.flows, payload);
        judged.map_err(|message| anyhow!(message))?;
        Ok(CheckOutcome::Passed)
    }
}

/// Runs a command of the verbs program, and returns its output.
pub(super) fn run(
    guest: &GuestContext,
    command: &str,
    arguments: &[(&str, String)],
    seconds: Option<u32>,
    measure: &mut Measure,
) -> anyhow::Result<CheckOutcome> {
    let Some(tools) = guest.tools()? else {
        return Ok(CheckOutcome::without_tools());
    };
    let tool = tool_command(command, arguments);
    let shown = format!("{} {}", tool.program, tool.arguments.join(" "));
    let expected = Expectation {
        show: true,
        ..Expectation::default()
    };
    let work = Work {
        what: "the program",
        shown: &shown,
        expected: &expected,
        seconds,
    };
    expectation::run(guest, &work, measure, |limit| {
        tools.run_program(&tool, limit, |line| guest.show(line))
    })
}

/// Returns a command of the verbs program with its options.
pub(super) fn tool_command(command: &str, arguments: &[(&str, String)]) -> ToolCommand {
    let options = arguments.iter();
    let options = options.flat_map(|(option, value)| [(*option).to_owned(), value.clone()]);
    ToolCommand {
        program: format!("{FOLDER}/peerbar-verbs"),
        folder: "/".to_owned(),
        arguments: [command.to_owned()].into_iter().chain(options).collect(),
        environment: Vec::new(),
        socket: None,
    }
}

/// Runs the verbs program, kills a server once the program reports that requests are in progress,
/// and judges its report.
pub(super) fn run_and_kill(
    guest: &GuestContext,
    tool: &ToolCommand,
    (server, seconds): (&str, Option<u32>),
    measure: &mut Measure,
) -> anyhow::Result<Ran> {
    let tools = guest.required_tools()?;
    let killed = Mutex::new(None);
    let ran = tools.run_program(tool, guest.limit(seconds), |line| {
        guest.show(line);
        if line == UNDER_LOAD {
            let kill = guest.launcher.kill_server(server);
            *killed.lock() = Some(kill);
        }
    })?;
    judge_report(&ran, measure)?;
    let killed = killed.into_inner();
    killed.context("the program had no requests in progress")??;
    Ok(ran)
}

/// Takes the results that the program has reported, and fails if it failed.
pub(super) fn judge_report(ran: &Ran, measure: &mut Measure) -> anyhow::Result<()> {
    let report = ProgramReport::read(&ran.output);
    let complaint = report.as_ref().and_then(ProgramReport::complaint);
    measure.subtests = report.map_or_else(Vec::new, |report| report.results);
    measure.status = Some(ran.code());
    ensure!(
        !ran.timed_out,
        "the program did not end in time; it printed:\n{}",
        ran.output
    );
    let failed = complaint.or_else(|| (ran.code() != 0).then(|| format!("status {}", ran.code())));
    match failed {
        Some(reason) => bail!("the program failed: {reason}; it printed:\n{}", ran.output),
        None => Ok(()),
    }
}

/// Returns the program's name for this memory.
pub(super) fn memory(guest: &GuestContext, memory: &RdmaMemory) -> anyhow::Result<String> {
    Ok(match memory {
        RdmaMemory::Vram(gpu) => guest.gpu(gpu)?.node().to_string(),
        RdmaMemory::GuestRam => "host".to_owned(),
    })
}

/// Returns the numbers in the line of the program's output that begins with `begin`.
pub(super) fn figures<const COUNT: usize>(
    output: &str,
    begin: &str,
) -> anyhow::Result<[u64; COUNT]> {
    let line = output.lines().find_map(|line| line.strip_prefix(begin));
    let figures = line.and_then(|line| {
        let numbers = line.split(' ').map(|word| word.parse().ok());
        numbers.collect::<Option<Vec<u64>>>()?.try_into().ok()
    });
    figures.with_context(|| format!("the program did not print {begin:?} with numbers: {COUNT}"))
}

/// Returns the payload bytes that the program reports, and the seconds that they took.
pub(super) fn payload(output: &str) -> anyhow::Result<(u64, f64)> {
    let mut lines = output.lines().rev();
    let line = lines.find_map(|line| line.strip_prefix(PAYLOAD)?.strip_suffix(" s"));
    let figures = line.and_then(|line| {
        let (bytes, seconds) = line.split_once(" in ")?;
        Some((bytes.parse().ok()?, seconds.parse().ok()?))
    });
    figures.with_context(|| format!("the program did not print {PAYLOAD:?} with bytes and seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_the_last_line_of_its_kind() {
        let last = "ok 1 x\n# payload 3 in 1.0 s\n# payload 64 in 0.5 s\n";
        assert_eq!(payload(last).unwrap(), (64, 0.5));
        for other in ["# payload many in 1.0 s", "# payload 64"] {
            assert!(payload(other).is_err(), "{other}");
        }
    }

    #[test]
    fn figures_are_all_numbers_of_their_line() {
        let output = "ok 1 x\n# moved 7 8\nok 2 y\n";
        assert_eq!(figures(output, "# moved ").unwrap(), [7, 8]);
        assert!(figures::<1>(output, "# moved ").is_err());
        assert!(figures::<2>("# moved 7 many\n", "# moved ").is_err());
        assert!(figures::<1>(output, "# lost ").is_err());
    }
}
