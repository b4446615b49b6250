//! The layout of a machine in the picture: guest RAM and the root complex on the left, and rows of
//! devices on their right.
//!
//! A row has the devices below one switch, or all devices below root ports of one root bus.
//! Requests cross its bar, which is the switch, or a part of the root bus, in lanes.

use std::collections::BTreeMap;

use peerbar_report::PciFunction;

/// Device/Port Type of a root port and of an upstream port of a switch (PCIe Base 6.0, 7.5.3.2).
const ROOT_PORT: u8 = 4;
const UPSTREAM_PORT: u8 = 5;
/// Height of a device.
pub(super) const DEVICE_HEIGHT: i32 = 84;
/// Height of a root port above a device.
pub(super) const PORT_HEIGHT: i32 = 24;
/// Height of a lane, and of the space above the first one.
const LANE: i32 = 22;
const TITLE: i32 = 30;
/// Distance between a bar and its devices, or their ports.
pub(super) const WIRE: i32 = 22;
/// Distance between two lines of devices in a row, and between two rows.
const LINE_GAP: i32 = 30;
const ROW_GAP: i32 = 24;
/// Height of a loop below a device.
const LOOP: i32 = 34;
/// Distance between a bar's edge and its devices.
const PADDING: i32 = 12;
/// Width of a lane of the root complex.
const TRUNK_LANE: i32 = 16;
/// Left margin.
const MARGIN: i32 = 8;

/// The widths of the parts: for a screen, or for a phone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Most devices in a line.
    columns: usize,
    ram: i32,
    trunk: i32,
    port: i32,
    device: i32,
    gap: i32,
}

/// For a screen: the devices of a whole switch are in one line.
pub(super) const WIDE: Shape = Shape {
    columns: 6,
    ram: 96,
    trunk: 112,
    port: 92,
    device: 138,
    gap: 22,
};

/// For a phone: each device has its own line.
pub(super) const NARROW: Shape = Shape {
    columns: 1,
    ram: 46,
    trunk: 60,
    port: 56,
    device: 138,
    gap: 14,
};

/// A box of the picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) left: i32,
    pub(super) top: i32,
    pub(super) width: i32,
    pub(super) height: i32,
}

impl Area {
    pub(super) fn right(self) -> i32 {
        self.left + self.width
    }

    pub(super) fn bottom(self) -> i32 {
        self.top + self.height
    }

    pub(super) fn middle(self) -> i32 {
        self.left + self.width / 2
    }
}

/// A machine's parts.
#[derive(Debug)]
pub(super) struct MachineLayout<'a> {
    /// From top to bottom.
    pub(super) rows: Vec<Row<'a>>,
    pub(super) ram: Area,
    /// The root complex.
    pub(super) trunk: Area,
    /// The host bridges' root buses.
    pub(super) root_buses: Vec<&'a str>,
    /// The effect of an IOMMU on the devices' requests, if there is one.
    pub(super) iommu: Option<&'static str>,
    pub(super) width: i32,
    pub(super) height: i32,
}

/// The devices below a switch, or below root ports.
#[derive(Debug)]
pub(super) struct Row<'a> {
    /// Name of the host bridge's root bus.
    pub(super) root_bus: &'a str,
    /// The switch with the root port above it, or `None` if each device has a root port, or no
    /// port.
    pub(super) switch: Option<(&'a PciFunction, Option<&'a PciFunction>)>,
    /// The place where requests change their direction: the switch, or a part of the root bus.
    pub(super) bar: Area,
    /// The root port above the switch.
    pub(super) port: Area,
    /// Its devices.
    pub(super) devices: Vec<DevicePosition<'a>>,
}

/// A device and its position.
#[derive(Debug)]
pub(super) struct DevicePosition<'a> {
    /// Its name.
    pub(super) name: &'a str,
    /// Its function, as the guest found it.
    pub(super) function: &'a PciFunction,
    /// The root port directly above it, if there is no switch.
    pub(super) port: Option<&'a PciFunction>,
    pub(super) area: Area,
    /// The start of the column in which requests pass the devices above it; `None` in the first
    /// line.
    pub(super) passage: Option<i32>,
}

/// Lanes that transfers need, by [`lane_key`] of rows and [`TRUNK`]; and the width that words in a
/// row need, by [`words_key`].
pub(super) type Lanes = BTreeMap<String, i32>;

/// The key of the lanes of the root complex.
pub(super) const TRUNK: &str = "trunk";

/// Returns the key of a row's lanes.
pub(super) fn lane_key(row: usize) -> String {
    format!("row {row}")
}

/// Returns the key of the width of a row's words.
pub(super) fn words_key(row: usize) -> String {
    format!("words {row}")
}

impl DevicePosition<'_> {
    /// Returns the position of the root port directly above it, if it has one.
    pub(super) fn port_area(&self) -> Option<Area> {
        self.port.map(|_| Area {
            top: self.area.top - WIRE - PORT_HEIGHT,
            height: PORT_HEIGHT,
            ..self.area
        })
    }
}

