//! From a disk to a GPU, over the wire, to another GPU and to its disk.

use anyhow::{Context, ensure};
use peerbar_dma_log::{Completer, Direction};
use peerbar_report::{Measure, PayloadFlow, RdmaChain, RdmaChainSide, size_range};

use super::{Outcome, Run, rdma};
use crate::disk;
use crate::guest_context::GuestContext;

impl Run for RdmaChain {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<Outcome> {
        let (source, target) = (
            guest.controller(&self.from.disk)?,
            guest.controller(&self.to.disk)?,
        );
        measure.sizes = size_range(&self.sizes);
        let length = self.disk_bytes();
        let pattern = guest.fresh_pattern(source);
        disk::fill(
            &source.disk.open_direct()?,
            pattern,
            0,
            usize::try_from(length)?,
        )?;
        let output = match rdma::run(
            guest,
            "chain",
            &arguments(guest, self)?,
            self.seconds,
            measure,
        )? {
            Outcome::Said(output) => output,
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
        judge(&measure.flows, self, &uncounted, payload)?;
        Ok(Outcome::Passed)
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

/// Each byte passed each of the four steps once, between a device and a GPU's memory, and nothing else moved.
fn judge(
    flows: &[PayloadFlow],
    chain: &RdmaChain,
    uncounted: &[&str],
    payload: u64,
) -> anyhow::Result<()> {
    let RdmaChain { from, to, .. } = chain;
    let steps = [
        (&from.disk, Direction::Write, "write", &from.gpu),
        (&from.nic, Direction::Read, "read", &from.gpu),
        (&to.nic, Direction::Write, "write", &to.gpu),
        (&to.disk, Direction::Read, "read", &to.gpu),
    ];
    let mut counted: u64 = 0;
    for (device, direction, word, gpu) in steps {
        if uncounted.contains(&device.as_str()) {
            continue;
        }
        let of_step = flows.iter().filter(|flow| {
            flow.requester == *device
                && flow.completer == Completer::PeerBar
                && flow.direction == direction
        });
        let bytes = of_step.map(|flow| flow.bytes).fold(0, u64::saturating_add);
        ensure!(
            bytes == payload,
            "{device} was to {word} {payload} payload bytes of the memory of {gpu}; its counters show {bytes}"
        );
        counted = counted.saturating_add(bytes);
    }
    let all = flows.iter().map(|flow| flow.bytes);
    let all = all.fold(0, u64::saturating_add);
    ensure!(
        all == counted,
        "{} payload bytes moved beside the chain's: the devices' counters show {flows:?}",
        all.saturating_sub(counted)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::Route;

    use super::*;

    fn flow(requester: &str, completer: Completer, direction: Direction) -> PayloadFlow {
        PayloadFlow {
            requester: requester.to_owned(),
            completer,
            route: Route::Peer,
            direction,
            bytes: 100,
        }
    }

    fn chain() -> RdmaChain {
        let text = r#"{"from":{"disk":"d","gpu":"g","nic":"n"},"to":{"disk":"e","gpu":"h","nic":"m"},"sizes":[4096]}"#;
        serde_json::from_str(text).unwrap()
    }

    fn four_steps() -> Vec<PayloadFlow> {
        use Completer::PeerBar;
        use Direction::{Read, Write};
        let steps = [("d", Write), ("n", Read), ("m", Write), ("e", Read)];
        let steps = steps.map(|(device, direction)| flow(device, PeerBar, direction));
        steps.into()
    }

    #[test]
    fn each_step_counts_each_byte_once() {
        assert!(judge(&four_steps(), &chain(), &[], 100).is_ok());
        for missing in 0..4 {
            let mut flows = four_steps();
            let gone = flows.remove(missing);
            let error = judge(&flows, &chain(), &[], 100).unwrap_err().to_string();
            assert!(error.starts_with(&gone.requester), "{error}");
            assert!(error.ends_with("its counters show 0"), "{error}");
            let without = judge(&flows, &chain(), &[&gone.requester], 100);
            assert!(without.is_ok(), "{}", gone.requester);
        }
    }

    #[test]
    fn byte_beside_the_steps_fails_the_chain() {
        for other in [
            flow("d", Completer::GuestRam, Direction::Write),
            flow("g", Completer::OwnMemory, Direction::Read),
            flow("n", Completer::Unknown, Direction::Read),
            flow("n", Completer::PeerBar, Direction::Write),
        ] {
            let mut flows = four_steps();
            flows.push(other);
            let error = judge(&flows, &chain(), &[], 100).unwrap_err().to_string();
            assert!(
                error.starts_with("100 payload bytes moved beside"),
                "{error}"
            );
        }
    }
}
