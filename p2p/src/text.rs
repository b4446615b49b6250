//! Verdicts for a terminal.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::changes::Change;
use crate::labels::Labels;
use crate::lines::{MARGIN, block, block_unwrapped, wrap};
use crate::machine::{Iommu, Machine};
use crate::matrix::{Cell, Device, Matrix, left_out_note};
use crate::pair::{Kernel, Pair, PathHop};
use crate::size::human;
use crate::warnings;

/// Why there may be no pair.
pub(crate) const NO_PAIR: &str = "\
No pair: it needs a device with memory for peers, and another device. Memory is a prefetchable \
64-bit BAR of 16 MiB or more of any device except a network adapter.
";
/// The words of the kernel's table.
const KERNEL_LEGEND: [&str; 2] = [
    "bus: direct, by bus address; host: through the host bridge; no: refused",
    "?: depends on what the source does not show",
];
/// The words of the wire's table.
const WIRE_LEGEND: [&str; 2] = [
    "PIX: at most one switch; PXB: several; PHB: the root complex; NODE: host bridges of one NUMA node",
    "SYS: two NUMA nodes; ^: ACS redirects to the root complex",
];
/// Width of a text that is not for a terminal, and of a text for any wider terminal.
pub(crate) const WIDTH: usize = 100;

/// Returns the matrix of `machine` as text, in lines of `width` columns. It lacks the devices
/// `left_out`.
pub(crate) fn matrix(
    machine: &Machine,
    matrix: &Matrix,
    left_out: &[Device],
    width: usize,
) -> String {
    let mut text = host(machine);
    text.push('\n');
    if !matrix.devices.is_empty() {
        text.push_str(&devices(&matrix.devices, width));
        if let Some(note) = left_out_note(left_out) {
            let lines = wrap(&note, width.saturating_sub(2));
            text.extend(lines.iter().map(|line| format!("  {line}\n")));
        }
        text.push('\n');
    }
    text.push_str(&verdicts(matrix, width));
    let refusals: Vec<String> = machine
        .refusals()
        .take(3)
        .map(ToString::to_string)
        .collect();
    if !refusals.is_empty() {
        text.push('\n');
        text.push_str(&block("log", &refusals, width));
    }
    text.push_str(&notes(machine, width));
    text
}

/// Returns the verdicts on all pairs: two tables, or lists if a table is too wide.
fn verdicts(matrix: &Matrix, width: usize) -> String {
    let kernel = table(matrix, Cell::kernel_word);
    let (kernel_legend, wire_legend) = (legend(KERNEL_LEGEND, width), legend(WIRE_LEGEND, width));
    if matrix.pairs.is_empty() {
        wrap(NO_PAIR, width).join("\n")
    } else if matrix.pairs.iter().all(|cell| cell.way.is_none()) {
        "No verdict: the source does not show the bridges above these devices.\n".to_owned()
    } else if kernel.lines().all(|line| line.chars().count() <= width) {
        let wire = table(matrix, Cell::wire_word);
        format!(
            "Rows own the memory, columns issue the DMA. Linux (p2pdma) says:\n{kernel}{kernel_legend}\n\
             The way on the wire, in the words of `nvidia-smi topo`:\n{wire}{wire_legend}"
        )
    } else {
        let head =
            "Linux (p2pdma) on DMA to the memory of each device, and the distance on the wire:";
        let (head, lists) = (wrap(head, width).join("\n"), lists(matrix, width));
        format!("{head}\n{lists}{kernel_legend}{wire_legend}")
    }
}

/// Returns the lines of a legend, indented.
fn legend(lines: [&str; 2], width: usize) -> String {
    let wrapped = lines
        .into_iter()
        .flat_map(|line| wrap(line, width.saturating_sub(2)));
    wrapped.map(|line| format!("  {line}\n")).collect()
}

/// Returns a line about processor, kernel and IOMMU.
pub(crate) fn host(machine: &Machine) -> String {
    let host = &machine.host;
    let cpu = host
        .processor()
        .unwrap_or_else(|| "unknown processor".to_owned());
    let kernel = match &host.release {
        Some(release) => format!("Linux {release}"),
        None => format!("Linux {} assumed", machine.release()),
    };
    let iommu = match host.iommu {
        Some(Iommu::Translates) => "IOMMU translates",
        Some(Iommu::PassThrough) => "IOMMU passes addresses through",
        Some(Iommu::Off) => "no IOMMU",
        None if machine
            .functions
            .values()
            .any(|function| function.iommu_group.is_some()) =>
        {
            "IOMMU on"
        }
        None => "IOMMU unknown",
    };
    format!("{cpu}, {kernel}, {iommu}\n")
}

