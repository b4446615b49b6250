//! The machine as a picture.

use std::collections::BTreeSet;

use maud::{Markup, html};
use peerbar_picture::{Function, Lanes, Layout, Mark, Port, Shape, machine, short, text, words};
use peerbar_rule::PortType;

use super::page::Shown;
use crate::address::{Address, domain_not_shown};
use crate::machine::{self, Place};
use crate::matrix::Device;
use crate::size::human;
use crate::text::cut;
use crate::tree::root_bus_name;
use crate::wire::{self, Wire};

/// Most letters of a device's model in the picture.
const MODEL: usize = 14;
/// Words that end a company's name.
const COMPANY: [&str; 8] = [
    "Corporation",
    "Inc.",
    "Inc",
    "Ltd",
    "Ltd.",
    "Technologies",
    "Systems",
    "subsidiaries",
];
/// Words for the kind of a device, which its label shows already.
const KIND: [&str; 7] = [
    "Device",
    "NVMe",
    "SSD",
    "Controller",
    "Ethernet",
    "Network",
    "Adapter",
];
/// Says that the source does not show a port or a host bridge.
const NOT_SHOWN: &str = "not shown";
/// Height of a title in the boxes of sockets and host bridges.
const TITLE: i32 = 20;
/// Distance between two lines of text there.
const LINE: i32 = 15;

/// For a screen: eight devices in a line, as many as most switches have.
const WIDE: Shape = Shape {
    is_detailed: true,
    columns: 8,
    ram: 0,
    trunk: 64,
    host: 80,
    port: 70,
    device: 100,
    gap: 10,
    device_height: 46,
    port_height: 16,
    wire: 8,
    line_gap: 18,
    row_gap: 14,
    lanes: 0,
    baselines: &[15, 28, 40],
};

/// For a phone.
const NARROW: Shape = Shape {
    columns: 2,
    trunk: 36,
    host: 46,
    port: 52,
    gap: 6,
    ..WIDE
};

/// Returns the picture for a screen and for a phone, or `None` without devices.
pub(super) fn picture(shown: &Shown<'_>) -> Option<Markup> {
    let functions = functions(shown);
    let wide = Layout::of(&functions, WIDE, &Lanes::new())?;
    let narrow = Layout::of(&functions, NARROW, &Lanes::new())?;
    // A picture that is not high stays in view while the reader goes through the matrix.
    let stays = if wide.height * 2 <= wide.width {
        "picture stays"
    } else {
        "picture"
    };
    Some(html! {
        div class=(stays) {
            (drawn(&wide, "screen"))
            (drawn(&narrow, "phone"))
        }
    })
}

fn drawn(layout: &Layout<'_>, class: &str) -> Markup {
    let (width, height) = (layout.width, layout.height);
    html! {
        svg.(class) viewBox=(format!("0 0 {width} {height}")) style=(format!("max-width:{width}px"))
            role="img" aria-label="The machine: root complex, host bridges, switches and devices" {
            (machine(layout))
            (words_of_root(layout))
            (words(layout))
        }
    }
}

/// Returns the words in the sockets and host bridges.
fn words_of_root(layout: &Layout<'_>) -> Markup {
    let lines = |middle: i32, top: i32, lines: &[String]| {
        html! {
            @for (line, words) in (0..).zip(lines) {
                (text(if line == 0 { "part" } else { "note" }, middle, top + TITLE + LINE * line, "middle", words))
            }
        }
    };
    html! {
        @for socket in &layout.sockets {
            @let words = match socket.node {
                Some(node) => ["node".to_owned(), node.to_string()],
                None => ["root".to_owned(), String::new()],
            };
            (lines(socket.area.middle(), socket.area.top, &words))
            @for host in &socket.hosts {
                @let bus = host.root_bus.strip_prefix("pci").unwrap_or(NOT_SHOWN);
                (lines(host.area.middle(), host.area.top, &["host".to_owned(), short(bus).to_owned()]))
            }
        }
    }
}

/// Returns the listed devices and all bridges.
fn functions(shown: &Shown<'_>) -> Vec<Function> {
    let machine = shown.machine;
    let marks = Marks::of(shown);
    let bridges_above: BTreeSet<Address> = machine
        .functions
        .values()
        .filter(|function| is_bridge(function))
        .filter_map(|function| match function.place {
            Place::Below(bridge) => Some(bridge),
            Place::RootBus | Place::Unknown => None,
        })
        .collect();
    let drawable = |(address, function): (&Address, &machine::Function)| {
        let device = shown
            .matrix
            .devices
            .iter()
            .find(|device| device.address == *address);
        let port = is_bridge(function).then(|| port(function, bridges_above.contains(address)));
        Function {
            address: address.to_string(),
            parent: match function.place {
                Place::Below(bridge) => bridge.to_string(),
                Place::RootBus | Place::Unknown => machine
                    .root_bus(*address)
                    .map_or_else(|| NOT_SHOWN.to_owned(), root_bus_name),
            },
            port,
            name: match device {
                Some(device) => Some(device.label.clone()),
                None if address.is_named() => Some("switch".to_owned()),
                None => domain_not_shown(address.domain).map(|_| NOT_SHOWN.to_owned()),
            },
            words: vec![
                model(&function.description),
                short(&address.to_string()).to_owned(),
            ],
            title: Some(device.map_or_else(|| bridge_title(*address, function), device_title)),
            mark: marks.of_function(*address),
            socket: wire::numa_node(machine, *address),
            has_loop: false,
        }
    };
    machine.functions.iter().map(drawable).collect()
}

