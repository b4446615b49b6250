//! Sends, writes and reads between queue pairs of RDMA adapters.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use peerbar_dma_log::Completer;
use peerbar_report::{Expectation, Measure, PayloadFlow, Rdma, RdmaMemory};

use super::expectation::{self, Work};
use super::layout::size_range;
use super::{Outcome, Run};
use crate::guest_context::GuestContext;
use crate::tools::Words;

/// Where the launcher puts the programs of this project.
const FOLDER: &str = "/opt/peerbar";
/// The line in which the program reports what it has moved.
const PAYLOAD: &str = "# payload ";

impl Run for Rdma {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<Outcome> {
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
            Outcome::Said(output) => output,
            other => return Ok(other),
        };
        let payload = payload(&output)?;
        measure.bytes = payload;
        let sides = [&self.from, &self.to];
        let adapters = [self.nic.as_str(), &self.peer];
        judge(&measure.flows, &adapters, sides, payload)?;
        Ok(Outcome::Passed)
    }
}

/// Runs a command of the program of the verbs, and returns what it printed.
pub(super) fn run(
    guest: &GuestContext,
    command: &str,
    arguments: &[(&str, String)],
    seconds: Option<u32>,
    measure: &mut Measure,
) -> anyhow::Result<Outcome> {
    let Some(tools) = guest.tools()? else {
        return Ok(Outcome::Skipped("the plan has no tools root".to_owned()));
    };
    let options = arguments.iter();
    let options = options.flat_map(|(option, value)| [(*option).to_owned(), value.clone()]);
    let words = Words {
        program: format!("{FOLDER}/peerbar-verbs"),
        folder: "/".to_owned(),
        arguments: [command.to_owned()].into_iter().chain(options).collect(),
        environment: Vec::new(),
    };
    let shown = format!("{} {}", words.program, words.arguments.join(" "));
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
        tools.run_program(&words, limit, |line| guest.show(line))
    })
}

/// What the program calls this memory.
fn memory(guest: &GuestContext, memory: &RdmaMemory) -> anyhow::Result<String> {
    Ok(match memory {
        RdmaMemory::Vram(gpu) => guest.gpu(gpu)?.node().to_string(),
        RdmaMemory::GuestRam => "host".to_owned(),
    })
}

/// The payload bytes that the program says it has moved.
fn payload(output: &str) -> anyhow::Result<u64> {
    let line = output
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix(PAYLOAD));
    let bytes = line.and_then(|number| number.trim().parse().ok());
    bytes.with_context(|| format!("the program did not print {PAYLOAD:?} and a number"))
}

/// Each byte was read once from one side's memory and written once to the other's. Nothing else was moved by the `adapters`.
fn judge(
    flows: &[PayloadFlow],
    adapters: &[&str],
    sides: [&RdmaMemory; 2],
    payload: u64,
) -> anyhow::Result<()> {
    ensure!(payload > 0, "the program has moved nothing");
    let mut moved: BTreeMap<bool, u64> = BTreeMap::new();
    for flow in flows {
        let by_adapter = adapters.contains(&flow.requester.as_str());
        if by_adapter {
            let is_ram = flow.completer == Completer::GuestRam;
            let sum = moved.entry(is_ram).or_default();
            *sum = sum.saturating_add(flow.bytes);
        }
    }
    let in_ram = sides.iter().filter(|side| side.gpu().is_none()).count();
    let in_ram = payload.saturating_mul(u64::try_from(in_ram)?);
    let in_vram = payload.saturating_mul(2).saturating_sub(in_ram);
    let seen = |is_ram| moved.get(&is_ram).copied().unwrap_or(0);
    ensure!(
        seen(true) == in_ram && seen(false) == in_vram,
        "{payload} payload bytes were to be moved, with {in_ram} read from or written to guest RAM, and {in_vram} from or to VRAM; \
         the counters of {} show {} with guest RAM, and {} with a device's memory",
        adapters.join(" and "),
        seen(true),
        seen(false)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Direction, Route};

    use super::*;

    fn flow(requester: &str, completer: Completer, bytes: u64) -> PayloadFlow {
        PayloadFlow {
            requester: requester.to_owned(),
            completer,
            route: Route::Peer,
            direction: Direction::Read,
            bytes,
        }
    }

    #[test]
    fn payload_is_the_last_line_of_its_kind() {
        assert_eq!(payload("ok 1 x\n# payload 3\n# payload 64\n").unwrap(), 64);
        assert!(payload("ok 1 x\n# payload many\n").is_err());
    }

    #[test]
    fn vram_to_vram_leaves_guest_ram_out() {
        let vram = RdmaMemory::Vram("g".to_owned());
        let direct = [
            flow("a", Completer::PeerBar, 100),
            flow("b", Completer::PeerBar, 100),
        ];
        let judged =
            |flows: &[PayloadFlow], to: &RdmaMemory| judge(flows, &["a", "b"], [&vram, to], 100);
        assert!(judged(&direct, &vram).is_ok());
        let bounced = [direct[0].clone(), flow("b", Completer::GuestRam, 100)];
        let error = judged(&bounced, &vram).unwrap_err().to_string();
        assert!(
            error.ends_with("a and b show 100 with guest RAM, and 100 with a device's memory"),
            "{error}"
        );
        assert!(judged(&bounced, &RdmaMemory::GuestRam).is_ok());
        let others = [
            flow("a", Completer::PeerBar, 100),
            flow("c", Completer::PeerBar, 100),
        ];
        assert!(judged(&others, &vram).is_err());
        assert!(judge(&[], &["a"], [&vram, &vram], 0).is_err());
    }
}
