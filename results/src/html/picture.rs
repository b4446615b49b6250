//! The topology as a picture, with the route of each transfer: inline SVG, coloured by the page's style.

use maud::{Markup, html};
use peerbar_lab::size::human;
use peerbar_report::{PciFunction, Route};

use super::layout::{Branch, DEVICE_HEIGHT, DEVICE_WIDTH, DevicePosition, GAP, MachineLayout};
use super::routed::{MemoryOwner, RoutedBytes};

/// Left end of everything but guest RAM.
const LEFT: i32 = 160;
/// Width of guest RAM.
const RAM_WIDTH: i32 = 116;
/// Height of a lane, in which one transfer crosses a bar.
const LANE: i32 = 24;
/// Height of the title of a bar.
const TITLE: i32 = 30;
/// Between two rows.
const ROW_GAP: i32 = 26;
/// Height of a root port.
const PORT_HEIGHT: i32 = 24;
/// Between two lines at an edge.
const SLOT: i32 = 16;
/// Radius of a corner.
const RADIUS: i32 = 6;
/// Class codes of the devices (PCI Code and ID Assignment): NVMe, display, processing accelerator.
const NVME: u32 = 0x01_0802;

/// The picture of the machine of `functions` with `transfers`; nothing if no device is known.
pub(super) fn picture(
    functions: &[PciFunction],
    transfers: &[RoutedBytes],
    title: &str,
) -> Option<Markup> {
    let layout = MachineLayout::of(functions, LEFT)?;
    let rows = Rows::of(&layout, transfers);
    let lines = lines(&layout, &rows, transfers);
    let (width, height) = (layout.right + 12, rows.bottom);
    let description: Vec<String> = transfers.iter().map(RoutedBytes::line).collect();
    Some(html! {
        div.picture tabindex="0" role="region" aria-label=(title) {
            svg viewBox=(format!("0 0 {width} {height}")) style=(format!("min-width:{}px", width * 3 / 4))
                role="img" aria-label=(format!("{title}. {}", description.join(". "))) {
                (machine(&layout, &rows))
                @for line in &lines { (line.drawn()) }
                @for line in &lines { (line.label()) }
            }
        }
    })
}

/// Where the rows are, from top to bottom.
struct Rows {
    root: i32,
    root_height: i32,
    port: i32,
    switch: i32,
    switch_height: i32,
    device: i32,
    bottom: i32,
}

impl Rows {
    fn of(layout: &MachineLayout<'_>, transfers: &[RoutedBytes]) -> Self {
        let up = transfers.iter().filter(|transfer| goes_up(transfer));
        let up = i32::try_from(up.count()).unwrap_or(i32::MAX / LANE / 4);
        let in_switch =
            (0..layout.branches.len()).map(|branch| crossing(layout, transfers, branch));
        let most = i32::try_from(in_switch.max().unwrap_or(0)).unwrap_or(i32::MAX / LANE / 4);
        let root = 8;
        let root_height = TITLE + LANE * up.max(1);
        let port = root + root_height + ROW_GAP;
        let switch = port + PORT_HEIGHT + ROW_GAP;
        let has_switch = layout.branches.iter().any(|branch| branch.switch.is_some());
        let switch_height = match has_switch {
            true => TITLE + LANE * most.max(1),
            false => 0,
        };
        let device = switch + switch_height + if has_switch { ROW_GAP } else { 0 };
        let own = transfers
            .iter()
            .any(|transfer| transfer.owner == MemoryOwner::Own);
        Self {
            root,
            root_height,
            port,
            switch,
            switch_height,
            device,
            bottom: device + DEVICE_HEIGHT + if own { 52 } else { 14 },
        }
    }
}

/// Whether a transfer leaves its root port.
fn goes_up(transfer: &RoutedBytes) -> bool {
    matches!(transfer.route, Route::GuestRam | Route::Upstream)
}

