//! The parts of a machine: boxes and wires, and the words in them.

use maud::{Markup, html};

use crate::area::{Area, level, node, note_in, text, upright};
use crate::function::{Function, Mark, short};
use crate::layout::{DevicePosition, Layout, Row, Shape};

/// Distance between the upper edge of a bar and the wire to it.
const BAR_WIRE: i32 = 15;
/// Minimum width of a box that shows the kind of a port, alone and with its address.
const WIDE_PORT: i32 = 60;
const WIDE_TAB: i32 = 120;
/// Distance of the base line of small letters from their middle.
const BELOW_MIDDLE: i32 = 4;
/// Minimum height of a port above a switch at which its two lines are spaced like other text.
const HIGH_PORT: i32 = 40;

/// Returns the boxes and wires of the root complex, the host bridges, the switches and the devices.
pub fn machine(layout: &Layout<'_>) -> Markup {
    html! {
        @if layout.shape.is_detailed {
            (sockets(layout))
        } @else {
            (node("root", layout.trunk))
        }
        @for (number, row) in layout.rows.iter().enumerate() { (drawn_row(layout, number, row)) }
    }
}

/// Returns the sockets with their host bridges, and the wires between them.
fn sockets(layout: &Layout<'_>) -> Markup {
    let next = layout.sockets.iter().skip(1);
    html! {
        @for (socket, next) in layout.sockets.iter().zip(next) {
            g data-at="sockets" { (upright(socket.area.middle(), socket.area.bottom(), next.area.top)) }
        }
        @for socket in &layout.sockets {
            g data-at=(socket.name()) { (node("root", socket.area)) }
            @for host in &socket.hosts {
                g data-at=(host.root_bus) {
                    (wire_to_host(layout, socket.area, host.area))
                    (node("root", host.area))
                }
            }
        }
    }
}

/// Returns the wire from a socket to a host bridge, which passes above other host bridges in its
/// line.
fn wire_to_host(layout: &Layout<'_>, socket: Area, host: Area) -> Markup {
    let (start, gap) = (socket.right(), layout.shape.gap);
    if host.left <= start + gap {
        return level(start, host.left, host.top + BAR_WIRE);
    }
    let above = host.top - layout.shape.row_gap / 2;
    html! { path.wire.shared d=(format!("M{start} {above}H{}V{}", host.middle(), host.top)) {} }
}

/// Returns a group that is marked with the address of `function` and has its tooltip, if the
/// machine is drawn in detail.
fn part(layout: &Layout<'_>, function: &Function, content: &Markup) -> Markup {
    html! {
        @if layout.shape.is_detailed {
            g data-at=(function.address) {
                @if let Some(title) = &function.title { title { (title) } }
                (content)
            }
        } @else {
            (content)
        }
    }
}

fn drawn_row(layout: &Layout<'_>, number: usize, row: &Row<'_>) -> Markup {
    html! {
        @match row.switch {
            None => (drawn_root_bus(layout, row)),
            Some((switch, port)) => {
                (part(layout, port.unwrap_or(switch), &drawn_port(layout, number, row)))
                (part(layout, switch, &html! {
                    (level(row.port.right(), row.bar.left, row.bar.top + BAR_WIRE))
                    (node(&switch.mark.classes("switch"), row.bar))
                }))
            }
        }
        @for devices in row.devices.chunk_by(DevicePosition::has_port_of) { (drawn_devices(layout, row.bar.bottom(), devices)) }
    }
}

fn drawn_root_bus(layout: &Layout<'_>, row: &Row<'_>) -> Markup {
    let at = layout.shape.is_detailed.then_some(row.root_bus);
    html! {
        g data-at=[at] {
            (level(layout.root_edge(row), row.bar.left, row.bar.top + BAR_WIRE))
            (node("root", row.bar))
        }
    }
}

/// Returns the port above a switch, and its wire to the root complex or to the switch above.
fn drawn_port(layout: &Layout<'_>, number: usize, row: &Row<'_>) -> Markup {
    let at = row.bar.top + BAR_WIRE;
    let mark = row
        .switch
        .and_then(|(_, port)| port)
        .map_or(Mark::None, |port| port.mark);
    html! {
        @match layout.above(number) {
            None => (level(layout.root_edge(row), row.port.left, at)),
            Some(above) => {
                path.wire d=(format!("M{} {}V{at}H{}", above.bar.left + BAR_WIRE / 2, above.bar.bottom(), row.port.left)) {}
            }
        }
        (node(&mark.classes("port"), row.port))
    }
}

