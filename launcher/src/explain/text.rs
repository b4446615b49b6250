//! An explanation for people.

use super::explanation::{Explanation, KernelDecision, MachineDecision, PathHop, Seen};
use super::twin;
use peerbar_lab::count::counted;
use peerbar_lab::size::human;

/// Returns `explanation` as lines of `width` columns.
pub(crate) fn text(explanation: &Explanation, width: usize) -> String {
    let rule = &explanation.rule;
    let head = format!(
        "{} to memory of {}: {}\n",
        explanation.client, explanation.provider, rule.verdict
    );
    let block = |word: &str, lines: &[String]| peerbar_p2p::block(word, lines, width);
    let kernel = explanation.kernel.as_ref();
    let changes = explanation.changes.iter();
    let changes = changes.map(|advice| format!("{}: {}", advice.change, advice.verdict));
    let blocks = [
        block("rule", &[format!("{} (Linux {})", rule.why, rule.release)]),
        block("path", &path(&rule.path)),
        block("kernel", &kernel.map(chosen).unwrap_or_default()),
        block(
            "machine",
            &explanation
                .machine
                .iter()
                .map(on_machine)
                .collect::<Vec<_>>(),
        ),
        block(
            "devices",
            &explanation.checks.iter().map(seen).collect::<Vec<_>>(),
        ),
        block("but", &explanation.notes),
        block("change", &changes.collect::<Vec<_>>()),
    ];
    head + &blocks.concat()
}

fn path(path: &[PathHop]) -> Vec<String> {
    let name = |hop: &PathHop| match &hop.address {
        Some(address) => format!("{} {address}", hop.name),
        None => hop.name.clone(),
    };
    let longest = path.iter().map(|hop| name(hop).chars().count()).max();
    let width = longest.unwrap_or_default();
    let line = |hop: &PathHop| {
        let id = hop.id.as_ref().map(|id| format!(", {id}"));
        let acs = hop.acs.as_ref().map(|acs| format!(", ACS: {acs}"));
        let mark = if hop.decides { "  <- decides" } else { "" };
        format!(
            "{:width$}  {}{}{}{mark}",
            name(hop),
            hop.kind,
            id.unwrap_or_default(),
            acs.unwrap_or_default()
        )
    };
    path.iter().map(line).collect()
}

fn chosen(kernel: &KernelDecision) -> Vec<String> {
    let choice = match (kernel.map_type, kernel.agrees, &kernel.unwatched) {
        (Some(map_type), Some(true), _) => format!("chose map type {map_type}, as the rule says"),
        (Some(map_type), ..) => {
            let chosen = kernel.chosen.map(|chosen| chosen.to_string());
            let word = chosen.unwrap_or_else(|| "unknown to the rule".to_owned());
            format!("DISAGREES with the rule: it chose map type {map_type}, {word}")
        }
        (None, _, Some(reason)) => format!("its decision was not seen: {reason}"),
        (None, _, None) => "was not asked about this pair".to_owned(),
    };
    let said = kernel
        .messages
        .iter()
        .map(|message| format!("said: {message}"));
    [choice].into_iter().chain(said).collect()
}

fn on_machine(machine: &MachineDecision) -> String {
    let (verdict, of) = (twin::word(machine.verdict), &machine.of);
    let condition = match machine.is_conditional {
        true => ", if no condition of `peerbar p2p` holds",
        false => "",
    };
    match machine.agrees {
        true => format!("{of}: {verdict}, as here{condition}"),
        false => format!("DIFFERS: {verdict} on the machine of {of}{condition}"),
    }
}