/// How many transfers need a lane in the switch of this branch.
fn crossing(layout: &MachineLayout<'_>, transfers: &[RoutedBytes], branch: usize) -> usize {
    let is_here = |name: &str| layout.find(name).is_some_and(|(at, _)| at == branch);
    let crosses = |transfer: &&RoutedBytes| {
        let ends_here = match &transfer.owner {
            MemoryOwner::Device(name) => goes_up(transfer) && is_here(name),
            _ => false,
        };
        let starts_here = is_here(&transfer.requester) && transfer.owner != MemoryOwner::Own;
        starts_here || ends_here
    };
    transfers.iter().filter(crosses).count()
}

fn machine(layout: &MachineLayout<'_>, rows: &Rows) -> Markup {
    let root_width = layout.right - LEFT;
    let buses: Vec<&str> = {
        let mut buses: Vec<&str> = layout.branches.iter().map(|b| b.root_bus).collect();
        buses.dedup();
        buses
    };
    html! {
        (node("ram", 8, rows.root, RAM_WIDTH, rows.root_height))
        (text("part", 8 + RAM_WIDTH / 2, rows.root + 20, "middle", "guest RAM"))
        (node("root", LEFT, rows.root, root_width, rows.root_height))
        (text("part", LEFT + 12, rows.root + 20, "start", &format!("host bridge {}", buses.join(", "))))
        @if let Some(iommu) = layout.iommu {
            (text("note", layout.right - 12, rows.root + 20, "end", iommu))
        }
        @for branch in &layout.branches { (drawn_branch(branch, rows)) }
    }
}

fn drawn_branch(branch: &Branch<'_>, rows: &Rows) -> Markup {
    let width = branch.right - branch.left;
    let middle = branch.left + width / 2;
    html! {
        @if let Some(port) = branch.port {
            (wire(middle, rows.root + rows.root_height, rows.port))
            (node("port", branch.left, rows.port, width, PORT_HEIGHT))
            (text("note", branch.left + 12, rows.port + 16, "start", &format!("root port {}", short(&port.address))))
            @if branch.switch.is_none() { (wire(middle, rows.port + PORT_HEIGHT, rows.device)) }
        }
        @if let Some(switch) = branch.switch {
            (wire(middle, rows.port + PORT_HEIGHT, rows.switch))
            (node("switch", branch.left, rows.switch, width, rows.switch_height))
            (text("part", branch.left + 12, rows.switch + 20, "start", &named("switch", switch)))
            @for device in &branch.devices {
                (wire(device.left + DEVICE_WIDTH / 2, rows.switch + rows.switch_height, rows.device))
            }
        }
        @for device in &branch.devices { (drawn_device(device, rows.device)) }
    }
}

fn drawn_device(device: &DevicePosition<'_>, y: i32) -> Markup {
    let function = device.function;
    let kind = match (function.class, function.class >> 16) {
        (NVME, _) => "NVMe controller",
        (_, 0x03 | 0x12) => "GPU",
        _ => "device",
    };
    let memory = function
        .p2pmem
        .map(|bytes| format!("p2pmem {}", human(bytes)));
    let middle = device.left + DEVICE_WIDTH / 2;
    html! {
        (node("device", device.left, y, DEVICE_WIDTH, DEVICE_HEIGHT))
        (text("name", middle, y + 26, "middle", device.name))
        (text("note", middle, y + 44, "middle", &format!("{kind}, {}", short(&function.address))))
        @if let Some(memory) = memory { (text("note", middle, y + 60, "middle", &memory)) }
    }
}

/// An address without its domain, if that is the first.
fn short(address: &str) -> &str {
    address.strip_prefix("0000:").unwrap_or(address)
}

fn named(what: &str, function: &PciFunction) -> String {
    match &function.name {
        Some(name) => name.clone(),
        None => format!("{what} {}", short(&function.address)),
    }
}

fn node(class: &str, x: i32, y: i32, width: i32, height: i32) -> Markup {
    html! { rect.node.(class) x=(x) y=(y) width=(width) height=(height) rx="8" {} }
}

fn text(class: &str, x: i32, y: i32, anchor: &str, words: &str) -> Markup {
    html! { text.(class) x=(x) y=(y) text-anchor=(anchor) { (words) } }
}

fn wire(x: i32, from: i32, to: i32) -> Markup {
    html! { path.wire d=(format!("M{x} {from}V{to}")) {} }
}

