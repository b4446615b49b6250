//! Runs a command in the tools root, and judges its output.

use peerbar_report::{Command, Measure};

use super::expectation::{self, Work};
use super::{CheckOutcome, Run};
use crate::guest_context::GuestContext;
use crate::kmsg::Expected;

impl Run for Command {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let Some(tools) = guest.tools()? else {
            return Ok(CheckOutcome::without_tools());
        };
        let line = guest.placeholders().fill_in(&self.run)?;
        let work = Work {
            what: "the command",
            shown: &line,
            expected: &self.expected,
            seconds: self.seconds,
        };
        expectation::run(guest, &work, measure, |limit| {
            tools.run(&line, limit, |line| guest.show(line))
        })
    }

    fn expected_log(&self) -> Expected<'_> {
        expectation::log(&self.expected)
    }
}