/// Returns the devices below one port, and that port.
fn drawn_devices(layout: &Layout<'_>, bar: i32, devices: &[DevicePosition<'_>]) -> Markup {
    let Some((port, area)) = port_of(layout, devices) else {
        return html! {
            @for device in devices {
                (part(layout, device.function, &html! {
                    (wire_to_bar(device, device.area, bar))
                    (node(&device.function.mark.classes("device"), device.area))
                }))
            }
        };
    };
    html! {
        @if let Some(first) = devices.first() {
            (part(layout, port, &html! {
                (wire_to_bar(first, area, bar))
                (node(&port.mark.classes("port"), area))
            }))
        }
        @for device in devices {
            (part(layout, device.function, &html! {
                (wire_to_port(layout, device, area))
                (node(&device.function.mark.classes("device"), device.area))
            }))
        }
    }
}

/// Returns the port directly above all of `devices`, and its box, which is above their first line.
fn port_of<'a>(
    layout: &Layout<'_>,
    devices: &[DevicePosition<'a>],
) -> Option<(&'a Function, Area)> {
    let first = devices.first()?;
    let is_beside = |device: &&DevicePosition<'_>| device.area.top == first.area.top;
    let last = devices.iter().rev().find(is_beside)?;
    let area = layout.port_area(first)?;
    let width = last.area.right() - area.left;
    Some((first.port?, Area { width, ..area }))
}

/// Returns the wire from a bar down to `area`, which is that of the device or of its port.
fn wire_to_bar(device: &DevicePosition<'_>, area: Area, bar: i32) -> Markup {
    match device.passage {
        None => upright(area.middle(), bar, area.top),
        Some(passage) => {
            let (middle, top) = (area.middle(), area.top);
            html! { path.wire d=(format!("M{passage} {bar}V{}H{middle}V{top}", top - 6)) {} }
        }
    }
}

/// Returns the wire from a port's box down to a device. It passes by the devices above the device.
fn wire_to_port(layout: &Layout<'_>, device: &DevicePosition<'_>, port: Area) -> Markup {
    let (middle, top) = (device.area.middle(), device.area.top);
    if top == port.bottom() + layout.shape.wire {
        return upright(middle, port.bottom(), top);
    }
    let (start, height) = (port.right(), port.top + port.height / 2);
    let passage = start + layout.shape.gap / 2;
    html! { path.wire d=(format!("M{start} {height}H{passage}V{}H{middle}V{top}", top - 6)) {} }
}

/// Returns the words in the boxes of rows and devices, which are above all lines.
pub fn words(layout: &Layout<'_>) -> Markup {
    html! {
        @for row in &layout.rows {
            @if let Some((_, port)) = row.switch { (words_of_port(row, port)) }
            @let sign = row.switch.map_or("", |(switch, _)| switch.mark.sign());
            (text("part", row.bar.left + 12, row.bar.top + 20, "start", &format!("{}{sign}", row.title())))
            @for devices in row.devices.chunk_by(DevicePosition::has_port_of) {
                (words_of_tab(layout, devices))
                @for device in devices { (words_of_device(device, &layout.shape)) }
            }
        }
    }
}

fn words_of_port(row: &Row<'_>, port: Option<&Function>) -> Markup {
    let top = row.port.top;
    let (first, second) = if row.port.height > HIGH_PORT {
        (15, 29)
    } else {
        (13, 25)
    };
    let kind = match row.depth() {
        0 if row.port.width > WIDE_PORT => "root port",
        _ => "port",
    };
    html! {
        (note_in(row.port, top + first, kind))
        @if let Some(port) = port { (note_in(row.port, top + second, &marked(port))) }
    }
}

fn words_of_tab(layout: &Layout<'_>, devices: &[DevicePosition<'_>]) -> Markup {
    html! {
        @if let Some((port, area)) = port_of(layout, devices) {
            @let words = if layout.shape.device > WIDE_TAB { format!("root port {}", marked(port)) } else { marked(port) };
            (text("note", area.middle(), area.top + area.height / 2 + BELOW_MIDDLE, "middle", &words))
        }
    }
}

fn words_of_device(device: &DevicePosition<'_>, shape: &Shape) -> Markup {
    let (middle, top) = (device.area.middle(), device.area.top);
    let mut lines = shape.baselines.iter().map(|line| top + line);
    let name = lines.next().unwrap_or(top);
    html! {
        (text("name", middle, name, "middle", &format!("{}{}", device.name, device.function.mark.sign())))
        @for (words, line) in device.function.words.iter().zip(lines) {
            (text("note", middle, line, "middle", words))
        }
    }
}

/// Returns the name or the address of a port with the sign of what it does to requests.
fn marked(port: &Function) -> String {
    let name = port.name.as_deref().unwrap_or_else(|| short(&port.address));
    format!("{name}{}", port.mark.sign())
}
