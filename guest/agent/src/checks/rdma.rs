//! Checks between two RDMA ends in this guest. Their work is in `peerbar_rdma_end`.

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, ensure};
use peerbar_rdma_end::{Counted, EndSpec, Moment, Results, Site, StartedEnd, Step, TwoEnds};
use peerbar_report::{
    CheckKind, Measure, Rdma, RdmaChain, RdmaCompletions, RdmaLost, RdmaMemory, RdmaRefused,
};

use super::{CheckOutcome, Run};
use crate::counters::{Begun, TrafficWatch};
use crate::end_process::EndProcess;
use crate::gpus::Gpu;
use crate::guest_context::GuestContext;
use crate::kmsg::Expected;
use crate::tools::{ToolCommand, Tools};
use crate::watchdog;

/// The folder where the launcher puts the programs of this project.
const FOLDER: &str = "/opt/peerbar";

/// Runs checks between two ends by their conductor, and judges them by the devices' payload.
macro_rules! between_ends {
    ($($kind:ty,)*) => {$(
        impl Run for $kind {
            fn run(
                &self,
                guest: &GuestContext,
                measure: &mut Measure,
            ) -> anyhow::Result<CheckOutcome> {
                let Some(conducted) = Conducted::of(self, guest)? else {
                    return Ok(CheckOutcome::without_tools());
                };
                conducted.judge(self, measure)
            }

            fn expected_log(&self) -> Expected<'_> {
                Expected {
                    warnings: CheckKind::warnings(self),
                    ..Expected::default()
                }
            }
        }
    )*};
}

between_ends! { Rdma, RdmaChain, RdmaLost, RdmaRefused, }

impl Run for RdmaCompletions {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let number = guest.nic(&self.nic)?.number;
        let Some(Conducted { results, watch }) = Conducted::of(self, guest)? else {
            return Ok(CheckOutcome::without_tools());
        };
        if !self.loses {
            watch.write_completions_to(measure, number, self.memory.gpu().is_some());
        }
        passed(&results, measure)?;
        // The number of completions before the GPU died is not known.
        if !self.loses {
            let written = watch.traffic()?.completion_bytes(number);
            let judged = self.judge(results.completions, written);
            judged.map_err(anyhow::Error::msg)?;
        }
        Ok(CheckOutcome::Passed)
    }
}

/// A check that has been conducted, and the devices' counters during the part that is judged.
struct Conducted<'a> {
    results: Results,
    watch: TrafficWatch<'a>,
}

impl<'a> Conducted<'a> {
    /// Conducts `check`. Returns `None` if the guest has no tools root.
    fn of(
        check: &(impl TwoEnds + CheckKind),
        guest: &'a GuestContext,
    ) -> anyhow::Result<Option<Self>> {
        let Some(tools) = guest.tools()? else {
            return Ok(None);
        };
        let free = match check.kills() {
            Some(_) => Vec::new(),
            None => free_vram(check, guest)?,
        };
        let limit = guest.limit(check.seconds());
        let mut site = GuestSite {
            guest,
            tools,
            deadline: Instant::now() + limit,
            late: format!("the check {}", watchdog::too_slow(limit, check.seconds())),
            watch: TrafficWatch::new(guest),
            begun: None,
            loses: check.kills(),
        };
        let mut results = Results::of(check, &mut site);
        if results.failure.is_none() {
            let kept = free.into_iter();
            let mut kept = kept.map(|(gpu, before)| gpu.check_free_vram(before));
            let lost = kept.find_map(Result::err);
            results.failure = lost.map(|error| format!("{error:#}"));
        }
        Ok(Some(Self {
            results,
            watch: site.watch,
        }))
    }

    /// Judges the results of `check`, and the payload that the devices counted.
    fn judge(&self, check: &dyn TwoEnds, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let Self { results, watch } = self;
        watch.write_to(measure);
        results.write_to(measure, check);
        passed(results, measure)?;
        let counted = Counted {
            flows: &watch.flows()?,
            uncounted: &watch.uncounted(),
        };
        let judged = check.judge_payload(counted, results);
        judged.map_err(anyhow::Error::msg)?;
        Ok(CheckOutcome::Passed)
    }
}

/// Fails if one of the results is a failure.
fn passed(results: &Results, measure: &mut Measure) -> anyhow::Result<()> {
    measure.subtests.clone_from(&results.subtests);
    let failures = results.failures();
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Returns the free bytes of each GPU whose memory the ends use. A window shows only a part of its
/// GPU's memory.
fn free_vram<'g>(
    check: &dyn TwoEnds,
    guest: &'g GuestContext,
) -> anyhow::Result<Vec<(&'g Gpu, u64)>> {
    let ends = check.ends();
    let gpus = ends.iter().filter_map(|end| end.memory.gpu());
    let gpus = gpus.map(|gpu| guest.gpu(gpu));
    let gpus = gpus.filter(|gpu| !gpu.as_ref().is_ok_and(|gpu| gpu.window));
    gpus.map(|gpu| gpu.and_then(|gpu| Ok((gpu, gpu.free_vram()?))))
        .collect()
}

/// This guest, which has both ends.
struct GuestSite<'g, 'c> {
    guest: &'g GuestContext,
    tools: Tools,
    deadline: Instant,
    /// The reason why an end is abandoned at the deadline.
    late: String,
    watch: TrafficWatch<'g>,
    begun: Option<Begun>,
    loses: Option<&'c str>,
}

impl GuestSite<'_, '_> {
    fn start(&self, end: &EndSpec<'_>, bytes: u64) -> anyhow::Result<EndProcess> {
        let options = [
            ("--nic", self.guest.nic(end.nic)?.device),
            ("--memory", memory(self.guest, &end.memory)?),
            ("--size", bytes.to_string()),
        ];
        let command = self.tools.command(&tool_command("end", &options))?;
        EndProcess::start(end.nic, command, self.deadline, &self.late)
    }
}

impl Site for GuestSite<'_, '_> {
    fn start(&mut self, end: &EndSpec<'_>, bytes: u64) -> Step<Box<dyn StartedEnd>> {
        let started = GuestSite::start(self, end, bytes);
        let started = started.with_context(|| format!("the end of {}", end.nic));
        let started = started.map_err(|error| format!("{error:#}"))?;
        Ok(Box::new(started))
    }

    fn disk(&mut self, _nic: &str, disk: &str) -> Step<PathBuf> {
        let disk = self.guest.controller(disk);
        let node = disk.map(|disk| disk.disk.node.clone());
        node.map_err(|error| format!("{error:#}"))
    }

    fn kill(&mut self) -> io::Result<()> {
        let lost = self.loses.context("the check loses nothing of its own");
        let killed = lost.and_then(|lost| self.guest.launcher.kill_server(lost));
        killed.map_err(io::Error::other)
    }

    fn count(&mut self, moment: Moment) {
        match moment {
            Moment::Before => self.begun = Some(self.watch.begin()),
            Moment::After => {
                let begun = self.begun.take();
                begun.into_iter().for_each(|begun| self.watch.end(begun));
            }
        }
    }
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

/// Returns the program's name for this memory.
fn memory(guest: &GuestContext, memory: &RdmaMemory) -> anyhow::Result<String> {
    Ok(match memory {
        RdmaMemory::Vram(gpu) => guest.gpu(gpu)?.node().to_string(),
        RdmaMemory::GuestRam => "host".to_owned(),
    })
}
