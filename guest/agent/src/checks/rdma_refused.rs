//! Requests that an RDMA adapter must refuse.

use anyhow::{anyhow, ensure};
use peerbar_report::{Measure, RdmaRefused};

use super::{CheckOutcome, Run, rdma};
use crate::guest_context::GuestContext;

/// Start of the line in which the program reports the bytes that the adapter was permitted to write
/// and to read.
const PERMITTED: &str = "# permitted ";

impl Run for RdmaRefused {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let nic = guest.nic(&self.nic)?;
        let mut arguments = vec![("--nic", nic.device.clone())];
        let peer = guest.nic(self.asked())?;
        arguments.push(("--peer", peer.device.clone()));
        let gpu = self.gpu.as_ref().map(|gpu| guest.gpu(gpu)).transpose()?;
        arguments.extend(gpu.map(|gpu| ("--gpu", gpu.node().to_string())));
        let free = gpu.filter(|gpu| !gpu.window);
        let before = free.map(|gpu| gpu.free_vram()).transpose()?;
        let outcome = rdma::run(guest, "refused", &arguments, self.seconds, measure)?;
        if let (Some(gpu), Some(before)) = (free, before) {
            gpu.check_free_vram(before)?;
        }
        match outcome {
            CheckOutcome::Said(output) => {
                ensure!(!measure.subtests.is_empty(), "the program reported nothing");
                let [written, read] = rdma::figures(&output, PERMITTED)?;
                let judged = self.judge(&measure.flows, written, read);
                judged.map_err(|message| anyhow!(message))?;
                Ok(CheckOutcome::Passed)
            }
            other => Ok(other),
        }
    }
}
