//! The topology as a picture, with the route of each transfer: inline SVG, coloured by the page's
//! style.

use maud::{Markup, html};
use peerbar_lab::size::human;
use peerbar_picture::{
    Area, DevicePosition, Function, Lanes, Layout, Port, Shape, TRUNK, lane_key, machine, node,
    note_in, short, text, words, words_key,
};
use peerbar_report::{PciFunction, Route};

use super::routed::{MemoryOwner, RoutedBytes};

/// Distance between two lines at the edge of a device, and between two lines that pass devices.
const SLOT: i32 = 16;
const PASSAGE_SLOT: i32 = 4;
/// Radius of a corner.
const RADIUS: i32 = 6;
/// Half the size of a cross.
const CROSS: i32 = 6;
/// Approximate width of a letter of a label.
const LETTER: i32 = 7;
/// Class codes of the devices (PCI Code and ID Assignment): NVMe, network, display, processing
/// accelerator.
const NVME: u32 = 0x01_0802;
const NETWORK: u32 = 0x02;
const DISPLAY: u32 = 0x03;
const ACCELERATOR: u32 = 0x12;
/// Device/Port Type of ports (PCIe Base 6.0, 7.5.3.2).
const ROOT_PORT: u8 = 4;
const UPSTREAM_PORT: u8 = 5;
const DOWNSTREAM_PORT: u8 = 6;

/// For a screen: the devices of a whole switch are in one line.
const WIDE: Shape = Shape {
    is_detailed: false,
    columns: 6,
    ram: 96,
    trunk: 112,
    host: 0,
    port: 92,
    device: 138,
    gap: 22,
    device_height: 84,
    port_height: 24,
    wire: 22,
    line_gap: 30,
    row_gap: 24,
    lanes: 1,
    baselines: &[24, 41, 56, 72],
};

/// For a phone: each device has its own line.
const NARROW: Shape = Shape {
    columns: 1,
    ram: 46,
    trunk: 60,
    port: 56,
    gap: 14,
    ..WIDE
};

/// A pair between which the kernel refuses peer-to-peer DMA, at the root complex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RefusedPair {
    /// The device with the DMA.
    pub(super) client: String,
    /// The device with the memory.
    pub(super) provider: String,
    /// The reason, in a few words.
    pub(super) reason: String,
}

/// The DMA that the picture shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'a> {
    pub(super) transfers: &'a [RoutedBytes],
    pub(super) refused: &'a [RefusedPair],
}

impl Shown<'_> {
    /// Returns `true` if there is nothing to show.
    pub(super) fn is_empty(self) -> bool {
        self.transfers.is_empty() && self.refused.is_empty()
    }

    /// Returns `true` if a route with this word is drawn in the machine of `functions`.
    pub(super) fn draws(self, functions: &[PciFunction], word: &str) -> bool {
        let is_there = |name: &str| {
            functions
                .iter()
                .any(|function| function.name.as_deref() == Some(name))
        };
        let mut transfers = self.transfers.iter();
        let is_refused = word == Route::Refused.word();
        transfers.any(|one| one.route_word() == word && is_there(&one.requester))
            || (is_refused && self.refused.iter().any(|pair| is_there(&pair.client)))
    }
}

/// Returns the picture of the machine of `functions` with the DMA in `shown`, for a screen and for
/// a phone. Returns `None` if no device is known.
pub(super) fn picture(functions: &[PciFunction], shown: Shown<'_>, title: &str) -> Option<Markup> {
    Some(html! {
        div.picture {
            (drawn_in(functions, shown, title, WIDE, "screen")?)
            (drawn_in(functions, shown, title, NARROW, "phone")?)
            @if !shown.refused.is_empty() {
                ul.refusals {
                    @for RefusedPair { client, provider, reason } in shown.refused {
                        li { b { (client) " → " (provider) } " refused: " (reason) }
                    }
                }
            }
        }
    })
}

fn drawn_in(
    functions: &[PciFunction],
    shown: Shown<'_>,
    title: &str,
    shape: Shape,
    class: &str,
) -> Option<Markup> {
    let drawables: Vec<Function> = functions
        .iter()
        .map(|function| drawable(function, shown))
        .collect();
    // The lines determine the number of lanes, and the lanes determine the positions of the lines.
    let mut lanes = Lanes::new();
    let without = Layout::of(&drawables, shape, &lanes)?;
    lines(&without, &mut lanes, shown);
    let layout = Layout::of(&drawables, shape, &lanes)?;
    let lines = lines(&layout, &mut Lanes::new(), shown);
    let (width, height) = (layout.width, layout.height);
    let transfers = shown.transfers.iter().map(RoutedBytes::line);
    let refused = shown.refused.iter();
    let refused = refused.map(|pair| {
        format!(
            "{} to memory of {}: refused: {}",
            pair.client, pair.provider, pair.reason
        )
    });
    let description: Vec<String> = transfers.chain(refused).collect();
    Some(html! {
        svg.(class) viewBox=(format!("0 0 {width} {height}")) style=(format!("max-width:{width}px"))
            role="img" aria-label=(format!("{title}. {}", description.join(". "))) {
            (node("ram", layout.ram))
            (machine(&layout))
            @for line in &lines { (line.drawn()) }
            (words_of_host(&layout, iommu(functions)))
            (words(&layout))
            @for line in &lines { (line.label()) }
        }
    })
}