fn seen(check: &Seen) -> String {
    let routes = check.routes.iter().filter(|(_, bytes)| **bytes > 0);
    let routes: Vec<String> = routes
        .map(|(route, bytes)| format!("{} {}", human(*bytes), route.word()))
        .collect();
    let routes = match routes.as_slice() {
        [] => String::new(),
        _ => format!(" ({})", routes.join(", ")),
    };
    let bounced = check.bounced_bytes;
    let bounced = bounced.map_or_else(String::new, |bytes| format!(", {} bounced", human(bytes)));
    let of_all = match check.pairs {
        0 | 1 => String::new(),
        pairs => format!(" with any of {pairs} devices"),
    };
    let bytes = match (check.is_counted, check.direct_bytes) {
        (true, bytes) => format!("{} direct{of_all}{bounced}{routes}", human(bytes)),
        (false, 0) => "mapped, not counted".to_owned(),
        (false, _) => format!("mapped, not counted, and by messages{routes}"),
    };
    let failed = counted(check.failures, "request");
    format!(
        "{}, {}: {bytes}, {failed} failed",
        check.check, check.verdict
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use peerbar_report::{Completer, Direction, Measure, PayloadFlow, Route};

    use super::super::case::Case;
    use super::super::observed_guest::tests::root_ports_under;
    use super::super::pairs::Pair;
    use super::super::recorded::Recorded;
    use super::*;
    use peerbar_lab::exit::RunOutcome;
    use peerbar_lab::results::{CheckResult, CheckStatus};
    use peerbar_lab::scenario::Scenario;
    use peerbar_lab::verdict::RunVerdict;

    const SCENARIO: &str = r#"
name = "x"
machine = { cpu = "Haswell", iommu = "intel" }
[[nvme]]
name = "a"
cmb = "2M"
namespaces = [{ ram = "1M" }]
[[nvme]]
name = "b"
namespaces = [{ ram = "1M" }]
[[check]]
kind = "copy"
from = "b"
to = "a"
through = { p2pmem = "a" }
sizes = ["4K"]
offsets = [0]
"#;

    fn explained(map_type: u32) -> Explanation {
        explained_under("7.2.12", map_type)
    }

    fn explained_under(release: &str, map_type: u32) -> Explanation {
        let measure = Measure {
            flows: vec![PayloadFlow {
                requester: "b".to_owned(),
                completer: Completer::PeerBar,
                route: Route::Upstream,
                direction: Direction::Read,
                bytes: 4096,
            }],
            failures: 2,
            ..Measure::default()
        };
        let result = CheckResult {
            name: "copy".to_owned(),
            verdict: CheckStatus::Fail,
            measure,
            ..CheckResult::default()
        };
        let run = Recorded {
            verdict: RunVerdict {
                outcome: RunOutcome::Failed,
                reason: String::new(),
            },
            scenario: Scenario::parse("x.toml".as_ref(), SCENARIO.to_owned()).unwrap(),
            release: release.to_owned(),
            evidence: root_ports_under(release, ("GenuineIntel", 6), map_type),
            results: vec![result],
            across: Vec::new(),
        };
        let case = Case::of_run(run).unwrap();
        Explanation::of(&case, &Pair::of("a", "b")).unwrap()
    }

    #[test]
    fn device_whose_ids_only_its_server_knows_has_none() {
        let text =
            "name = \"x\"\n[[gpu]]\nname = \"g\"\n[[device]]\nname = \"d\"\nsocket = \"s\"\n";
        let scenario = Scenario::parse_interactive(Path::new("x.toml"), text).unwrap();
        let case = Case::of_scenario(scenario).unwrap();
        let explanation = Explanation::of(&case, &Pair::of("g", "d")).unwrap();
        let text = super::text(&explanation, usize::MAX);
        let mut hops = text.lines().filter(|line| line.ends_with("  endpoint"));
        let is_client = |line: &str| line.trim_start().starts_with("path     d ");
        assert!(hops.next().is_some_and(is_client), "{text}");
    }

    #[test]
    fn bytes_that_nobody_counted_are_not_said_to_be_none() {
        let check = Seen {
            check: "file".to_owned(),
            verdict: CheckStatus::Pass,
            is_counted: false,
            routes: BTreeMap::new(),
            direct_bytes: 0,
            bounced_bytes: Some(0),
            pairs: 1,
            failures: 0,
        };
        let text = "file, pass: mapped, not counted, 0 requests failed";
        assert_eq!(seen(&check), text);
        let some = Seen {
            routes: BTreeMap::from([(Route::Peer, 4096)]),
            direct_bytes: 4096,
            ..check
        };
        let text =
            "file, pass: mapped, not counted, and by messages (4 KiB peer), 0 requests failed";
        assert_eq!(seen(&some), text);
    }

    #[test]
    fn bytes_that_may_be_of_several_pairs_are_said_to_be_so() {
        let check = Seen {
            check: "rdma".to_owned(),
            verdict: CheckStatus::Pass,
            is_counted: true,
            routes: BTreeMap::new(),
            direct_bytes: 4096,
            bounced_bytes: None,
            pairs: 2,
            failures: 0,
        };
        let text = "rdma, pass: 4 KiB direct with any of 2 devices, 0 requests failed";
        assert_eq!(seen(&check), text);
    }

    #[test]
    fn a_refusal_is_explained_from_end_to_end() {
        let expected = "\
b to memory of a: not supported
  rule     no bridge is above both, but host bridge pci0000:00 (8086:29c0) is not on the kernel's list, nor is the processor \
an AMD Zen or later (Linux 7.2)
  path     b 0000:02:00.0       endpoint, 1b36:0010
           root.b 0000:00:03.0  root port, 1b36:000c, ACS: P2P request redirect, P2P completion redirect
           pci0000:00           host bridge, 8086:29c0  <- decides
           root.a 0000:00:02.0  root port, 1b36:000c, ACS: P2P request redirect, P2P completion redirect
           a 0000:01:00.0       endpoint, 1b36:0010
  kernel   chose map type 2, as the rule says
           said: nvme 0000:02:00.0: cannot be used for peer-to-peer DMA as the client and provider (0000:01:00.0) do not share
  devices  copy, fail: 4 KiB direct, 0 B bounced (4 KiB upstream), 2 requests failed
  change   in [machine]: cpu = \"EPYC\": through host bridge (IOVA)
           [[switch]] name = \"switch0\", in [[nvme]] a and [[nvme]] b: below = \"switch0\": bus address
";
        assert_eq!(text(&explained(2), usize::MAX), expected);
    }

    #[test]
    fn narrow_terminal_has_no_longer_line() {
        let text = text(&explained(2), 80);
        let long = text.lines().find(|line| line.chars().count() > 80);
        assert_eq!(long, None, "{text}");
    }

    #[test]
    fn kernel_newer_than_the_rule_is_explained_with_a_note() {
        let note = "Linux 99.0 is newer than Linux ";
        let text = |explanation| text(&explanation, usize::MAX);
        let newer = text(explained_under("99.0.1-next", 2));
        assert!(newer.contains(note), "{newer}");
        assert!(newer.contains("chose map type 2, as the rule says"));
        assert!(!text(explained(2)).contains(note));
    }

    #[test]
    fn map_type_is_read_as_the_kernel_numbers_it() {
        let older = |map_type| text(&explained_under("6.12.117", map_type), usize::MAX);
        assert!(older(1).contains("chose map type 1, as the rule says"));
        let line = "DISAGREES with the rule: it chose map type 2, bus address\n";
        assert!(older(2).contains(line), "{}", older(2));
        assert!(older(0).contains("map type 0, unknown to the rule\n"));
    }

    #[test]
    fn kernel_unlike_its_rule_is_reported() {
        let explanation = explained(3);
        assert!(explanation.disagrees());
        let line = "  kernel   DISAGREES with the rule: it chose map type 3, bus address\n";
        let text = text(&explanation, usize::MAX);
        assert!(text.contains(line), "{text}");
    }
}
