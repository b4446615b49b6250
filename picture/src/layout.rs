//! The layout of a machine in the picture: memory and the root complex on the left, and rows of
//! devices on their right.
//!
//! A row has the devices below one switch, or all devices below root ports of one root bus.
//! Requests cross its bar, which is the switch, or a part of the root bus, in lanes. Root buses
//! whose host bridges are drawn share a line if they have no switch and there is room.

use std::collections::BTreeMap;

use crate::area::Area;
use crate::function::{Function, short};
use crate::rows::rows;

/// Height of a lane, and of the space above the first one.
const LANE: i32 = 22;
const TITLE: i32 = 30;
/// Height of a loop below a device.
const LOOP: i32 = 34;
/// Distance between a bar's edge and its devices.
const PADDING: i32 = 12;
/// Distance between the left edges of a switch's bar and of the port of a switch below it.
const INDENT: i32 = 28;
/// Width of a lane of the root complex.
const TRUNK_LANE: i32 = 16;
/// Left margin.
const MARGIN: i32 = 8;

/// The sizes of the parts, in pixels, and how much of a machine is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Draws host bridges, downstream ports, and switches below switches; and marks each part with
    /// its address, in the attribute `data-at`.
    pub is_detailed: bool,
    /// Most devices in a line.
    pub columns: usize,
    /// Width of memory, or 0 without memory.
    pub ram: i32,
    /// Least width of the root complex.
    pub trunk: i32,
    /// Width of a host bridge.
    pub host: i32,
    /// Width of the port above a switch.
    pub port: i32,
    /// Width of a device.
    pub device: i32,
    /// Distance between neighbours.
    pub gap: i32,
    /// Height of a device.
    pub device_height: i32,
    /// Height of a port above a device.
    pub port_height: i32,
    /// Distance between a bar and its devices, or their ports.
    pub wire: i32,
    /// Distance between two lines of devices in a row.
    pub line_gap: i32,
    /// Distance between two rows.
    pub row_gap: i32,
    /// Least number of lanes in a bar.
    pub lanes: i32,
    /// The lines of text in a device, from its upper edge.
    pub baselines: &'static [i32],
}

/// A machine's parts.
#[derive(Debug)]
pub struct Layout<'a> {
    /// The sizes.
    pub shape: Shape,
    /// From top to bottom.
    pub rows: Vec<Row<'a>>,
    /// Memory.
    pub ram: Area,
    /// The root complex.
    pub trunk: Area,
    /// The parts of the root complex, by their NUMA nodes.
    pub sockets: Vec<Socket<'a>>,
    /// Width of the picture.
    pub width: i32,
    /// Height of the picture.
    pub height: i32,
}

/// A part of the root complex.
#[derive(Debug)]
pub struct Socket<'a> {
    /// Its NUMA node, if it is known.
    pub node: Option<u16>,
    /// Its host bridges.
    pub hosts: Vec<HostPosition<'a>>,
    /// Its box.
    pub area: Area,
}

/// A host bridge.
#[derive(Debug)]
pub struct HostPosition<'a> {
    /// Name of its root bus.
    pub root_bus: &'a str,
    /// Its box, without a width if host bridges are not drawn.
    pub area: Area,
}

/// The devices below a switch, or below root ports.
#[derive(Debug)]
pub struct Row<'a> {
    /// Name of the host bridge's root bus.
    pub root_bus: &'a str,
    /// NUMA node of the root bus.
    pub socket: Option<u16>,
    /// The switch with the port above it, or `None` if each device has a root port, or no port.
    pub switch: Option<(&'a Function, Option<&'a Function>)>,
    /// Its place in the tree of switches: one number for each switch down to this one.
    pub place: Vec<usize>,
    /// The place where requests change their direction: the switch, or a part of the root bus.
    pub bar: Area,
    /// The port above the switch.
    pub port: Area,
    /// Its devices.
    pub devices: Vec<DevicePosition<'a>>,
}

