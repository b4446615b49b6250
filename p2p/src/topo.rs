//! Reads the matrix of `nvidia-smi topo -m`, for a paste that shows no PCI device.
//!
//! It shows distances, and neither addresses nor ports. So the machine has the bridges that the
//! distances imply, with unknown ACS, and names in the place of addresses. NVLink hides the
//! distance between two GPUs. If those to other devices do not imply it, the two GPUs have no
//! place.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat_with;

use crate::address::Address;
use crate::machine::{Conflict, Function, Machine};
use crate::names;
use crate::shape::Shown;
use crate::wire::Distance;

/// The most devices of a matrix. Servers have some 30.
const MOST: usize = 64;
/// Characters that mail programs, trackers and terminals put before a line.
const DECORATION: [char; 4] = [' ', '\t', '>', '|'];
/// Devices within these distances are one device, or share a switch, a root port, a host bridge, a
/// NUMA node.
const SHARED: [Distance; 5] = [
    Distance::X,
    Distance::Pix,
    Distance::Pxb,
    Distance::Phb,
    Distance::Node,
];

/// A device of the matrix.
struct Device<'a> {
    name: &'a str,
    address: Address,
    /// Its row, which may be missing.
    cells: Vec<Option<Distance>>,
    /// Its NUMA node.
    node: Option<u16>,
    /// The numbers of the devices within each distance of [`SHARED`], and of those within that
    /// distance of them.
    groups: [BTreeSet<usize>; SHARED.len()],
}

/// The distances between two devices, in both orders of their numbers, as far as they are shown. Of
/// two that differ, this is the shorter one.
type Distances = BTreeMap<(usize, usize), Distance>;

/// Adds the devices of the first matrix in `text` to a machine without functions.
pub(crate) fn read(text: &str, machine: &mut Machine) {
    let lines = || text.lines().map(|line| line.trim_start_matches(DECORATION));
    let found = lines().enumerate().find_map(|(number, line)| {
        let names = header(line)?;
        let rows = rows(&names, lines().skip(number.saturating_add(1)));
        (!rows.is_empty()).then_some((names, rows))
    });
    let Some((names, rows)) = found else {
        return;
    };
    let (distances, devices) = devices(&names, rows);
    machine.is_selection = true;
    add(machine, &devices, &distances);
    for (address, name) in adapters(lines()) {
        if let Some(function) = machine.functions.get_mut(&address) {
            function.names = vec![name.to_owned()];
        }
    }
    machine.gaps.push(
        "addresses, ports, host bridges and sizes of memory: `nvidia-smi topo` shows distances only, `sudo lspci -vvv` \
         shows the rest"
            .to_owned(),
    );
}

/// Returns the names of the columns: GPUs, then adapters.
fn header(line: &str) -> Option<Vec<&str>> {
    let words = line.split_whitespace();
    let names: Vec<&str> = words
        .take_while(|word| !["CPU", "NUMA"].contains(word))
        .collect();
    let is_matrix = names.first() == Some(&"GPU0")
        && (2..=MOST).contains(&names.len())
        && names.iter().all(|name| names::is_plain(name))
        && names.is_sorted_by_key(|name| !is_gpu(name));
    is_matrix.then_some(names)
}

fn is_gpu(name: &str) -> bool {
    name.starts_with("GPU")
}

/// A device's cells, and its NUMA node.
type Row = (Vec<Option<Distance>>, Option<u16>);

/// Reads the rows of the devices `names`, as far as they are there.
fn rows<'a>(names: &[&str], lines: impl Iterator<Item = &'a str>) -> Vec<Row> {
    let row = |(name, line): (&&str, &str)| {
        let mut words = line.split_whitespace();
        let is_row = words.next() == Some(*name);
        let cells = words.by_ref().take(names.len()).map(cell);
        let cells: Vec<Option<Distance>> = cells.collect::<Option<_>>()?;
        // The processors are before the node.
        let node = words.nth(1).and_then(|node| node.parse().ok());
        (is_row && cells.len() == names.len()).then_some((cells, node))
    };
    let lines = lines.filter(|line| !line.is_empty());
    names.iter().zip(lines).map_while(row).collect()
}

