//! Reads the drawing of `lspci -t`, `-tv` and `-tvnn`.
//!
//! Only the columns of the branches tell which bus a line belongs to. A quotation shifts all of
//! them alike, and people move single lines by a character or two.
//!
//! ```text
//! -+-[0000:80]---00.0-[81]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
//!  \-[0000:00]-+-00.0  Intel Corporation Device 09a2
//!              \-01.0-[01-03]----00.0-[02-03]--+-00.0-[02]--
//!                                              \-01.0-[03]----00.0  Samsung Electronics Co Ltd
//! ```

use crate::address::{Address, bus_range};
use crate::lspci::describe_device;
use crate::machine::Place;
use crate::output::Output;

/// Class code of a bridge.
const PCI_BRIDGE: u16 = 0x0604;
/// Characters before a line's own branch.
const MARGIN: [char; 6] = [' ', '\t', '>', '|', '*', '`'];
/// The most columns by which a line may be moved. Nested branches are 13 columns apart.
const TOLERANCE: usize = 3;

/// Returns the trees in `text`.
pub(crate) fn outputs(text: &str) -> Vec<Output> {
    let mut trees = Trees::default();
    for (number, line) in text.lines().enumerate() {
        trees.take(number, line);
    }
    trees.outputs
}

#[derive(Default)]
struct Trees {
    outputs: Vec<Output>,
    /// The buses whose branches may go on in the next line.
    open: Vec<(usize, Bus)>,
}

/// A bus on which a line may put a function.
#[derive(Clone, Copy)]
struct Bus {
    domain: u32,
    number: u8,
    /// The last bus number below it.
    last: u8,
    place: Place,
}

/// A line, and the part of it that is still to be read.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    line: &'a str,
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    /// Returns the column at which the rest begins.
    fn column(&self) -> usize {
        let width = |text: &str| text.chars().count();
        width(self.line).saturating_sub(width(self.rest))
    }

    /// Skips characters that match.
    fn skip(&mut self, matches: impl Fn(char) -> bool) {
        self.rest = self.rest.trim_start_matches(matches);
    }

    /// Takes the text up to `end`, and `end`.
    fn until(&mut self, end: char) -> Option<&'a str> {
        let (text, rest) = self.rest.split_once(end)?;
        self.rest = rest;
        Some(text)
    }

    /// Skips the branch `+-` or `\-`, and returns its column.
    fn branch(&mut self) -> Option<usize> {
        let column = self.column();
        let after = self
            .rest
            .strip_prefix("+-")
            .or_else(|| self.rest.strip_prefix("\\-"))?;
        self.rest = after;
        Some(column)
    }

    /// Skips a horizontal line, in which people mark parts with asterisks.
    fn skip_line(&mut self) {
        self.skip(|c| matches!(c, '-' | '*'));
    }
}

impl Trees {
    fn take(&mut self, number: usize, line: &str) {
        let mut cursor = Cursor { line, rest: line };
        cursor.skip(|c| MARGIN.contains(&c));
        if ["-[", "-+-["]
            .iter()
            .any(|start| cursor.rest.starts_with(start))
        {
            self.start(number);
            cursor.skip_line();
        }
        let branch = cursor.branch();
        cursor.skip_line();
        if cursor.rest.starts_with('[') {
            self.root(number, branch, cursor);
        } else if let Some(bus) = branch.and_then(|column| self.bus_at(column)) {
            self.functions(bus, cursor);
        }
    }

    /// Begins an output.
    fn start(&mut self, line: usize) {
        self.open.clear();
        self.outputs.push(Output {
            line,
            ..Output::default()
        });
    }

    /// Reads a root bus, `[0000:80]-`, and what follows it. A drawing of a part may begin there.
    fn root(&mut self, line: usize, branch: Option<usize>, mut cursor: Cursor<'_>) {
        let name = cursor.until(']').and_then(|name| name.split_once(':'));
        let numbers = name.and_then(|(domain, bus)| {
            let domain = u32::from_str_radix(domain.trim_start_matches('['), 16).ok()?;
            Some((domain, u8::from_str_radix(bus, 16).ok()?))
        });
        let Some((domain, number)) = numbers else {
            return;
        };
        let is_known = self.outputs.last().is_none_or(|output| {
            let mut known = output.functions.keys();
            known.any(|known| (known.domain, known.bus) == (domain, number))
        });
        if is_known {
            self.start(line);
        }
        self.open
            .retain(|(known, _)| branch.is_some_and(|column| *known < column));
        let bus = Bus {
            domain,
            number,
            last: u8::MAX,
            place: Place::RootBus,
        };
        self.below(bus, cursor);
    }

    /// Returns the bus whose branch is at `column`, and forgets those to the right of it. After a
    /// line that has lost its margin, nothing can be placed up to the next root bus.
    fn bus_at(&mut self, column: usize) -> Option<Bus> {
        self.open
            .retain(|(known, _)| *known <= column.saturating_add(TOLERANCE));
        let last = self.open.last();
        let found = last.filter(|(known, _)| known.abs_diff(column) <= TOLERANCE);
        let bus = found.map(|(_, bus)| *bus);
        if bus.is_none() {
            self.open.clear();
        }
        bus
    }

    /// Reads the functions on `bus`, after the bracket that names it.
    fn below(&mut self, bus: Bus, mut cursor: Cursor<'_>) {
        cursor.skip_line();
        if let Some(column) = cursor.branch() {
            self.open.push((column, bus));
        }
        self.functions(bus, cursor);
    }