/// A device and its position.
#[derive(Debug)]
pub struct DevicePosition<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its function.
    pub function: &'a Function,
    /// The port directly above it, if that is drawn.
    pub port: Option<&'a Function>,
    /// Its box.
    pub area: Area,
    /// The start of the column in which requests pass the devices above it; `None` in the first
    /// line.
    pub passage: Option<i32>,
}

/// Lanes that transfers need, by [`lane_key`] of rows and [`TRUNK`]; and the width that words in a
/// row need, by [`words_key`].
pub type Lanes = BTreeMap<String, i32>;

/// The key of the lanes of the root complex.
pub const TRUNK: &str = "trunk";

/// Returns the key of a row's lanes.
pub fn lane_key(row: usize) -> String {
    format!("row {row}")
}

/// Returns the key of the width of a row's words.
pub fn words_key(row: usize) -> String {
    format!("words {row}")
}

impl Socket<'_> {
    /// Returns its name in the attribute `data-at`.
    pub fn name(&self) -> String {
        self.node
            .map_or_else(|| "root".to_owned(), |node| format!("node{node}"))
    }
}

impl Row<'_> {
    /// Returns the number of switches above this row's switch.
    pub fn depth(&self) -> i32 {
        i32::try_from(self.place.len().saturating_sub(1)).unwrap_or_default()
    }

    /// Returns the left edge of the row, to which the wire from its root bus leads.
    pub(crate) fn left(&self) -> i32 {
        if self.port.width > 0 {
            self.port.left
        } else {
            self.bar.left
        }
    }

    /// Moves the row.
    fn shift(&mut self, right: i32, down: i32) {
        let devices = self.devices.iter_mut();
        let passages = devices.filter_map(|device| device.passage.as_mut());
        passages.for_each(|passage| *passage += right);
        let devices = self.devices.iter_mut().map(|device| &mut device.area);
        for area in devices.chain([&mut self.bar, &mut self.port]) {
            area.left += right;
            area.top += down;
        }
    }

    /// Returns the lower edge of the row, without loops below its devices.
    fn bottom(&self) -> i32 {
        self.devices
            .last()
            .map_or(self.bar.bottom(), |device| device.area.bottom())
    }

    /// Returns the words in the bar.
    pub fn title(&self) -> String {
        match self.switch {
            Some((switch, _)) => switch
                .name
                .clone()
                .unwrap_or_else(|| format!("switch {}", short(&switch.address))),
            // A source that does not show the bus has words in the place of its name.
            None if self.root_bus.contains(' ') => "root bus".to_owned(),
            // Like an address, without the first domain.
            None => {
                let bus = self.root_bus.strip_prefix("pci0000:");
                format!("root bus {}", bus.unwrap_or(self.root_bus))
            }
        }
    }

    /// Returns the most devices in one of its lines.
    fn columns(&self, shape: &Shape) -> usize {
        shape.columns.saturating_sub(self.place.len() - 1).max(1)
    }

    /// Gives the row its positions from `left` and `top` on, with `lanes` in its bar. Returns its
    /// end.
    fn arrange(
        &mut self,
        shape: &Shape,
        columns: usize,
        (left, top): (i32, i32),
        lanes: i32,
    ) -> i32 {
        let height = TITLE + LANE * lanes.max(shape.lanes);
        let is_switch = self.switch.is_some();
        let port = if is_switch { shape.port + shape.gap } else { 0 };
        let left = left + self.depth() * (INDENT + port);
        self.port = Area {
            left,
            top,
            width: if is_switch { shape.port } else { 0 },
            height,
        };
        let longest = lines(&self.devices, columns).into_iter().max().unwrap_or(1);
        let count = i32::try_from(longest.clamp(1, columns)).unwrap_or(1);
        self.bar = Area {
            left: left + port,
            top,
            width: 2 * PADDING + count * shape.device + (count - 1) * shape.gap,
            height,
        };
        self.arrange_devices(shape, columns)
    }

    /// Gives the devices their positions below the bar. Returns their end.
    fn arrange_devices(&mut self, shape: &Shape, columns: usize) -> i32 {
        let has_ports = self.devices.iter().any(|device| device.port.is_some());
        let left = self.bar.left + PADDING;
        let mut end = self.bar.bottom();
        let mut gap = if has_ports { 2 } else { 1 } * shape.wire;
        // A port above several devices hides the columns between them.
        let mut has_wide_ports = false;
        let mut port_above = None;
        for line in lines_mut(&mut self.devices, columns) {
            let port = line.first().and_then(|device| device.port);
            let has_port_above = port.is_some() && port == port_above;
            if has_ports && !has_port_above {
                gap += shape.port_height;
            }
            let top = end + gap;
            arrange_line(line, shape, (left, top));
            if end > self.bar.bottom() {
                let column = |device: &DevicePosition<'_>| match has_wide_ports {
                    true => left,
                    false => device.area.left,
                };
                line.iter_mut()
                    .for_each(|device| device.passage = Some(column(device) - shape.gap / 2));
            }
            let mut neighbours = line.windows(2);
            has_wide_ports |=
                neighbours.any(|pair| matches!(pair, [one, next] if one.has_port_of(next)));
            port_above = line.last().and_then(|device| device.port);
            let has_loops = line.iter().any(|device| device.function.has_loop);
            end = top + shape.device_height + if has_loops { LOOP } else { 0 };
            gap = shape.line_gap;
        }
        end
    }
}