impl<'a> MachineLayout<'a> {
    /// Returns the layout of the machine of `functions`, or `None` if no device under test is among
    /// them.
    ///
    /// `lanes` are the lanes that transfers take. `has_loop` returns `true` for a device whose
    /// requests to its own memory are drawn.
    pub(super) fn of(
        functions: &'a [PciFunction],
        shape: Shape,
        lanes: &Lanes,
        has_loop: impl Fn(&str) -> bool,
    ) -> Option<Self> {
        let mut rows = rows(functions);
        let most = rows.iter().map(|row| row.devices.len()).max()?;
        let columns = most.min(shape.columns);
        let lanes_of = |key: &str| lanes.get(key).copied().unwrap_or(0);
        let ram = Area {
            left: MARGIN,
            top: MARGIN,
            width: shape.ram,
            height: 0,
        };
        let trunk = Area {
            left: ram.right() + shape.gap,
            top: MARGIN,
            width: shape.trunk.max(TRUNK_LANE * (lanes_of(TRUNK) + 1)),
            height: 0,
        };
        let left = trunk.right() + shape.gap;
        let mut top = MARGIN;
        let mut right = 0;
        for (number, row) in rows.iter_mut().enumerate() {
            let in_row = lanes_of(&lane_key(number));
            let end = place(row, shape, columns, (left, top), in_row, &has_loop);
            row.bar.width = row.bar.width.max(lanes_of(&words_key(number)));
            right = right.max(row.bar.right());
            top = end + ROW_GAP;
        }
        let height = top - ROW_GAP - MARGIN;
        let mut root_buses: Vec<&str> = Vec::new();
        for row in &rows {
            if !root_buses.contains(&row.root_bus) {
                root_buses.push(row.root_bus);
            }
        }
        Some(Self {
            rows,
            ram: Area { height, ..ram },
            trunk: Area { height, ..trunk },
            root_buses,
            iommu: iommu(functions),
            width: right + MARGIN,
            height: height + 2 * MARGIN,
        })
    }

    /// Returns the row and the device called `name`.
    pub(super) fn find(&self, name: &str) -> Option<(usize, &DevicePosition<'a>)> {
        self.rows.iter().enumerate().find_map(|(number, row)| {
            let device = row.devices.iter().find(|device| device.name == name)?;
            Some((number, device))
        })
    }

    /// Returns `true` if there is room for words in addition to the devices' names.
    pub(super) fn is_wide(&self) -> bool {
        self.ram.width >= WIDE.ram
    }

    /// Returns the position of lane `slot` of a row.
    pub(super) fn lane(&self, row: usize, slot: i32) -> i32 {
        let bar = self.rows.get(row).map(|row| row.bar).unwrap_or_default();
        bar.top + TITLE + LANE / 2 + LANE * slot
    }

    /// Returns the position of lane `slot` of the root complex.
    pub(super) fn trunk_lane(&self, slot: i32) -> i32 {
        self.trunk.left + TRUNK_LANE * (slot + 1)
    }
}

/// Returns the rows of a machine, without positions.
fn rows(functions: &[PciFunction]) -> Vec<Row<'_>> {
    let by_address: BTreeMap<&str, &PciFunction> = functions
        .iter()
        .map(|function| (function.address.as_str(), function))
        .collect();
    let mut rows: Vec<Row<'_>> = Vec::new();
    for function in functions {
        let Some(name) = function.name.as_deref().filter(|_| is_device(function)) else {
            continue;
        };
        let (root_bus, port, switch) = above(function, &by_address);
        let device = DevicePosition {
            name,
            function,
            port: port.filter(|_| switch.is_none()),
            area: Area::default(),
            passage: None,
        };
        let address = |function: Option<&PciFunction>| function.map(|f| f.address.clone());
        let known = rows.iter_mut().find(|row| {
            let other = row.switch.map(|(switch, _)| switch);
            row.root_bus == root_bus && address(other) == address(switch)
        });
        match known {
            Some(row) => row.devices.push(device),
            None => rows.push(Row {
                root_bus,
                switch: switch.map(|switch| (switch, port)),
                bar: Area::default(),
                port: Area::default(),
                devices: vec![device],
            }),
        }
    }
    rows
}

