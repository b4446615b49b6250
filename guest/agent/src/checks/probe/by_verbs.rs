//! An RDMA adapter as the client and a GPU as the provider, by a program with libibverbs. The
//! adapter moves data within the GPU's memory, so that all of its payload meets the provider's
//! memory.

use anyhow::{Context, bail, ensure};
use peerbar_report::{Probe, Transfer};

use super::pair::BYTES;
use crate::checks::rdma;
use crate::counters::TrafficWatch;
use crate::guest_context::GuestContext;

/// Returns the outcome of an RDMA write and an RDMA read within the provider's memory.
pub(super) fn run(
    guest: &GuestContext,
    probe: &Probe,
    watch: &mut TrafficWatch<'_>,
) -> anyhow::Result<(Transfer, Transfer)> {
    let tools = guest.required_tools()?;
    let tool = rdma::tool_command(
        "probe",
        &[
            ("--nic", guest.nic(&probe.client)?.device.clone()),
            ("--gpu", guest.gpu(&probe.provider)?.node().to_string()),
            ("--size", BYTES.to_string()),
        ],
    );
    let limit = guest.limit(probe.seconds);
    let ran = watch.watch(|| tools.run_program(&tool, limit, |line| guest.show(line)))?;
    ensure!(
        !ran.timed_out,
        "the program did not end within {} s and printed: {}",
        limit.as_secs(),
        ran.output
    );
    read(&ran.output)
}

/// Parses the two results that the program has printed, each a line of JSON.
fn read(output: &str) -> anyhow::Result<(Transfer, Transfer)> {
    let lines: Result<Vec<Transfer>, _> = output.lines().map(serde_json::from_str).collect();
    let results = lines.with_context(|| format!("the program printed: {output}"))?;
    match <[Transfer; 2]>::try_from(results) {
        Ok([written, read]) => Ok((written, read)),
        Err(others) => bail!("the program printed {} results, not 2", others.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_results_are_a_write_and_a_read() {
        let right = "{\"outcome\":\"right\"}\n";
        let failed = "{\"outcome\":\"failed\",\"errno\":22,\"message\":\"x\"}\n";
        let (written, back) = read(&format!("{right}{failed}")).unwrap();
        assert_eq!(written, Transfer::Right);
        assert!(matches!(
            back,
            Transfer::Failed {
                errno: Some(22),
                ..
            }
        ));
        for bad in [right, "", "Killed\n"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