/// Returns `true` for a PCI-to-PCI bridge, which every port is.
fn is_bridge(function: &machine::Function) -> bool {
    function.class == Some(0x0604) || function.port_type.is_some_and(PortType::is_port)
}

/// Returns the kind of a bridge. A paste may lack the PCIe capability, which has it.
fn port(bridge: &machine::Function, is_above_bridges: bool) -> Port {
    match (bridge.port_type, bridge.place) {
        (Some(PortType::RootPort), _) => Port::Root,
        (Some(PortType::UpstreamPort), _) => Port::Upstream,
        (Some(PortType::DownstreamPort), _) => Port::Downstream,
        (_, Place::RootBus) => Port::Root,
        _ if is_above_bridges => Port::Upstream,
        _ => Port::Downstream,
    }
}

/// Returns the model in a description, such as the last name in brackets, cut to fit a device.
fn model(description: &str) -> String {
    let in_brackets = description
        .strip_suffix(']')
        .and_then(|text| text.rsplit_once('['))
        .map(|(_, name)| name);
    let words: Vec<&str> = description.split_whitespace().collect();
    let company = words.iter().rposition(|word| COMPANY.contains(word));
    let rest = words.get(company.map_or(0, |last| last + 1)..);
    let mut rest = rest.unwrap_or_default().to_vec();
    rest.retain(|word| !KIND.contains(word));
    let rest = rest.join(" ");
    cut(in_brackets.unwrap_or(&rest), MODEL)
}

fn device_title(device: &Device) -> String {
    let memory = device
        .memory
        .map(|size| format!("{} of memory for peers", human(size)));
    let node = device.numa_node.map(|node| format!("NUMA node {node}"));
    let mut lines = vec![
        format!("{} {}", device.label, device.address),
        device.description.clone(),
    ];
    lines.extend(memory.into_iter().chain(node).chain(device.driver.clone()));
    lines.retain(|line| !line.is_empty());
    lines.join("\n")
}

fn bridge_title(address: Address, function: &machine::Function) -> String {
    let kind = function
        .kind_in_words()
        .unwrap_or_else(|| "bridge".to_owned());
    format!("{kind} {address}\n{}", function.description)
}

/// The functions that redirect requests between the pairs of the matrix, on the wire or as Linux
/// assumes, or may do so.
pub(super) struct Marks {
    pub(super) redirect: BTreeSet<Address>,
    pub(super) unknown: BTreeSet<Address>,
}

impl Marks {
    pub(super) fn of(shown: &Shown<'_>) -> Self {
        let wires = || shown.pairs.iter().filter_map(|pair| pair.wire.as_ref());
        let redirecting = |wire: &Wire| {
            [
                wire.redirected_at.clone(),
                wire.completions_redirected_at.clone(),
            ]
            .concat()
        };
        let kernels = shown.pairs.iter().filter_map(|pair| pair.kernel.as_ref());
        let for_kernel = kernels.flat_map(|kernel| kernel.redirected_at.iter().copied());
        Self {
            redirect: wires().flat_map(redirecting).chain(for_kernel).collect(),
            unknown: wires().flat_map(|wire| wire.unknown_at.clone()).collect(),
        }
    }

    fn of_function(&self, function: Address) -> Mark {
        if self.redirect.contains(&function) {
            Mark::Redirects
        } else if self.unknown.contains(&function) {
            Mark::Unknown
        } else {
            Mark::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_is_what_tells_devices_apart() {
        for (description, expected) in [
            (
                "NVIDIA Corporation GH100 [H100 SXM5 80GB]",
                "H100 SXM5 80GB",
            ),
            (
                "Mellanox Technologies MT2910 Family [ConnectX-7]",
                "ConnectX-7",
            ),
            (
                "Samsung Electronics Co Ltd NVMe SSD Controller PM9A1",
                "PM9A1",
            ),
            ("Micron", "Micron"),
            ("", ""),
        ] {
            assert_eq!(model(description), expected);
        }
    }
}