/// Returns the words in memory and in the root complex.
fn words_of_host(layout: &Layout<'_>, iommu: Option<&str>) -> Markup {
    let Layout { ram, trunk, .. } = layout;
    let is_wide = is_wide(layout);
    html! {
        (text("part", ram.middle(), ram.top + 20, "middle", if is_wide { "guest RAM" } else { "RAM" }))
        (text("part", trunk.middle(), trunk.top + 20, "middle", if is_wide { "root complex" } else { "root" }))
        @for (number, bus) in (0..).zip(layout.root_buses()) {
            @let bus = if is_wide { bus.to_owned() } else { bus.replace("pci", "") };
            (note_in(*trunk, trunk.top + 37 + 15 * number, &bus))
        }
        @if let Some(iommu) = iommu.filter(|_| is_wide) {
            (note_in(*trunk, trunk.bottom() - 27, "IOMMU"))
            (note_in(*trunk, trunk.bottom() - 12, iommu))
        }
    }
}

/// Returns `true` if there is room for words in addition to the devices' names.
fn is_wide(layout: &Layout<'_>) -> bool {
    layout.shape.ram >= WIDE.ram
}

/// Returns a function of a run for the picture of `shown`.
fn drawable(function: &PciFunction, shown: Shown<'_>) -> Function {
    let is_own = |one: &RoutedBytes| {
        one.owner == MemoryOwner::Own && function.name.as_ref() == Some(&one.requester)
    };
    let kind = match (function.class, function.class >> 16) {
        (NVME, _) => "NVMe controller",
        (_, NETWORK) => "network adapter",
        (_, DISPLAY | ACCELERATOR) => "GPU",
        _ => "device",
    };
    let memory = function
        .p2pmem
        .map(|bytes| format!("p2pmem {}", human(bytes)));
    let words = [kind.to_owned(), short(&function.address).to_owned()];
    Function {
        address: function.address.clone(),
        parent: function.parent.clone(),
        port: match function.port_type {
            Some(ROOT_PORT) => Some(Port::Root),
            Some(UPSTREAM_PORT) => Some(Port::Upstream),
            Some(DOWNSTREAM_PORT) => Some(Port::Downstream),
            _ => None,
        },
        name: function.name.clone(),
        words: words.into_iter().chain(memory).collect(),
        has_loop: shown.transfers.iter().any(is_own),
        ..Function::default()
    }
}

/// Returns the effect of an IOMMU, from the groups of the devices (Linux,
/// Documentation/ABI/testing/sysfs-kernel-iommu_groups).
fn iommu(functions: &[PciFunction]) -> Option<&'static str> {
    let devices = functions.iter().filter(|function| function.name.is_some());
    let mut kinds = devices.filter_map(|device| Some(device.iommu_group.as_ref()?.kind.as_str()));
    let kind = kinds.next()?;
    Some(match kind.starts_with("DMA") {
        true => "translates",
        false => "passes through",
    })
}

/// A transfer, or a pair that is refused, in the picture.
struct Line<'a> {
    what: What<'a>,
    /// Corners, from the requester to the memory.
    points: Vec<(i32, i32)>,
    /// Position of its label: the middle, or for a refusal the start of the label.
    label: (i32, i32),
    words: String,
    /// The point where a request ends.
    cross: Option<(i32, i32)>,
}