/// Gives the devices of a line their positions from `left` and `top` on.
fn arrange_line(line: &mut [DevicePosition<'_>], shape: &Shape, (mut left, top): (i32, i32)) {
    for device in line {
        device.area = Area {
            left,
            top,
            width: shape.device,
            height: shape.device_height,
        };
        left += shape.device + shape.gap;
    }
}

impl DevicePosition<'_> {
    /// Returns `true` if both are below one port, which is drawn.
    pub(crate) fn has_port_of(&self, other: &Self) -> bool {
        self.port.is_some() && self.port == other.port
    }
}

/// Returns the number of devices in each line of a row. Devices below one port that do not fit into
/// the rest of a line begin a new one. More than `columns` of them are a line, which is wrapped.
fn lines(devices: &[DevicePosition<'_>], columns: usize) -> Vec<usize> {
    let mut lines: Vec<usize> = Vec::new();
    for below_port in devices.chunk_by(DevicePosition::has_port_of) {
        let more = below_port.len();
        match lines.last_mut().filter(|line| **line + more <= columns) {
            Some(line) => *line += more,
            None => lines.push(more),
        }
    }
    lines
}

/// Returns the devices of each line of a row, at most `columns`.
fn lines_mut<'r, 'a>(
    mut devices: &'r mut [DevicePosition<'a>],
    columns: usize,
) -> Vec<&'r mut [DevicePosition<'a>]> {
    let mut all = Vec::new();
    for line in lines(devices, columns) {
        let (first, rest) = devices.split_at_mut(line.min(devices.len()));
        all.extend(first.chunks_mut(columns));
        devices = rest;
    }
    all
}

impl<'a> Layout<'a> {
    /// Returns the layout of the machine of `functions`, or `None` if no device with a name is
    /// among them. `lanes` are the lanes that transfers take.
    pub fn of(functions: &'a [Function], shape: Shape, lanes: &Lanes) -> Option<Self> {
        let mut rows = rows(functions, shape.is_detailed);
        let most = rows.iter().map(|row| row.devices.len()).max()?;
        let lanes_of = |key: &str| lanes.get(key).copied().unwrap_or(0);
        let column = |left: i32, width: i32| Area {
            left,
            top: MARGIN,
            width,
            height: 0,
        };
        let after = |area: Area| area.right() + if area.width > 0 { shape.gap } else { 0 };
        let ram = column(MARGIN, shape.ram);
        let trunk = column(
            after(ram),
            shape.trunk.max(TRUNK_LANE * (lanes_of(TRUNK) + 1)),
        );
        let host = column(after(trunk), shape.host);
        let mut top = MARGIN;
        for (number, row) in rows.iter_mut().enumerate() {
            let columns = most.min(row.columns(&shape));
            let end = row.arrange(
                &shape,
                columns,
                (after(host), top),
                lanes_of(&lane_key(number)),
            );
            row.bar.width = row.bar.width.max(lanes_of(&words_key(number)));
            top = end + shape.row_gap;
        }
        if host.width > 0 {
            top = share_lines(&mut rows, &shape, after(host));
        }
        let right = rows.iter().map(|row| row.bar.right()).max()?;
        let height = top - shape.row_gap - MARGIN;
        Some(Self {
            sockets: sockets(&rows, trunk, &shape),
            shape,
            rows,
            ram: Area { height, ..ram },
            trunk: Area { height, ..trunk },
            width: right + MARGIN,
            height: height + 2 * MARGIN,
        })
    }