/// Returns the distance in a cell, which has none for the device itself and for NVLink. Returns
/// `None` for a word of another table.
fn cell(word: &str) -> Option<Option<Distance>> {
    let links = word.strip_prefix("NV");
    let is_hidden = word == "X" || links.is_some_and(|links| links.parse::<u8>().is_ok());
    let distance = match word {
        "PIX" | "PSB" => Distance::Pix,
        "PXB" => Distance::Pxb,
        "PHB" => Distance::Phb,
        "NODE" => Distance::Node,
        "SYS" | "SOC" => Distance::Sys,
        _ => return is_hidden.then_some(None),
    };
    Some(Some(distance))
}

/// Returns the adapters that the legend names: `NIC0: mlx5_0`.
fn adapters<'a>(lines: impl Iterator<Item = &'a str>) -> impl Iterator<Item = (Address, &'a str)> {
    lines.filter_map(|line| {
        let (column, name) = line.trim_end().split_once(": ")?;
        let address = column.parse().ok().filter(|_| column.starts_with("NIC"))?;
        let is_name = names::is_plain(name) && !name.contains(' ');
        is_name.then_some((address, name))
    })
}

/// Returns the distances and devices of a matrix whose last rows may be missing.
fn devices<'a>(names: &[&'a str], rows: Vec<Row>) -> (Distances, Vec<Device<'a>>) {
    let mut distances = Distances::new();
    for (one, (cells, _)) in rows.iter().enumerate() {
        for (other, cell) in cells.iter().enumerate() {
            let Some(distance) = *cell else { continue };
            for ends in [(one, other), (other, one)] {
                let known = distances.entry(ends).or_insert(distance);
                *known = distance.min(*known);
            }
        }
    }
    // NVLink does not hide that two nodes differ.
    let nodes = rows.iter().enumerate();
    let nodes: Vec<_> = nodes
        .filter_map(|(at, (_, node))| Some((at, (*node)?)))
        .collect();
    for (one, node) in &nodes {
        for (other, _) in nodes.iter().filter(|(_, other)| other != node) {
            distances.entry((*one, *other)).or_insert(Distance::Sys);
        }
    }
    let device = |(at, ((name, address), (cells, node)))| Device {
        name,
        address,
        cells,
        node,
        groups: SHARED.map(|most| within(&distances, at, most)),
    };
    let rows = rows.into_iter().chain(repeat_with(Row::default));
    let named = names.iter().copied().zip(addresses(names)).zip(rows);
    let devices = named.enumerate().map(device).collect();
    (distances, devices)
}

/// Returns the addresses that stand for the devices of a matrix.
fn addresses(names: &[&str]) -> impl Iterator<Item = Address> {
    let gpus = names.iter().filter(|name| is_gpu(name)).count();
    let gpus = (0..).take(gpus).map(Address::named_gpu);
    gpus.chain((0..).map(Address::named_adapter))
}

/// Returns the device `at` and those to which steps of `most` or less lead from it.
fn within(distances: &Distances, at: usize, most: Distance) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut next = vec![at];
    while let Some(one) = next.pop() {
        if reached.insert(one) {
            let row = distances.range((one, 0)..=(one, usize::MAX));
            next.extend(
                row.filter(|(_, distance)| **distance <= most)
                    .map(|((_, other), _)| other),
            );
        }
    }
    reached
}

impl Device<'_> {
    /// Returns the distance to the device `other` with the number `number` by their groups, or
    /// `None` if it may be less, as no distance is shown between the smaller groups around the two.
    fn implied(&self, number: usize, other: &Self, distances: &Distances) -> Option<Distance> {
        let mut smaller = self.groups.iter().zip(&other.groups);
        let shared = SHARED.into_iter().zip(&self.groups);
        let level = shared
            .clone()
            .position(|(_, group)| group.contains(&number));
        let level = level.unwrap_or(SHARED.len());
        let distance = SHARED.get(level).copied().unwrap_or(Distance::Sys);
        let (around_self, around_other) = smaller.nth(level.checked_sub(1)?)?;
        let is_shown = around_self.iter().any(|one| {
            let mut others = around_other.iter();
            others.any(|other| distances.contains_key(&(*one, *other)))
        });
        (is_shown || distance == Distance::Pix).then_some(distance)
    }
}

