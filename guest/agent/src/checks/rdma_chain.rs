//! From a disk to a GPU, over the wire, to another GPU and to its disk.

use anyhow::{Context, anyhow, ensure};
use peerbar_report::{Measure, RdmaChain, RdmaChainSide, size_range};

use super::{CheckOutcome, Run, rdma};
use crate::disk;
use crate::guest_context::GuestContext;

impl Run for RdmaChain {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let (source, target) = (
            guest.controller(&self.from.disk)?,
            guest.controller(&self.to.disk)?,
        );
        measure.sizes = size_range(&self.sizes);
        let length = self.disk_bytes();
        let pattern = guest.fresh_pattern(source);
        // The final content must differ from the content before.
        let other = guest.fresh_pattern(target);
        for (controller, pattern) in [(source, pattern), (target, other)] {
            let file = controller.disk.open_direct()?;
            disk::fill(&file, pattern, 0, usize::try_from(length)?)?;
        }
        let output = match rdma::run(
            guest,
            "chain",
            &arguments(guest, self)?,
            self.seconds,
            measure,
        )? {
            CheckOutcome::Said(output) => output,
            other => return Ok(other),
        };
        let (payload, seconds) = rdma::payload(&output)?;
        (measure.bytes, measure.seconds) = (payload, seconds);
        let seen = disk::read(&target.disk.open_direct()?, 0, usize::try_from(length)?);
        let seen = seen.with_context(|| format!("reading {} back", target.name))?;
        let verified = pattern.verify(0, &seen);
        verified.with_context(|| format!("the contents of {} are wrong", target.name))?;
        ensure!(
            payload == length,
            "the program says that it has moved {payload} bytes of {length}"
        );
        let uncounted = [source, target].into_iter().filter(|disk| disk.uncounted);
        let uncounted: Vec<&str> = uncounted.map(|disk| disk.name.as_str()).collect();
        let judged = self.judge(&measure.flows, &uncounted, payload);
        judged.map_err(|message| anyhow!(message))?;
        Ok(CheckOutcome::Passed)
    }
}

fn arguments(
    guest: &GuestContext,
    chain: &RdmaChain,
) -> anyhow::Result<[(&'static str, String); 7]> {
    let nic = |side: &RdmaChainSide| Ok::<_, anyhow::Error>(guest.nic(&side.nic)?.device.clone());
    let gpu =
        |side: &RdmaChainSide| Ok::<_, anyhow::Error>(guest.gpu(&side.gpu)?.node().to_string());
    let node = |side: &RdmaChainSide| {
        let node = &guest.controller(&side.disk)?.disk.node;
        Ok::<_, anyhow::Error>(node.to_string_lossy().into_owned())
    };
    let sizes: Vec<String> = chain.sizes.iter().map(u64::to_string).collect();
    Ok([
        ("--nic", nic(&chain.from)?),
        ("--gpu", gpu(&chain.from)?),
        ("--source", node(&chain.from)?),
        ("--peer", nic(&chain.to)?),
        ("--peer-gpu", gpu(&chain.to)?),
        ("--target", node(&chain.to)?),
        ("--sizes", sizes.join(",")),
    ])
}
