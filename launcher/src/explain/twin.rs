//! The verdicts of a real machine, of the rule and of the guest's kernel in the machine's twin, side
//! by side.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use peerbar_lab::scenario::Twin;
use peerbar_p2p::{ranges, wrap};
use peerbar_rule::Way;

use super::explanation::Explanation;

/// The verdicts of machine and rule, the best first, the kernel's if it is not the rule's, and whether
/// the machine's depends on facts that the source lacks.
type Verdicts = (Reverse<Way>, Reverse<Way>, Option<&'static str>, bool);

/// Pairs with the same verdicts.
#[derive(Default)]
struct Group<'a> {
    /// The clients of each provider.
    clients: BTreeMap<&'a str, Vec<&'a str>>,
    /// Number of pairs on which the guest's kernel has decided.
    decided: usize,
}

/// Width of a column: that of the longest verdict with a question mark.
const COLUMN: usize = 21;

/// Returns the verdicts on all pairs of `twin`, and its differences from the machine, in lines of
/// `width` columns.
pub(super) fn table(twin: &Twin, explanations: &[Explanation], width: usize) -> String {
    let mut groups: BTreeMap<Verdicts, Group<'_>> = BTreeMap::new();
    let mut clients: BTreeMap<&str, usize> = BTreeMap::new();
    for explanation in explanations {
        let Some(machine) = &explanation.machine else {
            continue;
        };
        let verdicts = (
            Reverse(machine.verdict),
            Reverse(explanation.rule.verdict.into()),
            other_choice(explanation),
            machine.is_conditional,
        );
        let group = groups.entry(verdicts).or_default();
        let of_provider = group.clients.entry(&explanation.provider).or_default();
        of_provider.push(&explanation.client);
        let kernel = explanation.kernel.as_ref();
        group.decided += usize::from(kernel.is_some_and(|kernel| kernel.map_type.is_some()));
        *clients.entry(&explanation.provider).or_default() += 1;
    }
    let mut text = format!(
        "the twin of {}:\n  {:COLUMN$}{:COLUMN$}{:COLUMN$}pairs\n",
        twin.of, "machine", "rule", "kernel"
    );
    for (verdicts, group) in &groups {
        text += &group.row(verdicts);
        for line in group.pairs(&clients) {
            text += &wrapped(&line, 4, width);
        }
    }
    for difference in &twin.differences {
        text += &wrapped(&format!("unlike the machine: {difference}"), 2, width);
    }
    text + "`peerbar explain PROVIDER CLIENT` explains a pair.\n"
}

/// Returns a line that is indented by `indent` columns, and more where it continues.
fn wrapped(line: &str, indent: usize, width: usize) -> String {
    let room = width.saturating_sub(indent).saturating_sub(2);
    let lines = wrap(line, room).join(&format!("\n  {:indent$}", ""));
    format!("{:indent$}{lines}\n", "")
}

/// Returns the kernel's choice if it is not the rule's.
fn other_choice(explanation: &Explanation) -> Option<&'static str> {
    let kernel = explanation.kernel.as_ref();
    let kernel = kernel.filter(|kernel| kernel.agrees == Some(false))?;
    Some(
        kernel
            .chosen
            .map_or("unknown", |chosen| word(chosen.into())),
    )
}

/// Returns a verdict in words that fit a column.
pub(super) fn word(verdict: Way) -> &'static str {
    match verdict {
        Way::BusAddress => "bus address",
        Way::ThroughHostBridge => "through host bridge",
        Way::NotSupported => "not supported",
    }
}

