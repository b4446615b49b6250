//! Sends, writes and reads between queue pairs of RDMA adapters.

use anyhow::{Context, bail, ensure};
use peerbar_dma_log::{Completer, Direction};
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
        let (payload, seconds) = payload(&output)?;
        (measure.bytes, measure.seconds) = (payload, seconds);
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

/// The payload bytes that the program says it has moved, and in how many seconds.
fn payload(output: &str) -> anyhow::Result<(u64, f64)> {
    let mut lines = output.lines().rev();
    let line = lines.find_map(|line| line.strip_prefix(PAYLOAD)?.strip_suffix(" s"));
    let figures = line.and_then(|line| {
        let (bytes, seconds) = line.split_once(" in ")?;
        Some((bytes.parse().ok()?, seconds.parse().ok()?))
    });
    figures.with_context(|| format!("the program did not print {PAYLOAD:?} with bytes and seconds"))
}

/// Each byte was read once from one side's memory and written once to the other's: by the adapters' own count, in each
/// direction, and of the memory that the sides are.
fn judge(
    flows: &[PayloadFlow],
    adapters: &[&str],
    sides: [&RdmaMemory; 2],
    payload: u64,
) -> anyhow::Result<()> {
    ensure!(payload > 0, "the program has moved nothing");
    let own = flows.iter();
    let own: Vec<&PayloadFlow> = own
        .filter(|flow| adapters.contains(&flow.requester.as_str()))
        .collect();
    let known = [Completer::GuestRam, Completer::PeerBar];
    if let Some(stray) = own.iter().find(|flow| !known.contains(&flow.completer)) {
        bail!(
            "{} moved {} payload bytes with memory that is neither guest RAM nor a GPU's: {:?}",
            stray.requester,
            stray.bytes,
            stray.completer
        );
    }
    let sum = |wanted: &dyn Fn(&PayloadFlow) -> bool| {
        let bytes = own
            .iter()
            .filter(|flow| wanted(flow))
            .map(|flow| flow.bytes);
        bytes.fold(0, u64::saturating_add)
    };
    let read = sum(&|flow| flow.direction == Direction::Read);
    let written = sum(&|flow| flow.direction == Direction::Write);
    ensure!(
        read == payload && written == payload,
        "{payload} payload bytes were to be moved; the counters of {} show {read} read and {written} written",
        adapters.join(" and ")
    );
    let sides_in_ram = sides.iter().filter(|side| side.gpu().is_none()).count();
    let in_ram = payload.saturating_mul(u64::try_from(sides_in_ram)?);
    let with_ram = sum(&|flow| flow.completer == Completer::GuestRam);
    ensure!(
        with_ram == in_ram,
        "{payload} payload bytes were to be moved, with {in_ram} read from or written to guest RAM; the counters of {} show \
         {with_ram} with guest RAM, and {} with a device's memory",
        adapters.join(" and "),
        sum(&|flow| flow.completer == Completer::PeerBar)
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

    #[test]
    fn payload_is_the_last_line_of_its_kind() {
        let last = "ok 1 x\n# payload 3 in 1.0 s\n# payload 64 in 0.5 s\n";
        assert_eq!(payload(last).unwrap(), (64, 0.5));
        for other in ["# payload many in 1.0 s", "# payload 64"] {
            assert!(payload(other).is_err(), "{other}");
        }
    }

    #[test]
    fn vram_to_vram_leaves_guest_ram_out() {
        use Completer::{GuestRam, OwnMemory, PeerBar, Unknown};
        use Direction::{Read, Write};

        let vram = RdmaMemory::Vram("g".to_owned());
        let judged = |read: PayloadFlow, written: PayloadFlow, to: &RdmaMemory| {
            let judged = judge(&[read, written], &["a", "b"], [&vram, to], 100);
            judged.map_err(|error| error.to_string())
        };
        let read = || flow("a", PeerBar, Read);
        assert_eq!(judged(read(), flow("b", PeerBar, Write), &vram), Ok(()));
        let in_ram = || flow("b", GuestRam, Write);
        assert_eq!(judged(read(), in_ram(), &RdmaMemory::GuestRam), Ok(()));
        for (written, wanted) in [
            (
                in_ram(),
                "a and b show 100 with guest RAM, and 100 with a device's memory",
            ),
            (
                flow("b", PeerBar, Read),
                "a and b show 200 read and 0 written",
            ),
            (
                flow("c", PeerBar, Write),
                "a and b show 100 read and 0 written",
            ),
            (
                flow("b", Unknown, Write),
                "neither guest RAM nor a GPU's: Unknown",
            ),
            (
                flow("b", OwnMemory, Write),
                "neither guest RAM nor a GPU's: OwnMemory",
            ),
        ] {
            let error = judged(read(), written, &vram).unwrap_err();
            assert!(error.ends_with(wanted), "{error}");
        }
        assert!(judge(&[], &["a"], [&vram, &vram], 0).is_err());
    }
}