fn devices(devices: &[Device], columns: usize) -> String {
    let width = devices
        .iter()
        .map(|device| device.label.len())
        .max()
        .unwrap_or_default();
    let line = |device: &Device| {
        let memory = device
            .memory
            .map(|size| format!(", {} of memory", human(size)));
        let node = device.numa_node.map(|node| format!(", NUMA node {node}"));
        let driver = device.driver.as_ref().map(|driver| format!(", {driver}"));
        let facts = [memory, node, driver]
            .into_iter()
            .flatten()
            .collect::<String>();
        let start = format!("  {:width$}  {}  ", device.label, device.address);
        let room = columns
            .saturating_sub(start.len())
            .saturating_sub(facts.len());
        let words = cut(&device.description, room) + &facts;
        format!("{start}{}\n", words.trim_start_matches(", "))
    };
    devices.iter().map(line).collect()
}

/// Cuts `text` to `width` characters.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Returns a table with providers as rows and clients as columns.
fn table(matrix: &Matrix, word: impl Fn(&Cell) -> String) -> String {
    let cells: BTreeMap<_, _> = matrix
        .pairs
        .iter()
        .map(|cell| ((cell.provider, cell.client), cell))
        .collect();
    let header: Vec<&str> = matrix
        .devices
        .iter()
        .map(|device| device.label.as_str())
        .collect();
    let first = header
        .iter()
        .map(|label| label.len())
        .max()
        .unwrap_or_default();
    let mut text = format!("  {:first$}", "");
    for label in &header {
        let _ = write!(text, " {label:>5}");
    }
    text.push('\n');
    for provider in matrix.devices.iter().filter(|device| device.is_provider) {
        let _ = write!(text, "  {:first$}", provider.label);
        for client in &matrix.devices {
            let width = client.label.len().max(5);
            let cell = cells.get(&(provider.address, client.address));
            let _ = write!(
                text,
                " {:>width$}",
                cell.map_or_else(|| "-".to_owned(), |cell| word(cell))
            );
        }
        text.push('\n');
    }
    text
}

/// Returns for each provider its clients, those with equal verdicts together.
fn lists(matrix: &Matrix, width: usize) -> String {
    let labels: BTreeMap<_, _> = matrix
        .devices
        .iter()
        .map(|device| (device.address, device.label.as_str()))
        .collect();
    let mut text = String::new();
    let of_one_provider = |one: &Cell, next: &Cell| one.provider == next.provider;
    for cells in matrix.pairs.chunk_by(of_one_provider) {
        let provider = cells.first().and_then(|cell| labels.get(&cell.provider));
        let _ = writeln!(text, "  {}", provider.copied().unwrap_or_default());
        let mut groups: Vec<((String, String), Vec<&str>)> = Vec::new();
        for cell in cells {
            let key = (cell.kernel_word(), cell.wire_word());
            let label = labels.get(&cell.client).copied().unwrap_or_default();
            match groups.iter_mut().find(|(known, _)| *known == key) {
                Some((_, clients)) => clients.push(label),
                None => groups.push((key, vec![label])),
            }
        }
        for ((kernel, wire), clients) in groups {
            let clients =
                wrap(&in_ranges(&clients), width.saturating_sub(18)).join("\n                  ");
            let _ = writeln!(text, "    {kernel:6} {wire:5}  {clients}");
        }
    }
    text
}

/// Joins labels, consecutive ones as ranges: `gpu0-3 nic7`.
pub(crate) fn in_ranges(labels: &[&str]) -> String {
    ranges(labels).join(" ")
}

/// Returns labels, consecutive ones as ranges: `gpu0-3`, `nic7`.
pub fn ranges(labels: &[&str]) -> Vec<String> {
    let numbered = |label: &&str| {
        let prefix = label.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = label.get(prefix.len()..)?;
        let is_padded = number.len() > 1 && number.starts_with('0');
        let number: u32 = number.parse().ok().filter(|_| !is_padded)?;
        Some((prefix.to_owned(), number))
    };
    let mut ranges: Vec<(String, Option<(u32, u32)>)> = Vec::new();
    for label in labels {
        let Some((prefix, number)) = numbered(label) else {
            ranges.push(((*label).to_owned(), None));
            continue;
        };
        let next = ranges.iter_mut().find_map(|(known, range)| {
            let range = range
                .as_mut()
                .filter(|(_, last)| last.checked_add(1) == Some(number));
            range.filter(|_| *known == prefix)
        });
        match next {
            Some((_, last)) => *last = number,
            None => ranges.push((prefix, Some((number, number)))),
        }
    }
    let words = ranges.into_iter().map(|(prefix, range)| match range {
        None => prefix,
        Some((first, last)) if first == last => format!("{prefix}{first}"),
        Some((first, last)) => format!("{prefix}{first}-{last}"),
    });
    words.collect()
}