/// A transfer in the picture.
struct Line<'a> {
    transfer: &'a RoutedBytes,
    /// Corners, from the requester to the memory.
    points: Vec<(i32, i32)>,
    /// Where its label is.
    label: (i32, i32),
}

/// How many lines already touch each edge, so that the next one gets a slot of its own.
#[derive(Default)]
struct Slots(std::collections::BTreeMap<String, i32>);

impl Slots {
    fn next(&mut self, edge: String) -> i32 {
        let slot = self.0.entry(edge).or_default();
        *slot += 1;
        *slot - 1
    }
}

fn lines<'a>(
    layout: &MachineLayout<'_>,
    rows: &Rows,
    transfers: &'a [RoutedBytes],
) -> Vec<Line<'a>> {
    let mut slots = Slots::default();
    let lines = transfers.iter().filter_map(|transfer| {
        let (branch, device) = layout.find(&transfer.requester)?;
        let start = slot_x(&mut slots, device);
        let mut points = vec![(start, rows.device)];
        let label = match (transfer.route, &transfer.owner) {
            (_, MemoryOwner::Own) => return Some(own(transfer, device, rows)),
            (Route::Refused, _) => {
                points.push((start, rows.device - ROW_GAP / 2));
                (start, rows.device - ROW_GAP / 2)
            }
            (Route::Peer | Route::OwnBar, owner) => {
                let y = switch_lane(&mut slots, rows, branch);
                points.push((start, y));
                let end = match owner {
                    MemoryOwner::Device(name) => layout.find(name).map(|(_, device)| device),
                    _ => None,
                };
                let x = end.map_or(start + DEVICE_WIDTH / 2, |end| slot_x(&mut slots, end));
                points.push((x, y));
                if end.is_some() {
                    points.push((x, rows.device));
                }
                ((start + x) / 2, y)
            }
            (Route::GuestRam | Route::Upstream, owner) => {
                climb(&mut points, &mut slots, layout, rows, branch);
                let end = match owner {
                    MemoryOwner::Device(name) => layout.find(name),
                    _ => None,
                };
                cross_root(&mut points, &mut slots, layout, rows, end)
            }
        };
        Some(Line {
            transfer,
            points,
            label,
        })
    });
    lines.collect()
}