impl Group<'_> {
    fn row(&self, (Reverse(machine), Reverse(rule), kernel, is_conditional): &Verdicts) -> String {
        let count: usize = self.clients.values().map(Vec::len).sum();
        let seen = match (kernel, self.decided) {
            (Some(kernel), _) => kernel,
            (None, 0) => "-",
            (None, _) => word(*rule),
        };
        let decided = match self.decided {
            0 => String::new(),
            all if all == count => String::new(),
            some => format!(", the kernel was asked about {some}"),
        };
        let mark = match machine == rule && kernel.is_none() {
            true => "",
            false => "  DIFFERS",
        };
        let condition = if *is_conditional { "?" } else { "" };
        let (own, of_rule) = (format!("{}{condition}", word(*machine)), word(*rule));
        format!("  {own:COLUMN$}{of_rule:COLUMN$}{seen:COLUMN$}{count}{decided}{mark}\n")
    }

    /// Returns the pairs as lines. A provider with all of its `clients` here names none of them.
    fn pairs(&self, clients: &BTreeMap<&str, usize>) -> Vec<String> {
        let is_whole = |provider: &str, here: &[&str]| clients.get(provider) == Some(&here.len());
        let (whole, parts): (Vec<_>, Vec<_>) = self
            .clients
            .iter()
            .partition(|(provider, here)| is_whole(provider, here));
        let names: Vec<&str> = whole.into_iter().map(|(provider, _)| *provider).collect();
        let names = ranges(&names).join(", ");
        let whole = (!names.is_empty()).then(|| format!("memory of {names}: DMA of all others"));
        let parts = parts.into_iter().map(|(provider, here)| {
            let clients = ranges(here).join(", ");
            format!("memory of {provider}: DMA of {clients}")
        });
        whole.into_iter().chain(parts).collect()
    }
}

#[cfg(test)]
mod tests {
    use peerbar_lab::scenario::Scenario;
    use peerbar_rule::MapType;

    use super::super::case::Case;
    use super::super::explanation::KernelDecision;
    use super::super::pairs;
    use super::*;

    const SCENARIO: &str = r#"
name = "x"
machine.cpu = "Haswell"
[[switch]]
name = "s0"
[[gpu]]
name = "gpu0"
below = "s0"
[[nvme]]
name = "near"
below = "s0"
namespaces = [{ ram = "1M" }]
[[nvme]]
name = "far"
namespaces = [{ ram = "1M" }]
[twin]
of = "server.txt"
differences = ["The guest has one NUMA node."]
verdicts.gpu0 = { bus-address = ["near"], through-host-bridge = ["far"] }
conditional.gpu0 = ["far"]
"#;

    fn shown(kernel: Option<MapType>, width: usize) -> String {
        let scenario = Scenario::parse_interactive("x.toml".as_ref(), SCENARIO).unwrap();
        let case = Case::of_scenario(scenario).unwrap();
        let all = pairs::all(&case.scenario);
        let explanations = all.iter().map(|pair| {
            let explanation = Explanation::of(&case, pair).unwrap();
            let rule = explanation.rule.verdict;
            let decision = |chosen| KernelDecision {
                map_type: Some(2),
                chosen: Some(chosen),
                agrees: Some(chosen == rule),
                unwatched: None,
                messages: Vec::new(),
            };
            Explanation {
                kernel: kernel.map(decision),
                ..explanation
            }
        });
        let explanations: Vec<Explanation> = explanations.collect();
        table(case.scenario.twin.as_ref().unwrap(), &explanations, width)
    }

    #[test]
    fn verdicts_of_machine_rule_and_kernel_are_side_by_side() {
        let expected = "\
the twin of server.txt:
  machine              rule                 kernel               pairs
  bus address          bus address          -                    1
    memory of gpu0: DMA of near
  through host bridge? not supported        -                    1  DIFFERS
    memory of gpu0: DMA of far
  unlike the machine: The guest has one NUMA node.
`peerbar explain PROVIDER CLIENT` explains a pair.
";
        assert_eq!(shown(None, usize::MAX), expected);
    }

    #[test]
    fn narrow_terminal_has_no_longer_line() {
        let text = shown(None, 30);
        let folded = "\n  unlike the machine: The\n    guest has one NUMA node.\n";
        assert!(text.contains(folded), "{text}");
    }

    #[test]
    fn kernel_that_disagrees_with_the_rule_is_marked() {
        let text = shown(Some(MapType::NotSupported), usize::MAX);
        let differs =
            "  bus address          bus address          not supported        1  DIFFERS\n";
        assert!(text.contains(differs), "{text}");
        let other = "  through host bridge? not supported        not supported        1  DIFFERS\n";
        assert!(text.contains(other), "{text}");
    }
}