/// Returns the warnings, conflicts and gaps of the whole machine as lines, after an empty line if
/// there are any.
pub(crate) fn notes(machine: &Machine, width: usize) -> String {
    let conflicts: Vec<String> = machine.conflicts.iter().map(ToString::to_string).collect();
    let notes = [
        block("warning", &warnings::of_machine(machine), width),
        block("conflict", &conflicts, width),
        block("lacking", &machine.gaps, width),
    ]
    .concat();
    if notes.is_empty() {
        notes
    } else {
        format!("\n{notes}")
    }
}

/// Returns the verdicts on a pair as text, in lines of `width` columns.
pub(crate) fn pair(machine: &Machine, pair: &Pair, width: usize) -> String {
    let labels = Labels::of(machine);
    let (client, provider) = (labels.label(pair.client), labels.label(pair.provider));
    let head = format!("{client} to memory of {provider}: {}", headline(pair));
    let mut text = wrap(&head, width).join("\n  ") + "\n";
    if let Some(kernel) = &pair.kernel {
        text.push_str(&block("kernel", &[kernel_line(kernel)], width));
    }
    if let Some(wire) = &pair.wire {
        let line = format!("{}: {}", wire.distance.word(), wire.sentence(machine));
        text.push_str(&block("wire", &[line], width));
    }
    let note = pair.path_note().map(|note| format!("{note}:"));
    let path: Vec<String> = note
        .into_iter()
        .chain(path(&pair.path, &labels, width))
        .collect();
    text.push_str(&block_unwrapped("path", &path));
    text.push_str(&block("log", &pair.statements, width));
    text.push_str(&block("change", &changes(&pair.changes), width));
    text.push_str(&block("warning", &pair.warnings, width));
    text
}

/// Returns each change on a line of its own, and each of its commands. Changes that give and cost
/// the same share the line that says so, which follows them.
fn changes(changes: &[Change]) -> Vec<String> {
    let same = |a: &Change, b: &Change| (a.way, &a.price) == (b.way, &b.price);
    let groups = changes.chunk_by(same);
    let lines = groups.flat_map(|group| {
        let gives = group.first().map(|change| {
            let price = change.price.as_ref().map(|price| format!("; {price}"));
            format!("  gives: {}{}", change.way, price.unwrap_or_default())
        });
        let commands = group.iter().flat_map(|change| change.change.split("; "));
        commands.map(str::to_owned).chain(gives)
    });
    lines.collect()
}

pub(crate) fn headline(pair: &Pair) -> String {
    match &pair.kernel {
        None => "unknown: the source does not show the bridges above both".to_owned(),
        Some(kernel) if kernel.conditions.is_empty() => kernel.way.to_string(),
        Some(kernel) => {
            let conditions = kernel
                .conditions
                .iter()
                .map(|condition| format!("{} if {}", condition.way, condition.when.join(" and ")));
            format!(
                "{}, or {}",
                kernel.way,
                conditions.collect::<Vec<_>>().join(", or ")
            )
        }
    }
}

pub(crate) fn kernel_line(kernel: &Kernel) -> String {
    let otherwise = if kernel.conditions.is_empty() {
        ""
    } else {
        "if not: "
    };
    let assumed = if kernel.is_release_assumed {
        " assumed"
    } else {
        ""
    };
    let error = kernel
        .error
        .as_ref()
        .map(|error| format!("; a transfer fails with {error}"));
    let error = error.unwrap_or_default();
    format!(
        "{otherwise}{} (Linux {}{assumed}){error}",
        kernel.why, kernel.release
    )
}