    /// Reads a function on `bus`, and everything below it in this line.
    fn functions(&mut self, bus: Bus, mut cursor: Cursor<'_>) {
        let Some(address) = function_number(&mut cursor, bus) else {
            return;
        };
        let Some(output) = self.outputs.last_mut() else {
            return;
        };
        let function = output.functions.entry(address).or_default();
        function.place = bus.place;
        if !cursor.rest.starts_with("-[") {
            if cursor.rest.starts_with("  ") {
                describe_device(function, cursor.rest.trim());
            }
            return;
        }
        function.class = Some(PCI_BRIDGE);
        cursor.skip(|c| matches!(c, '-' | '['));
        let buses = cursor.until(']').and_then(bus_range);
        let is_inside = |(first, last): &(u8, u8)| *first > bus.number && *last <= bus.last;
        if let Some((first, last)) = buses.filter(is_inside) {
            function.buses = Some((first, last));
            let bus = Bus {
                domain: bus.domain,
                number: first,
                last,
                place: Place::Below(address),
            };
            self.below(bus, cursor);
        }
    }
}

/// Takes device and function number, such as `1f.7`.
fn function_number(cursor: &mut Cursor<'_>, bus: Bus) -> Option<Address> {
    let number = cursor.rest.get(..4)?;
    let address = format!("{:04x}:{:02x}:{number}", bus.domain, bus.number)
        .parse()
        .ok()?;
    cursor.rest = cursor.rest.get(4..)?;
    Some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    const TREE: &str = "\
$ lspci -tvnn
-+-[0000:80]---00.0-[81]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330]
 +-[0001:00]-
 \\-[0000:00]-+-00.0  Intel Corporation Device [8086:09a2]
             +-01.0-[01-04]----00.0-[02-04]--+-00.0-[03]--
             |                               \\-01.0-[04]--+-00.0  Samsung Electronics Co Ltd NVMe SSD [144d:a80a]
             |                                            \\-00.1  Samsung Electronics Co Ltd
             \\-1f.0  Intel Corporation LPC
";

    fn machine(text: &str) -> Machine {
        let mut machine = Machine::default();
        machine.add_outputs(outputs(text));
        machine.attach_by_bus_numbers();
        machine
    }

    /// Returns the places as text, one function a line.
    fn places(text: &str) -> Vec<String> {
        let place = |(address, function): (&Address, &crate::machine::Function)| {
            let place = match function.place {
                Place::RootBus => "root".to_owned(),
                Place::Below(bridge) => bridge.to_string(),
                Place::Unknown => "?".to_owned(),
            };
            format!("{address} {place}")
        };
        machine(text).functions.iter().map(place).collect()
    }

    const PLACES: [&str; 9] = [
        "0000:00:00.0 root",
        "0000:00:01.0 root",
        "0000:00:1f.0 root",
        "0000:01:00.0 0000:00:01.0",
        "0000:02:00.0 0000:01:00.0",
        "0000:02:01.0 0000:01:00.0",
        "0000:04:00.0 0000:02:01.0",
        "0000:04:00.1 0000:02:01.0",
        "0000:80:00.0 root",
    ];

    #[test]
    fn functions_have_their_places() {
        let mut expected = PLACES.to_vec();
        expected.push("0000:81:00.0 0000:80:00.0");
        assert_eq!(places(TREE), expected);
        let machine = machine(TREE);
        let gpu = machine.function("81:00.0".parse().unwrap()).unwrap();
        assert_eq!(gpu.description, "NVIDIA Corporation GH100 [H100 SXM5 80GB]");
        assert_eq!(
            gpu.id.map(|id| (id.vendor, id.device)),
            Some((0x10de, 0x2330))
        );
        let port = machine.function("01:00.0".parse().unwrap()).unwrap();
        assert_eq!((port.class, port.buses), (Some(PCI_BRIDGE), Some((2, 4))));
    }

    #[test]
    fn quoted_indented_and_moved_lines_have_the_same_places() {
        let whole = places(TREE);
        let lines = |change: &dyn Fn(usize, &str) -> String| -> String {
            TREE.lines()
                .enumerate()
                .map(|(at, line)| change(at, line) + "\n")
                .collect()
        };
        for text in [
            lines(&|_, line| format!("> > {line}")),
            lines(&|_, line| format!("\t{line}")),
            lines(&|at, line| format!("{}{line}", if at == 6 { " " } else { "" })),
            lines(&|_, line| line.replace("]---", "]*---")),
        ] {
            assert_eq!(places(&text), whole, "{text}");
        }
    }

    #[test]
    fn after_a_line_without_its_margin_nothing_is_placed() {
        let text = TREE.replace("             |                               \\", "\\");
        let mut expected = PLACES[..2].to_vec();
        expected.extend(["0000:01:00.0 0000:00:01.0", "0000:02:00.0 0000:01:00.0"]);
        expected.extend(["0000:80:00.0 root", "0000:81:00.0 0000:80:00.0"]);
        assert_eq!(places(&text), expected);
    }

    #[test]
    fn tree_cut_on_the_right_has_the_rest() {
        let cut: String = TREE
            .lines()
            .map(|line| line.chars().take(40).collect::<String>() + "\n")
            .collect();
        let found = places(&cut);
        assert!(
            found.contains(&"0000:01:00.0 0000:00:01.0".to_owned()),
            "{found:?}"
        );
        assert!(!found.iter().any(|place| place.starts_with("0000:02:")));
    }

    #[test]
    fn second_tree_of_the_same_buses_is_another_output() {
        let text = format!("{TREE}{}", TREE.replace("[03]", "[02]"));
        assert_eq!(outputs(&text).len(), 2);
    }
}