    /// Returns the row and the device called `name`.
    pub fn find(&self, name: &str) -> Option<(usize, &DevicePosition<'a>)> {
        self.rows.iter().enumerate().find_map(|(number, row)| {
            let device = row.devices.iter().find(|device| device.name == name)?;
            Some((number, device))
        })
    }

    /// Returns the row of the switch directly above that of row `number`.
    pub(crate) fn above(&self, number: usize) -> Option<&Row<'a>> {
        let (_, above) = self.rows.get(number)?.place.split_last()?;
        self.rows
            .iter()
            .find(|row| !above.is_empty() && row.place == above)
    }

    /// Returns the left end of the wire to a row: the right edge of its host bridge, or of the root
    /// complex.
    pub(crate) fn root_edge(&self, row: &Row<'_>) -> i32 {
        row.left() - self.shape.gap
    }

    /// Returns the names of the root buses.
    pub fn root_buses(&self) -> impl Iterator<Item = &'a str> {
        let hosts = self.sockets.iter().flat_map(|socket| &socket.hosts);
        hosts.map(|host| host.root_bus)
    }

    /// Returns the position of lane `slot` of a row.
    pub fn lane(&self, row: usize, slot: i32) -> i32 {
        let bar = self.rows.get(row).map(|row| row.bar).unwrap_or_default();
        bar.top + TITLE + LANE / 2 + LANE * slot
    }

    /// Returns the position of lane `slot` of the root complex.
    pub fn trunk_lane(&self, slot: i32) -> i32 {
        self.trunk.left + TRUNK_LANE * (slot + 1)
    }

    /// Returns the position of the port directly above a device, if that is drawn.
    pub fn port_area(&self, device: &DevicePosition<'_>) -> Option<Area> {
        let Shape {
            wire, port_height, ..
        } = self.shape;
        device.port.map(|_| Area {
            top: device.area.top - wire - port_height,
            height: port_height,
            ..device.area
        })
    }
}