fn path(path: &[PathHop], labels: &Labels, columns: usize) -> Vec<String> {
    let ends = [0, path.len().saturating_sub(1)];
    let name = |at: usize, hop: &PathHop| match hop.name.parse() {
        Ok(address) if ends.contains(&at) => format!("{} {}", labels.label(address), hop.name),
        _ => hop.name.clone(),
    };
    let names: Vec<String> = path
        .iter()
        .enumerate()
        .map(|(at, hop)| name(at, hop))
        .collect();
    let width = names.iter().map(String::len).max().unwrap_or_default();
    let line = |(name, hop): (&String, &PathHop)| {
        let acs = hop
            .acs
            .as_ref()
            .map(|acs| format!(", ACS: {acs}"))
            .unwrap_or_default();
        let mark = if hop.decides { "  <- decides" } else { "" };
        let end = format!("{acs}{mark}");
        let room = columns
            .saturating_sub(MARGIN.saturating_add(4).saturating_add(width))
            .saturating_sub(end.len());
        format!("{name:width$}  {}{end}", cut(&hop.description, room))
    };
    names.iter().zip(path).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{REDIRECTS, at, machine, two_sockets};

    #[test]
    fn matrix_has_a_row_for_each_provider() {
        let machine = machine(&two_sockets(REDIRECTS));
        let text = matrix(&machine, &machine.matrix(false), &[], WIDTH);
        let expected = "\
Intel processor, Linux 7.3 assumed, IOMMU on

  gpu0   0000:1a:00.0  NVIDIA Corporation GV100GL, 32 GiB of memory, NUMA node 0, nvidia
  nvme0  0000:1b:00.0  Samsung Electronics Co Ltd NVMe SSD, NUMA node 0, nvme
  nvme1  0000:1c:00.0  Samsung Electronics Co Ltd NVMe SSD, NUMA node 0, nvme
  nic0   0000:86:00.0  Mellanox Technologies MT27800 Family [ConnectX-5], NUMA node 1, mlx5_core

Rows own the memory, columns issue the DMA. Linux (p2pdma) says:
         gpu0 nvme0 nvme1  nic0
  gpu0      -  host  host  host
  bus: direct, by bus address; host: through the host bridge; no: refused
  ?: depends on what the source does not show

The way on the wire, in the words of `nvidia-smi topo`:
         gpu0 nvme0 nvme1  nic0
  gpu0      -  PIX^   PHB   SYS
  PIX: at most one switch; PXB: several; PHB: the root complex; NODE: host bridges of one NUMA node
  SYS: two NUMA nodes; ^: ACS redirects to the root complex

  lacking  the kernel: `uname -a` shows it
";
        assert_eq!(text, expected);
    }

    #[test]
    fn machine_with_many_devices_is_shown_by_provider() {
        let disks: String = (1..=24)
            .map(|disk| {
                format!(
                    "1a:{disk:02x}.0 Non-Volatile memory controller [0108]: Samsung [144d:a808]\n"
                )
            })
            .collect();
        let machine = machine(&(two_sockets(REDIRECTS) + &disks));
        let text = matrix(&machine, &machine.matrix(false), &[], WIDTH);
        let list = text.split_once("distance on the wire:\n").unwrap().1;
        assert!(
            list.lines().all(|line| line.chars().count() <= WIDTH),
            "{list}"
        );
        assert!(
            list.contains("\n    host   PIX^   nvme24\n    host   PHB    nvme25\n"),
            "{list}"
        );
    }

    #[test]
    fn consecutive_labels_are_ranges() {
        let labels = [
            "gpu0", "nic0", "gpu1", "mlx5_0", "gpu3", "mlx5_1", "eth", "gpu2",
        ];
        assert_eq!(in_ranges(&labels), "gpu0-2 nic0 mlx5_0-1 gpu3 eth");
        assert_eq!(
            in_ranges(&["eth09", "eth10", "eth011"]),
            "eth09 eth10 eth011"
        );
    }

    #[test]
    fn pair_is_explained_hop_by_hop() {
        let machine = machine(&two_sockets(REDIRECTS));
        let text = pair(&machine, &machine.pair(at("1b:00.0"), at("1a:00.0")), WIDTH);
        assert!(
            text.starts_with("nvme0 to memory of gpu0: through the host bridge\n"),
            "{text}"
        );
        let port = "\n           0000:19:09.0        switch, downstream port, 10b5:8747, PLX ";
        assert!(text.contains(port), "{text}");
        assert!(
            text.contains("ACS: ReqRedir+ CmpltRedir+  <- decides\n"),
            "{text}"
        );
        assert!(
            text.contains("  wire     PIX: ACS redirects it to the root complex at 0000:19:09.0\n"),
            "{text}"
        );
        let change = "  change   sudo setpci -s 0000:19:08.0 ECAP_ACS+6.w=0011\n           sudo setpci -s 0000:19:09.0 ECAP_ACS+6.w=0011\n             gives: bus address;";
        assert!(text.contains(change), "{text}");
    }

    #[test]
    fn narrow_terminal_has_no_longer_line() {
        let machine = machine(&two_sockets(REDIRECTS));
        let matrix = matrix(&machine, &machine.matrix(false), &[], 80);
        let pair = pair(&machine, &machine.pair(at("1b:00.0"), at("1a:00.0")), 80);
        // A parameter of the kernel cannot be broken.
        let lines = matrix
            .lines()
            .chain(pair.lines())
            .filter(|line| !line.contains("pci="));
        let long: Vec<&str> = lines.filter(|line| line.chars().count() > 80).collect();
        assert_eq!(long, Vec::<&str>::new());
    }
}