/// Adds the devices and the bridges above them. A device has a place if all its distances are
/// known.
fn add(machine: &mut Machine, devices: &[Device<'_>], distances: &Distances) {
    for (at, device) in devices.iter().enumerate() {
        let mut others = devices.iter().enumerate().filter(|(other, _)| *other != at);
        let implied = |(other, to): (usize, &Device<'_>)| device.implied(other, to, distances);
        let is_placed = others.clone().all(|other| implied(other).is_some());
        let contradicts = others.any(|other| {
            let shown = device.cells.get(other.0).copied().flatten();
            shown.is_some() && shown != implied(other)
        });
        if contradicts {
            machine.conflicts.push(Conflict::Distance(device.address));
        }
        let class = if is_gpu(device.name) { 0x0302 } else { 0x0200 };
        let function = Function {
            class: Some(class),
            names: vec![device.name.to_owned()],
            ..device.around(devices)
        };
        let shown = match is_placed && !contradicts {
            true => Shown::BelowAPort(device.add_switches(machine, devices)),
            false => Shown::Nowhere,
        };
        machine.attach(device.address, function, shown);
    }
}

impl Device<'_> {
    /// Returns the address of the first device in its group for the distance `most`.
    fn first(&self, devices: &[Self], most: Distance) -> Address {
        let groups = SHARED.iter().zip(&self.groups);
        let mut group = groups.filter(|(shared, _)| **shared == most);
        let first = group.find_map(|(_, group)| devices.get(*group.first()?));
        first.map_or(self.address, |first| first.address)
    }

    /// Returns a function with the device's root bus and NUMA node.
    fn around(&self, devices: &[Self]) -> Function {
        Function {
            root_bus: Some(self.first(devices, Distance::Phb)),
            numa_node: self.node(devices),
            ..Function::default()
        }
    }

    /// Returns the number of the device's NUMA node. A node whose number is not shown gets a free
    /// one.
    fn node(&self, devices: &[Self]) -> Option<u16> {
        let [.., group] = &self.groups;
        let shown = |group: &BTreeSet<usize>| group.iter().find_map(|at| devices.get(*at)?.node);
        let is_free = |number: &u16| devices.iter().all(|device| device.node != Some(*number));
        let is_first = |(at, device): &(usize, &Self)| {
            let [.., group] = &device.groups;
            group.first() == Some(at) && shown(group).is_none()
        };
        let before = devices.iter().enumerate().take(*group.first()?);
        let free = || (0..).filter(is_free).nth(before.filter(is_first).count());
        shown(group).or_else(free)
    }

    /// Adds the switches above the device, and returns the lowest.
    fn add_switches(&self, machine: &mut Machine, devices: &[Self]) -> Option<Address> {
        let [_, below_switch, below_port, ..] = &self.groups;
        let is_nested = below_port.len() > below_switch.len();
        let switches = [
            (is_nested, Distance::Pxb),
            (is_nested || below_switch.len() > 1, Distance::Pix),
        ];
        let switches = switches.into_iter().filter(|(is_there, _)| *is_there);
        switches.fold(None, |above, (_, shared)| {
            let is_upper = shared == Distance::Pxb;
            let switch = self.first(devices, shared).named_switch(is_upper);
            let function = Function {
                class: Some(0x0604),
                ..self.around(devices)
            };
            machine.attach(switch, function, Shown::BelowAPort(above));
            Some(switch)
        })
    }
}

#[cfg(test)]
mod tests {
    use peerbar_rule::Way;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    /// Two GPUs, each with an adapter below its switch, two more adapters below another switch of
    /// the first root port, and an adapter at another root port of the first host bridge.
    const TOPO: &str = "\
$ nvidia-smi topo -m
\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tNIC3\tNIC4\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tPIX\tSYS\tPXB\tPXB\tPHB\t0-55,112-167\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tPIX\tSYS\tSYS\tSYS\t56-111,168-223\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tSYS\tPXB\tPXB\tPHB\t\t\t\t
NIC1\tSYS\tPIX\tSYS\t X \tSYS\tSYS\tSYS\t\t\t\t
NIC2\tPXB\tSYS\tPXB\tSYS\t X \tPIX\tPHB\t\t\t\t
NIC3\tPXB\tSYS\tPXB\tSYS\tPIX\t X \tPHB\t\t\t\t
NIC4\tPHB\tSYS\tPHB\tSYS\tPHB\tPHB\t X \t\t\t\t

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_3
";

    /// Returns the words of the wire for DMA of each client to `provider`.
    fn distances(machine: &Machine, provider: &str) -> Vec<(String, &'static str)> {
        let provider = machine.find(provider).unwrap();
        let matrix = machine.matrix(false);
        let cells = matrix.pairs.iter().filter(|cell| cell.provider == provider);
        cells
            .map(|cell| {
                let word = cell.distance.map_or("-", Distance::word);
                (cell.client.to_string(), word)
            })
            .collect()
    }

    #[test]
    fn machine_has_the_distances_of_its_matrix() {
        let machine = Machine::read(TOPO).unwrap();
        assert_eq!(machine.conflicts, []);
        let expected = [
            ("GPU1", "SYS"),
            ("NIC0", "PIX"),
            ("NIC1", "SYS"),
            ("NIC2", "PXB"),
            ("NIC3", "PXB"),
            ("NIC4", "PHB"),
        ];
        let expected = expected.map(|(client, word)| (client.to_owned(), word));
        assert_eq!(distances(&machine, "gpu0"), expected);
        let node = |name| {
            machine
                .function(machine.find(name).unwrap())
                .unwrap()
                .numa_node
        };
        assert_eq!(
            (node("mlx5_0"), node("mlx5_3"), node("NIC4")),
            (Some(0), Some(1), Some(0))
        );
        for names in [
            ["NIC1", "nic1", "mlx5_3"],
            ["GPU1", "gpu1", "GPU1"],
            ["NIC4", "nic4", "NIC4"],
        ] {
            let [first, others @ ..] = names.map(|name| machine.find(name).unwrap());
            assert_eq!(others, [first; 2]);
        }
        let shown = crate::text::matrix(&machine, &machine.matrix(false), &[], crate::text::WIDTH);
        for line in [
            "\n  mlx5_3  NIC1  NUMA node 1\n",
            "\n  NIC4    NIC4  NUMA node 0\n",
        ] {
            assert!(shown.contains(line), "{shown}");
        }
        let saved = serde_json::to_string(&machine).unwrap();
        assert_eq!(Machine::read(&saved).unwrap(), machine);
    }

    #[test]
    fn verdicts_name_what_the_matrix_lacks() {
        let machine =
            Machine::read(&format!("Vendor ID: AuthenticAMD\nCPU family: 25\n{TOPO}")).unwrap();
        let find = |name| machine.find(name).unwrap();
        let kernel = |client| machine.pair(find(client), find("gpu0")).kernel.unwrap();
        let near = kernel("mlx5_0");
        let wire = machine.pair(find("mlx5_0"), find("gpu0")).wire.unwrap();
        let sentence = wire.sentence(&machine);
        assert!(
            sentence.starts_with("stays below the switch above GPU0, unless"),
            "{sentence}"
        );
        assert_eq!((near.way, near.conditions.len()), (Way::BusAddress, 1));
        assert_eq!(
            near.conditions[0].when,
            [
                "ACS redirects at the switch above GPU0 or the port above GPU0 or the port above NIC0"
            ]
        );
        let far = kernel("NIC4");
        assert_eq!((far.way, far.conditions.len()), (Way::ThroughHostBridge, 0));
        assert!(
            machine
                .gaps
                .iter()
                .any(|gap| gap.contains("`sudo lspci -vvv`"))
        );
        let intel = Machine::read(TOPO).unwrap();
        let kernel = intel.pair(find("NIC4"), find("gpu0")).kernel.unwrap();
        let listed = "the kernel's list has the host bridge of the root bus above GPU0";
        assert!(
            kernel.conditions.iter().any(|other| other.when == [listed]),
            "{kernel:?}"
        );
    }

    #[test]
    fn distance_that_nvlink_hides_is_not_guessed() {
        let hidden = TOPO
            .replace("56-111,168-223\t1", "0-55\t0")
            .replace("SYS", "NODE");
        assert!(
            distances(&Machine::read(&hidden).unwrap(), "gpu0")
                .contains(&("GPU1".to_owned(), "NODE"))
        );
        let alone = "GPU0 GPU1 mlx5_0 CPU Affinity NUMA Affinity\n\
                     GPU0 X NV4 NODE 0-9 0\nGPU1 NV4 X NODE 0-9 0\nmlx5_0 NODE NODE X\n";
        let machine = Machine::read(alone).unwrap();
        assert!(
            distances(&machine, "gpu0")
                .iter()
                .all(|(_, word)| *word == "-")
        );
        assert!(
            machine
                .gaps
                .iter()
                .any(|gap| gap.starts_with("the bridges above gpu0, gpu1"))
        );
        let old = alone.replace("0-9 0", "0-9").replace("NODE", "SYS");
        let machine = Machine::read(&old).unwrap();
        let nodes = machine
            .functions
            .values()
            .filter_map(|function| function.numa_node);
        assert_eq!(BTreeSet::from_iter(nodes), BTreeSet::from([0, 1, 2]));
        let apart = "GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X NV4 0-9 0\nGPU1 NV4 X 10-19 1\n";
        let machine = Machine::read(apart).unwrap();
        assert_eq!(distances(&machine, "gpu0"), [("GPU1".to_owned(), "SYS")]);
    }

    proptest! {
        #[test]
        fn any_matrix_keeps_its_distances_or_has_no_verdict(
            rows in vec(vec(select(&["PIX", "PXB", "PHB", "NODE", "SYS", "NV4"][..]), 5), 1..6),
        ) {
            let mut text = "GPU0 GPU1 GPU2 NIC0 NIC1\n".to_owned();
            for (name, row) in ["GPU0", "GPU1", "GPU2", "NIC0", "NIC1"].iter().zip(&rows) {
                text += &format!("{name} {}\n", row.join(" "));
            }
            let machine = Machine::read(&text).unwrap();
            let devices: Vec<Address> = addresses(&["GPU0", "GPU1", "GPU2", "", ""]).take(5).collect();
            for (one, row) in devices.iter().zip(&rows) {
                for (other, word) in devices.iter().zip(row).filter(|(other, _)| *other != one) {
                    let distance = machine.cell(*one, *other).distance.map(Distance::word);
                    let is_kept = distance.is_none() || word.starts_with("NV") || distance == Some(word);
                    prop_assert!(is_kept, "{one} {other} {distance:?}\n{text}");
                }
            }
        }
    }

    #[test]
    fn picture_has_short_names_of_what_is_not_shown() {
        let page = crate::html::page_of(&Machine::read(TOPO).unwrap());
        let (_, picture) = page.split_once("<svg").unwrap();
        let (picture, _) = picture.split_once("</svg>").unwrap();
        assert!(picture.contains(">switch</text>") && picture.contains(">root bus</text>"));
        for long in [">the ", ">root bus the "] {
            assert!(!picture.contains(long), "{long}");
        }
    }

    #[test]
    fn contradiction_is_named() {
        let text = TOPO.replace("GPU0\t X \tNV18\tPIX\tSYS", "GPU0\t X \tNV18\tPIX\tPIX");
        let machine = Machine::read(&text).unwrap();
        let adapter = machine.find("NIC1").unwrap();
        assert!(machine.conflicts.contains(&Conflict::Distance(adapter)));
        assert_eq!(distances(&machine, "gpu0")[2], ("NIC1".to_owned(), "-"));
    }

    #[test]
    fn matrix_that_is_cut_or_quoted_is_read() {
        let lines: Vec<&str> = TOPO.lines().take(4).collect();
        let quoted: String = lines.iter().map(|line| format!("> {line}\n")).collect();
        let machine = Machine::read(&quoted.replace('\t', "    ")).unwrap();
        assert!(distances(&machine, "gpu0").contains(&("NIC0".to_owned(), "PIX")));
        let other = "\tGPU0\tGPU1\t\nGPU0\tX\tGNS\t\nGPU1\tGNS\tX\t\n";
        assert!(Machine::read(other).is_err());
    }
}