/// The subject of a line.
#[derive(Clone, Copy)]
enum What<'a> {
    Moved(&'a RoutedBytes),
    Refused(&'a RefusedPair),
}

/// Returns all lines. `lanes` gets their number at each edge and in each lane.
fn lines<'a>(layout: &Layout<'_>, lanes: &mut Lanes, shown: Shown<'a>) -> Vec<Line<'a>> {
    let mut drawing = Drawing { layout, lanes };
    let mut lines = Vec::new();
    // Refusals come first, at the top of each bar.
    for pair in shown.refused {
        lines.extend(drawing.refused(pair));
    }
    for transfer in shown.transfers {
        lines.extend(drawing.moved(transfer));
    }
    lines
}

/// Assigns separate lanes to each line.
struct Drawing<'a, 'b> {
    layout: &'a Layout<'a>,
    lanes: &'b mut Lanes,
}

impl Drawing<'_, '_> {
    fn moved<'t>(&mut self, transfer: &'t RoutedBytes) -> Option<Line<'t>> {
        let (row, device) = self.layout.find(&transfer.requester)?;
        let what = What::Moved(transfer);
        if transfer.owner == MemoryOwner::Own {
            return Some(own(transfer, device.area));
        }
        let target = match &transfer.owner {
            MemoryOwner::Device(name) => self.layout.find(name),
            _ => None,
        };
        let mut points = self.ascent(device);
        let lane = self.lane(row);
        let start = turn(&mut points, lane);
        let left = self.layout.rows.get(row).map_or(start, |row| row.bar.left);
        let (mut end, mut cross) = ((start + left) / 2, None);
        match (transfer.route, target) {
            (Route::Refused, _) => cross = Some((start, lane)),
            (Route::GuestRam, _) => points.push((self.layout.ram.right(), lane)),
            (Route::Peer | Route::OwnBar, Some((_, target))) => {
                end = (start + self.descend(&mut points, lane, target)) / 2;
            }
            (Route::Peer | Route::OwnBar, None) => points.push((end, lane)),
            (Route::Upstream, target) => {
                end = self.through_root(&mut points, (row, lane), target).0;
            }
        }
        Some(Line {
            what,
            points,
            label: (end, lane),
            words: match transfer.route {
                Route::Refused => "refused".to_owned(),
                _ => human(transfer.bytes()),
            },
            cross,
        })
    }

    /// Returns the path that requests of a pair would take, if the root complex let them pass.
    fn refused<'t>(&mut self, pair: &'t RefusedPair) -> Option<Line<'t>> {
        let (row, client) = self.layout.find(&pair.client)?;
        let target = self.layout.find(&pair.provider)?;
        let mut points = self.ascent(client);
        let lane = self.lane(row);
        turn(&mut points, lane);
        let (_, cross) = self.through_root(&mut points, (row, lane), Some(target));
        // Its words have a separate lane. The list below the picture has the full text.
        let lane = self.lane(row);
        let words = match is_wide(self.layout) {
            true => format!("✕ {}", pair.reason),
            false => "✕ refused".to_owned(),
        };
        let letters = i32::try_from(words.chars().count()).unwrap_or(i32::MAX / 16);
        let here = self.layout.rows.get(row)?;
        // They begin at the place of the decision: at the root complex, or at a root bus, which is
        // a part of it.
        let left = match here.switch {
            Some(_) => cross.0 - CROSS,
            None => here.bar.left,
        };
        let width = self.lanes.entry(words_key(row)).or_default();
        *width = (*width).max(LETTER * letters + 24 - (here.bar.left - left));
        Some(Line {
            what: What::Refused(pair),
            points,
            label: (left + 12, lane),
            words,
            cross: Some(cross),
        })
    }

    /// Continues `points` from a lane of a row across the root complex: to a device, or to memory
    /// that it knows. Returns the position of the label in the lane, and the place where the root
    /// complex decides.
    fn through_root(
        &mut self,
        points: &mut Vec<(i32, i32)>,
        (row, lane): (usize, i32),
        target: Option<(usize, &DevicePosition<'_>)>,
    ) -> (i32, (i32, i32)) {
        let start = points.last().map_or(0, |(x, _)| *x);
        let here = self.layout.rows.get(row);
        let is_at_root = here.is_some_and(|row| row.switch.is_none());
        if let Some((_, target)) = target.filter(|(other, _)| *other == row && is_at_root) {
            let middle = (start + self.descend(points, lane, target)) / 2;
            return (middle, (middle, lane));
        }
        let label = here.map_or(start, |row| (start + row.bar.left) / 2);
        let across = self.layout.trunk_lane(self.next(TRUNK.to_owned()));
        points.push((across, lane));
        let Some((other, target)) = target else {
            return (label, (across, lane));
        };
        let down = self.lane(other);
        points.push((across, down));
        self.descend(points, down, target);
        (label, (across, lane))
    }

    /// Continues `points` along a lane and down to a device. Returns the point where it leaves the
    /// lane.
    fn descend(
        &mut self,
        points: &mut Vec<(i32, i32)>,
        lane: i32,
        target: &DevicePosition<'_>,
    ) -> i32 {
        let mut down = self.ascent(target);
        let x = turn(&mut down, lane);
        points.extend(down.into_iter().rev());
        x
    }

    /// Returns the path from a device up past those above it.
    fn ascent(&mut self, device: &DevicePosition<'_>) -> Vec<(i32, i32)> {
        let slot = self.next(format!("device {}", device.name));
        let most = device.area.width / 2 - 10;
        let x = device.area.middle() + (alternating(slot) * SLOT).clamp(-most, most);
        let mut points = vec![(x, device.area.top)];
        if let Some(passage) = device.passage {
            let top = self.layout.port_area(device).unwrap_or(device.area).top;
            let y = top - 10;
            let row = self.layout.find(device.name).map(|(row, _)| row);
            let slot = self.next(format!("passage {passage} of {row:?}"));
            points.push((x, y));
            points.push((passage - alternating(slot % 4) * PASSAGE_SLOT, y));
        }
        points
    }

    fn lane(&mut self, row: usize) -> i32 {
        let slot = self.next(lane_key(row));
        self.layout.lane(row, slot)
    }

    fn next(&mut self, key: String) -> i32 {
        let count = self.lanes.entry(key).or_default();
        *count += 1;
        *count - 1
    }
}

