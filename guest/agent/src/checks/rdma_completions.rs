//! Completion queues of an RDMA adapter in a program's buffer.

use anyhow::{Context as _, anyhow, ensure};
use peerbar_report::{Measure, RdmaCompletions};

use super::{CheckOutcome, Run, rdma};
use crate::counters::TrafficWatch;
use crate::guest_context::GuestContext;

/// Start of the line in which the program reports the number of its completions.
const COMPLETIONS: &str = "# completions ";

impl Run for RdmaCompletions {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let nic = guest.nic(&self.nic)?;
        let arguments = [
            ("--nic", nic.device.clone()),
            ("--memory", rdma::memory(guest, &self.memory)?),
        ];
        let mut tool = rdma::tool_command("completions", &arguments);
        let mut watch = TrafficWatch::new(guest);
        let ran = if self.loses {
            tool.arguments.push("--loses".to_owned());
            let gpu = self.memory.gpu().context("the check loses no GPU")?;
            // The number of completions before the GPU died is not known.
            rdma::run_and_kill(guest, &tool, (gpu, self.seconds), measure)?
        } else {
            let tools = guest.required_tools()?;
            let limit = guest.limit(self.seconds);
            let ran = watch.watch(|| tools.run_program(&tool, limit, |line| guest.show(line)))?;
            watch.write_completions_to(measure, nic.number, self.memory.gpu().is_some());
            rdma::judge_report(&ran, measure)?;
            ran
        };
        ensure!(
            !measure.subtests.is_empty(),
            "the program reported nothing: {}",
            ran.output
        );
        if !self.loses {
            let [completed] = rdma::figures(&ran.output, COMPLETIONS)?;
            let written = watch.traffic()?.completion_bytes(nic.number);
            let judged = self.judge(completed, written);
            judged.map_err(|message| anyhow!(message))?;
        }
        Ok(CheckOutcome::Passed)
    }
}