/// Gives a row its positions from `left` and `top` on. Returns its end.
fn place(
    row: &mut Row<'_>,
    shape: Shape,
    columns: usize,
    (left, top): (i32, i32),
    lanes: i32,
    has_loop: &impl Fn(&str) -> bool,
) -> i32 {
    let height = TITLE + LANE * lanes.max(1);
    let is_switch = row.switch.is_some();
    let port_width = if is_switch { shape.port } else { 0 };
    row.port = Area {
        left,
        top,
        width: port_width,
        height,
    };
    let bar_left = left + if is_switch { port_width + shape.gap } else { 0 };
    let count = i32::try_from(row.devices.len().min(columns)).unwrap_or(1);
    row.bar = Area {
        left: bar_left,
        top,
        width: 2 * PADDING + count * shape.device + (count - 1) * shape.gap,
        height,
    };
    let above = WIRE + if is_switch { 0 } else { PORT_HEIGHT + WIRE };
    let mut line_top = row.bar.bottom() + above;
    let mut end = line_top;
    for (number, line) in row.devices.chunks_mut(columns.max(1)).enumerate() {
        let mut x = bar_left + PADDING;
        let mut has_loops = false;
        for device in line {
            device.area = Area {
                left: x,
                top: line_top,
                width: shape.device,
                height: DEVICE_HEIGHT,
            };
            device.passage = (number > 0).then_some(x - shape.gap / 2);
            has_loops |= has_loop(device.name);
            x += shape.device + shape.gap;
        }
        end = line_top + DEVICE_HEIGHT + if has_loops { LOOP } else { 0 };
        let port = if is_switch { 0 } else { PORT_HEIGHT };
        line_top = end + LINE_GAP + port;
    }
    end
}

fn is_device(function: &PciFunction) -> bool {
    !matches!(function.port_type, Some(ROOT_PORT..=6))
}

/// Returns the root bus above `function`, its root port, and the switch between them.
fn above<'a>(
    function: &'a PciFunction,
    by_address: &BTreeMap<&str, &'a PciFunction>,
) -> (&'a str, Option<&'a PciFunction>, Option<&'a PciFunction>) {
    let (mut parent, mut port, mut switch) = (function.parent.as_str(), None, None);
    // A guest's evidence may contain a cycle: no path is longer than the number of functions.
    for _ in 0..by_address.len() {
        let Some(bridge) = by_address.get(parent) else {
            break;
        };
        match bridge.port_type {
            Some(UPSTREAM_PORT) => switch = Some(*bridge),
            Some(ROOT_PORT) => port = Some(*bridge),
            _ => {}
        }
        parent = &bridge.parent;
    }
    (parent, port, switch)
}

/// Returns the effect of an IOMMU, from the groups of the devices (Linux,
/// Documentation/ABI/testing/sysfs-kernel-iommu_groups).
fn iommu(functions: &[PciFunction]) -> Option<&'static str> {
    let devices = functions.iter().filter(|function| function.name.is_some());
    let kinds = devices.filter_map(|device| Some(device.iommu_group.as_ref()?.kind.as_str()));
    kinds
        .map(|kind| match kind.starts_with("DMA") {
            true => "translates",
            false => "passes through",
        })
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn layout(functions: &[PciFunction], shape: Shape) -> Option<MachineLayout<'_>> {
        MachineLayout::of(functions, shape, &Lanes::new(), |_| false)
    }

    #[test]
    fn devices_of_one_switch_are_one_row() {
        let functions = samples::functions();
        let layout = layout(&functions, WIDE).unwrap();
        let [switch, alone] = layout.rows.as_slice() else {
            panic!("{layout:#?}")
        };
        let names: Vec<&str> = switch.devices.iter().map(|device| device.name).collect();
        assert_eq!(names, ["disk0", "gpu0"]);
        assert!(switch.switch.is_some() && alone.switch.is_none());
        assert!(alone.devices[0].port.is_some());
        assert!(alone.bar.top > switch.devices[0].area.bottom());
        assert_eq!(layout.find("disk1").map(|(row, _)| row), Some(1));
        assert_eq!(layout.iommu, Some("translates"));
    }

    #[test]
    fn machine_of_four_full_switches_fits_a_laptop_and_a_phone() {
        let mut functions = Vec::new();
        for switch in 0..4 {
            let port = format!("0000:00:0{switch}.0");
            let bridge = format!("0000:{switch}0:00.0");
            for (address, parent, kind) in [(&port, "pci0000:00", 4), (&bridge, &*port, 5)] {
                functions.push(PciFunction {
                    address: address.clone(),
                    parent: parent.to_owned(),
                    port_type: Some(kind),
                    name: None,
                    ..samples::functions()[0].clone()
                });
            }
            functions.extend((0..6).map(|number| PciFunction {
                address: format!("0000:{switch}{}:00.0", number + 1),
                parent: bridge.clone(),
                name: Some(format!("device{switch}{number}")),
                ..samples::functions()[3].clone()
            }));
        }
        let wide = layout(&functions, WIDE).unwrap();
        assert!(
            wide.width < 1400 && wide.height < 800,
            "{} x {}",
            wide.width,
            wide.height
        );
        let narrow = layout(&functions, NARROW).unwrap();
        assert!(narrow.width < 400, "{}", narrow.width);
        let devices = |layout: &MachineLayout<'_>| -> usize {
            layout.rows.iter().map(|row| row.devices.len()).sum()
        };
        assert_eq!((devices(&wide), devices(&narrow)), (24, 24));
    }

    #[test]
    fn tree_that_is_a_circle_ends() {
        let mut functions = samples::functions();
        for function in &mut functions {
            function.parent.clone_from(&function.address);
        }
        assert!(layout(&functions, WIDE).is_some());
        assert!(layout(&[], WIDE).is_none());
    }
}