/// Moves rows of root buses without a switch next to each other. `left` is the left edge of the
/// first row in a line. Returns the top of a row below all of them.
fn share_lines(rows: &mut [Row<'_>], shape: &Shape, left: i32) -> i32 {
    let row_width = (shape.device + shape.gap) * i32::try_from(shape.columns).unwrap_or(1);
    let most = left + 2 * PADDING + row_width - shape.gap;
    let mut top = MARGIN;
    for socket in rows.chunk_by_mut(|one, next| one.socket == next.socket) {
        let (mut x, mut bottom) = (None, top - shape.row_gap);
        let mut line = top;
        for bus in socket.chunk_by_mut(|one, next| one.root_bus == next.root_bus) {
            let Some(first) = bus.first() else { continue };
            let is_alone = bus.len() == 1 && first.switch.is_none();
            let (from, end) = ((first.left(), first.bar.top), first.bar.right());
            let fits = |x: &i32| is_alone && x + end - from.0 <= most;
            let at = x.filter(fits).unwrap_or_else(|| {
                line = bottom + shape.row_gap;
                left
            });
            let (right, down) = (at - from.0, line - from.1);
            bus.iter_mut().for_each(|row| row.shift(right, down));
            bottom = bus
                .iter()
                .map(Row::bottom)
                .max()
                .unwrap_or(bottom)
                .max(bottom);
            x = is_alone.then_some(end + right + 2 * shape.gap + shape.host);
        }
        // A wire passes above the first line.
        if let Some(rail) = rail(socket, shape) {
            socket.iter_mut().for_each(|row| row.shift(0, rail));
            bottom += rail;
        }
        top = bottom + shape.row_gap;
    }
    top
}

/// Returns the height of the space for a wire above the first line of a socket's rows, or `None` if
/// only one host bridge is in that line.
fn rail(rows: &[Row<'_>], shape: &Shape) -> Option<i32> {
    let first = rows.first()?;
    let is_beside = |row: &Row<'_>| row.bar.top == first.bar.top && row.root_bus != first.root_bus;
    rows.iter().any(is_beside).then_some(shape.row_gap)
}

/// Returns the parts of the root complex, each as high as its rows. `trunk` is the column of the
/// root complex.
fn sockets<'a>(rows: &[Row<'a>], trunk: Area, shape: &Shape) -> Vec<Socket<'a>> {
    let span = |rows: &[Row<'_>], column: Area| {
        let top = rows.first().map_or(0, |row| row.bar.top);
        let bottom = rows.iter().map(Row::bottom).max().unwrap_or(top);
        Area {
            top,
            height: bottom - top,
            ..column
        }
    };
    let socket = |rows: &[Row<'a>]| {
        let hosts = rows.chunk_by(|one, next| one.root_bus == next.root_bus);
        let hosts = hosts.filter_map(|rows| {
            let first = rows.first()?;
            let host = Area {
                left: first.left() - shape.gap - shape.host,
                width: shape.host,
                ..Area::default()
            };
            Some(HostPosition {
                root_bus: first.root_bus,
                area: span(rows, host),
            })
        });
        let (area, rail) = (span(rows, trunk), rail(rows, shape).unwrap_or(0));
        Some(Socket {
            node: rows.first()?.socket,
            hosts: hosts.collect(),
            area: Area {
                top: area.top - rail,
                height: area.height + rail,
                ..area
            },
        })
    };
    rows.chunk_by(|one, next| one.socket == next.socket)
        .filter_map(socket)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::Port;

    const SHAPE: Shape = Shape {
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
        baselines: &[24],
    };

    fn bridge(address: &str, parent: &str, port: Port) -> Function {
        Function {
            address: address.to_owned(),
            parent: parent.to_owned(),
            port: Some(port),
            ..Function::default()
        }
    }

    fn device(name: &str, address: &str, parent: &str) -> Function {
        Function {
            address: address.to_owned(),
            parent: parent.to_owned(),
            name: Some(name.to_owned()),
            ..Function::default()
        }
    }

    /// Returns a disk and a GPU below a switch, a disk below a switch below that one, and a disk at
    /// a root port of another socket.
    fn functions() -> Vec<Function> {
        let mut functions = vec![
            bridge("0000:00:02.0", "pci0000:00", Port::Root),
            bridge("0000:01:00.0", "0000:00:02.0", Port::Upstream),
            bridge("0000:02:00.0", "0000:01:00.0", Port::Downstream),
            device("disk0", "0000:03:00.0", "0000:02:00.0"),
            bridge("0000:02:01.0", "0000:01:00.0", Port::Downstream),
            device("gpu0", "0000:04:00.0", "0000:02:01.0"),
            bridge("0000:02:02.0", "0000:01:00.0", Port::Downstream),
            bridge("0000:05:00.0", "0000:02:02.0", Port::Upstream),
            bridge("0000:06:00.0", "0000:05:00.0", Port::Downstream),
            device("disk2", "0000:07:00.0", "0000:06:00.0"),
            bridge("0000:80:03.0", "pci0000:80", Port::Root),
            device("disk1", "0000:81:00.0", "0000:80:03.0"),
        ];
        for function in functions.iter_mut().skip(10) {
            function.socket = Some(1);
        }
        functions
    }

    fn names<'a>(layout: &Layout<'a>) -> Vec<Vec<&'a str>> {
        let names = |row: &Row<'a>| row.devices.iter().map(|device| device.name).collect();
        layout.rows.iter().map(names).collect()
    }

    #[test]
    fn devices_of_one_switch_are_one_row() {
        let functions = functions();
        let layout = Layout::of(&functions, SHAPE, &Lanes::new()).unwrap();
        assert_eq!(
            names(&layout),
            [vec!["disk0", "gpu0", "disk2"], vec!["disk1"]]
        );
        let [switch, alone] = layout.rows.as_slice() else {
            panic!("{layout:#?}")
        };
        assert!(switch.switch.is_some() && alone.switch.is_none());
        assert!(alone.devices[0].port.is_some() && switch.devices[0].port.is_none());
        assert!(alone.bar.top > switch.devices[0].area.bottom());
        assert_eq!(layout.find("disk1").map(|(row, _)| row), Some(1));
        assert_eq!(
            layout.root_buses().collect::<Vec<_>>(),
            ["pci0000:00", "pci0000:80"]
        );
    }

    #[test]
    fn switch_below_a_switch_has_a_row_of_its_own_in_detail() {
        let functions = functions();
        let shape = Shape {
            is_detailed: true,
            host: 80,
            ..SHAPE
        };
        let layout = Layout::of(&functions, shape, &Lanes::new()).unwrap();
        assert_eq!(
            names(&layout),
            [vec!["disk0", "gpu0"], vec!["disk2"], vec!["disk1"]]
        );
        let above = layout.above(1).map(Row::title);
        assert_eq!(above.as_deref(), Some("switch 01:00.0"));
        assert!(layout.above(0).is_none() && layout.above(2).is_none());
        assert!(layout.rows[1].port.left > layout.rows[0].bar.left);
        let ports = |row: &Row<'_>| row.devices.iter().all(|device| device.port.is_some());
        assert!(layout.rows.iter().all(ports));
        let nodes: Vec<String> = layout.sockets.iter().map(Socket::name).collect();
        assert_eq!(nodes, ["root", "node1"]);
        let [first, second] = layout.sockets.as_slice() else {
            panic!("{layout:#?}")
        };
        assert!(first.area.bottom() < second.area.top);
    }

    #[test]
    fn port_of_many_functions_is_drawn_once_above_them() {
        let mut functions = Vec::new();
        for (port, count) in [(1, 3), (2, 1), (3, 5), (4, 1)] {
            let address = format!("0000:00:0{port}.0");
            functions.push(bridge(&address, "pci0000:00", Port::Root));
            functions.extend((0..count).map(|number| {
                let at = format!("0000:0{port}:00.{number}");
                device(&format!("nic{port}{number}"), &at, &address)
            }));
        }
        let shape = |columns| Shape {
            is_detailed: true,
            columns,
            ..SHAPE
        };
        let expected = [
            (4, vec![4, 4, 1, 1]),
            (2, vec![2, 1, 1, 2, 2, 1, 1]),
            (1, vec![1; 10]),
        ];
        for (columns, expected) in expected {
            let layout = Layout::of(&functions, shape(columns), &Lanes::new()).unwrap();
            let [row] = layout.rows.as_slice() else {
                panic!("{layout:#?}")
            };
            let lines = row
                .devices
                .chunk_by(|one, next| one.area.top == next.area.top);
            let lines: Vec<usize> = lines.map(<[_]>::len).collect();
            assert_eq!(lines, expected);
            for device in &row.devices {
                assert!(device.area.right() < row.bar.right(), "{device:?}");
            }
            let drawn = crate::machine(&layout).into_string();
            for function in &functions {
                let at = format!("data-at=\"{}\"", function.address);
                assert_eq!(drawn.matches(&at).count(), 1, "{at}: {drawn}");
            }
            let words = crate::words(&layout).into_string();
            assert_eq!(words.matches("00:03.0").count(), 1, "{words}");
        }
    }

    #[test]
    fn machine_of_four_full_switches_fits_a_laptop() {
        let mut functions = Vec::new();
        for switch in 0..4 {
            let port = format!("0000:00:0{switch}.0");
            let upstream = format!("0000:{switch}0:00.0");
            functions.push(bridge(&port, "pci0000:00", Port::Root));
            functions.push(bridge(&upstream, &port, Port::Upstream));
            functions.extend((0..6).map(|number| {
                let address = format!("0000:{switch}{}:00.0", number + 1);
                device(&format!("device{switch}{number}"), &address, &upstream)
            }));
        }
        let wide = Layout::of(&functions, SHAPE, &Lanes::new()).unwrap();
        assert!(
            wide.width < 1400 && wide.height < 800,
            "{} x {}",
            wide.width,
            wide.height
        );
        assert_eq!(names(&wide).concat().len(), 24);
    }

    /// Returns two sockets with eight root buses each, and one or two devices on a bus.
    fn many_root_buses() -> Vec<Function> {
        let mut functions = Vec::new();
        for bus in 0..16_u16 {
            for number in 0..1 + bus % 2 {
                let port = format!("0000:{bus:x}0:0{number}.0");
                let root_bus = format!("pci0000:{bus:x}0");
                functions.push(bridge(&port, &root_bus, Port::Root));
                let address = format!("0000:{bus:x}{}:00.0", number + 1);
                functions.push(device(&format!("device{bus}-{number}"), &address, &port));
            }
            let added = functions.iter_mut().rev().take(4);
            added.for_each(|function| function.socket = Some(bus / 8));
        }
        functions
    }

    #[test]
    fn many_root_buses_share_lines() {
        let functions = many_root_buses();
        let shape = |columns| Shape {
            is_detailed: true,
            host: 80,
            device: 100,
            device_height: 46,
            port_height: 16,
            wire: 8,
            gap: 10,
            row_gap: 14,
            lanes: 0,
            columns,
            ..SHAPE
        };
        let wide = Layout::of(&functions, shape(8), &Lanes::new()).unwrap();
        assert!(
            wide.width < 1400 && wide.height < 900,
            "{} x {}",
            wide.width,
            wide.height
        );
        let narrow = Layout::of(&functions, shape(2), &Lanes::new()).unwrap();
        assert!(narrow.width < 600, "{}", narrow.width);
        for layout in [wide, narrow] {
            assert_eq!(layout.sockets.len(), 2);
            let hosts = layout.sockets.iter().map(|socket| socket.hosts.len());
            assert_eq!(hosts.collect::<Vec<_>>(), [8, 8]);
            let boxes: Vec<Area> = layout
                .rows
                .iter()
                .flat_map(|row| {
                    row.devices
                        .iter()
                        .map(|device| device.area)
                        .chain([row.bar])
                })
                .chain(layout.sockets.iter().flat_map(|socket| {
                    let hosts = socket.hosts.iter().map(|host| host.area);
                    hosts.chain([socket.area])
                }))
                .collect();
            for (number, one) in boxes.iter().enumerate() {
                assert!(
                    one.left >= 0 && one.right() <= layout.width && one.bottom() <= layout.height
                );
                let overlaps = |other: &&Area| {
                    one.left < other.right()
                        && other.left < one.right()
                        && one.top < other.bottom()
                        && other.top < one.bottom()
                };
                assert_eq!(
                    boxes.iter().skip(number + 1).find(overlaps),
                    None,
                    "{one:?}"
                );
            }
        }
    }

    #[test]
    fn tree_that_is_a_circle_ends() {
        let mut functions = functions();
        for function in &mut functions {
            function.parent.clone_from(&function.address);
        }
        assert!(Layout::of(&functions, SHAPE, &Lanes::new()).is_some());
        assert!(Layout::of(&[], SHAPE, &Lanes::new()).is_none());
    }
}