/// Continues `points` from a root port across the root, to guest RAM or down to a device; where the label goes.
fn cross_root(
    points: &mut Vec<(i32, i32)>,
    slots: &mut Slots,
    layout: &MachineLayout<'_>,
    rows: &Rows,
    end: Option<(usize, &DevicePosition<'_>)>,
) -> (i32, i32) {
    let up = points.last().map_or(LEFT, |(x, _)| *x);
    let y = rows.root + TITLE + LANE / 2 + LANE * slots.next("root".to_owned());
    points.push((up, y));
    let Some((branch, device)) = end else {
        points.push((8 + RAM_WIDTH, y));
        return ((up + LEFT) / 2, y);
    };
    let mut down = vec![(slot_x(slots, device), rows.device)];
    climb(&mut down, slots, layout, rows, branch);
    let x = down.last().map_or(up, |(x, _)| *x);
    points.push((x, y));
    points.extend(down.into_iter().rev());
    ((up + x) / 2, y)
}

/// The next free slot at the upper edge of a device.
fn slot_x(slots: &mut Slots, device: &DevicePosition<'_>) -> i32 {
    let slot = slots.next(format!("device {}", device.name));
    // From the middle outwards, in turn to the right and to the left.
    let offset = (slot + 1) / 2 * SLOT * if slot % 2 == 1 { 1 } else { -1 };
    let most = DEVICE_WIDTH / 2 - 10;
    device.left + DEVICE_WIDTH / 2 + offset.clamp(-most, most)
}

fn switch_lane(slots: &mut Slots, rows: &Rows, branch: usize) -> i32 {
    rows.switch + TITLE + LANE / 2 + LANE * slots.next(format!("switch {branch}"))
}

/// Continues `points` from a device to its root port, by a lane of the switch if there is one.
fn climb(
    points: &mut Vec<(i32, i32)>,
    slots: &mut Slots,
    layout: &MachineLayout<'_>,
    rows: &Rows,
    branch: usize,
) {
    let Some(target) = layout.branches.get(branch) else {
        return;
    };
    if target.switch.is_some() {
        let from = points.last().map_or(target.left, |(x, _)| *x);
        let y = switch_lane(slots, rows, branch);
        // Between the last two devices, where no line of theirs is.
        let between = match target.devices.as_slice() {
            [.., _, last] => last.left - GAP + SLOT / 2,
            _ => target.left + 10,
        };
        let slot = slots.next(format!("port {branch}"));
        let x = between + slot * SLOT;
        points.push((from, y));
        points.push((x.min(target.right - 10), y));
    }
    if let Some((x, _)) = points.last().copied() {
        points.push((x, rows.port));
    }
}

/// A loop below the device: its own memory.
fn own<'a>(transfer: &'a RoutedBytes, device: &DevicePosition<'_>, rows: &Rows) -> Line<'a> {
    let (bottom, middle) = (rows.device + DEVICE_HEIGHT, device.left + DEVICE_WIDTH / 2);
    Line {
        transfer,
        points: vec![
            (middle - 30, bottom),
            (middle - 30, bottom + 18),
            (middle + 30, bottom + 18),
            (middle + 30, bottom),
        ],
        label: (middle, bottom + 34),
    }
}

impl Line<'_> {
    fn drawn(&self) -> Markup {
        let transfer = self.transfer;
        let class = format!("line {}", transfer.route.word());
        html! {
            g class=(class) {
                title { (transfer.line()) }
                path d=(rounded(&self.points)) stroke-width=(width(transfer.bytes())) {}
                @if transfer.written > 0 { (self.head(true)) }
                @if transfer.read > 0 { (self.head(false)) }
            }
        }
    }

    /// An arrow's head: at the memory if data goes there, else at the requester.
    fn head(&self, at_memory: bool) -> Markup {
        let last = self.points.len().saturating_sub(1);
        let (end, before) = match at_memory {
            true => (last, last.saturating_sub(1)),
            false => (0, 1),
        };
        let (Some((x, y)), Some((from_x, from_y))) =
            (self.points.get(end), self.points.get(before))
        else {
            return html! {};
        };
        let ((dx, dy), size) = (((x - from_x).signum(), (y - from_y).signum()), 8);
        let (back_x, back_y) = (x - dx * size, y - dy * size);
        let (side_x, side_y) = (dy * size / 2 + dy, dx * size / 2 + dx);
        let points = format!(
            "{x},{y} {},{} {},{}",
            back_x + side_x,
            back_y + side_y,
            back_x - side_x,
            back_y - side_y
        );
        html! { polygon points=(points) {} }
    }

    fn label(&self) -> Markup {
        let ((x, y), transfer) = (self.label, self.transfer);
        let class = format!("amount {}", transfer.route.word());
        let words = match transfer.route {
            Route::Refused => "refused".to_owned(),
            _ => human(transfer.bytes()),
        };
        html! { text class=(class) x=(x) y=(y + 4) text-anchor="middle" { (words) } }
    }
}

/// Between 1.5 and 4.5, a step for each factor of 8 above 4 KiB.
fn width(bytes: u64) -> f64 {
    let steps = f64::from(bytes.max(4096).ilog2() - 12) / 3.0;
    (1.5 + steps * 0.6).min(4.5)
}

/// A path through `points` with round corners.
fn rounded(points: &[(i32, i32)]) -> String {
    let Some((x, y)) = points.first() else {
        return String::new();
    };
    let mut path = format!("M{x} {y}");
    for corner in points.windows(3) {
        let [before, (x, y), after] = corner else {
            continue;
        };
        let towards = |(to_x, to_y): &(i32, i32)| {
            let (dx, dy) = (to_x - x, to_y - y);
            let (by_x, by_y) = (RADIUS.min(dx.abs() / 2), RADIUS.min(dy.abs() / 2));
            (x + dx.signum() * by_x, y + dy.signum() * by_y)
        };
        let ((in_x, in_y), (out_x, out_y)) = (towards(before), towards(after));
        path += &format!("L{in_x} {in_y}Q{x} {y} {out_x} {out_y}");
    }
    if let Some((x, y)) = points.last() {
        path += &format!("L{x} {y}");
    }
    path
}