/// Returns 0, 1, -1, 2, -2 and so on: from the middle outwards.
fn alternating(slot: i32) -> i32 {
    (slot + 1) / 2 * if slot % 2 == 1 { 1 } else { -1 }
}

/// Ends the path in a lane directly above. Returns the position.
fn turn(points: &mut Vec<(i32, i32)>, lane: i32) -> i32 {
    let x = points.last().map_or(0, |(x, _)| *x);
    points.push((x, lane));
    x
}

/// Returns a loop below the device: its own memory.
fn own(transfer: &RoutedBytes, device: Area) -> Line<'_> {
    let (bottom, middle) = (device.bottom(), device.middle());
    Line {
        what: What::Moved(transfer),
        words: human(transfer.bytes()),
        points: vec![
            (middle - 30, bottom),
            (middle - 30, bottom + 14),
            (middle + 30, bottom + 14),
            (middle + 30, bottom),
        ],
        label: (middle, bottom + 24),
        cross: None,
    }
}

impl Line<'_> {
    fn route(&self) -> Route {
        match self.what {
            What::Moved(transfer) => transfer.route,
            What::Refused(_) => Route::Refused,
        }
    }

    fn drawn(&self) -> Markup {
        let class = format!("line {}", self.route().word());
        let (title, thickness) = match self.what {
            What::Moved(transfer) => (transfer.line(), width(transfer.bytes())),
            What::Refused(pair) => (format!("{} → {}: refused", pair.client, pair.provider), 2.5),
        };
        html! {
            g class=(class) {
                title { (title) }
                path d=(rounded(&self.points)) stroke-width=(thickness) {}
                @if let What::Moved(transfer) = self.what {
                    @if transfer.written > 0 { (self.head(true)) }
                    @if transfer.read > 0 { (self.head(false)) }
                }
                @if let Some((x, y)) = self.cross {
                    path.cross d=(format!("M{} {}L{} {}M{} {}L{} {}", x - CROSS, y - CROSS, x + CROSS, y + CROSS,
                        x - CROSS, y + CROSS, x + CROSS, y - CROSS)) {}
                }
            }
        }
    }

    /// Returns an arrow's head: at the memory if data goes there, otherwise at the requester.
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
        let (x, y) = self.label;
        let class = format!("amount {}", self.route().word());
        let anchor = match self.what {
            What::Refused(_) => "start",
            What::Moved(_) => "middle",
        };
        html! { text class=(class) x=(x) y=(y + 4) text-anchor=(anchor) { (self.words) } }
    }
}

/// Returns a width between 1.5 and 4.5, with a step for each factor of 8 above 4 KiB.
fn width(bytes: u64) -> f64 {
    let steps = f64::from(bytes.max(4096).ilog2() - 12) / 3.0;
    (1.5 + steps * 0.6).min(4.5)
}

/// Returns a path through `points` with round corners.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn picture_has_the_route_and_the_words_of_a_run() {
        let run = samples::reported();
        let transfers = super::super::routed::routed(&run.results.checks);
        let shown = Shown {
            transfers: &transfers,
            refused: &[],
        };
        let drawn = picture(&run.functions, shown, "Routes")
            .unwrap()
            .into_string();
        for text in [
            ">NVMe controller<",
            ">p2pmem 64 MiB<",
            ">translates<",
            ">root port 00:03.0<",
            "line peer",
        ] {
            assert!(drawn.contains(text), "{text}: {drawn}");
        }
        assert!(!drawn.contains("data-at"), "{drawn}");
    }

    #[test]
    fn full_switch_fits_a_phone() {
        let functions: Vec<Function> = samples::functions()
            .iter()
            .map(|function| {
                let shown = Shown {
                    transfers: &[],
                    refused: &[],
                };
                drawable(function, shown)
            })
            .collect();
        let narrow = Layout::of(&functions, NARROW, &Lanes::new()).unwrap();
        assert!(narrow.width < 400, "{}", narrow.width);
    }
}
