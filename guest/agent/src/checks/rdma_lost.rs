//! A surprise removal during an RDMA transfer: the server of one of its devices is killed while
//! requests are in progress.

use anyhow::{Context, anyhow, ensure};
use peerbar_report::{CheckKind, Measure, RdmaLost, RdmaPart};

use super::{CheckOutcome, Run, rdma};
use crate::counters::TrafficWatch;
use crate::guest_context::GuestContext;
use crate::kmsg::Expected;

/// Start of the line in which the program reports the bytes of the requests that succeeded.
const ACKNOWLEDGED: &str = "# acknowledged ";

impl Run for RdmaLost {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let part = match self.part().context("the check loses nothing of its own")? {
            RdmaPart::Peer => "peer",
            RdmaPart::Source => "source",
            RdmaPart::Target => "target",
            RdmaPart::Fabric => "fabric",
        };
        let arguments = [
            ("--nic", guest.nic(&self.nic)?.device.clone()),
            ("--peer", guest.nic(&self.peer)?.device.clone()),
            ("--from", rdma::memory(guest, &self.from)?),
            ("--to", rdma::memory(guest, &self.to)?),
            ("--loses", part.to_owned()),
            ("--by", self.by.to_string()),
        ];
        let tool = rdma::tool_command("lost", &arguments);
        let mut watch = TrafficWatch::new(guest);
        let doomed = (&*self.loses, self.seconds);
        let ran = watch.watch(|| rdma::run_and_kill(guest, &tool, doomed, measure))?;
        ensure!(
            !measure.subtests.is_empty(),
            "the program reported nothing: {}",
            ran.output
        );
        let [acknowledged] = rdma::figures(&ran.output, ACKNOWLEDGED)?;
        // The program also tries the remaining devices, with guest RAM.
        let judged = self.judge(&watch.flows()?, acknowledged, true);
        judged.map_err(|message| anyhow!(message))?;
        Ok(CheckOutcome::Passed)
    }

    fn expected_log(&self) -> Expected<'_> {
        Expected {
            warnings: CheckKind::warnings(self),
            ..Expected::default()
        }
    }
}
