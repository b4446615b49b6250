//! Rows of devices: those below a switch, or those below the root ports of a root bus.

use std::collections::BTreeMap;

use crate::area::Area;
use crate::function::{Function, Port};
use crate::layout::{DevicePosition, Row};

/// Returns the rows of a machine from top to bottom, without positions.
///
/// If `is_detailed`, a switch below a switch has a separate row. If not, its devices are in the row
/// of the highest switch.
pub(crate) fn rows(functions: &[Function], is_detailed: bool) -> Vec<Row<'_>> {
    let by_address: BTreeMap<&str, &Function> = functions
        .iter()
        .map(|function| (function.address.as_str(), function))
        .collect();
    let mut rows: Vec<Row<'_>> = Vec::new();
    for function in functions {
        let Some(name) = function.name.as_deref().filter(|_| function.port.is_none()) else {
            continue;
        };
        let way = Way::of(function, &by_address);
        let row = way.row(&mut rows, function.socket, is_detailed);
        let port = way
            .port()
            .filter(|_| is_detailed || way.switches.is_empty());
        if let Some(row) = rows.get_mut(row) {
            row.devices.push(DevicePosition {
                name,
                function,
                port,
                area: Area::default(),
                passage: None,
            });
        }
    }
    in_order(rows)
}

/// The way from a device up to a root bus.
struct Way<'a> {
    root_bus: &'a str,
    /// The bridges, the nearest first.
    bridges: Vec<&'a Function>,
    /// The switches among them, by their places in `bridges`, the highest first.
    switches: Vec<usize>,
}

impl<'a> Way<'a> {
    fn of(function: &'a Function, by_address: &BTreeMap<&str, &'a Function>) -> Self {
        let (mut parent, mut bridges) = (function.parent.as_str(), Vec::new());
        // A tree that somebody made up may contain a cycle: no path is longer than the number of
        // functions.
        while bridges.len() < by_address.len() {
            let Some(bridge) = by_address.get(parent) else {
                break;
            };
            bridges.push(*bridge);
            parent = &bridge.parent;
        }
        let is_switch =
            |at: &usize| bridges.get(*at).and_then(|bridge| bridge.port) == Some(Port::Upstream);
        Self {
            switches: (0..bridges.len()).rev().filter(is_switch).collect(),
            root_bus: parent,
            bridges,
        }
    }

    /// Returns the nearest port.
    fn port(&self) -> Option<&'a Function> {
        let is_port =
            |bridge: &&&Function| matches!(bridge.port, Some(Port::Root | Port::Downstream));
        self.bridges.iter().find(is_port).copied()
    }

    /// Returns the number of the device's row. Adds it and those above it to `rows`, if they are
    /// missing.
    fn row(&self, rows: &mut Vec<Row<'a>>, socket: Option<u16>, is_detailed: bool) -> usize {
        let shown = if is_detailed { usize::MAX } else { 1 };
        let mut above = None;
        for at in self.switches.iter().take(shown) {
            let (lower, upper) = self.bridges.split_at(at + 1);
            let switch = lower.last().map(|switch| (*switch, upper.first().copied()));
            above = Some(self.row_of(rows, switch, socket, above));
        }
        above.unwrap_or_else(|| self.row_of(rows, None, socket, None))
    }

    fn row_of(
        &self,
        rows: &mut Vec<Row<'a>>,
        switch: Option<(&'a Function, Option<&'a Function>)>,
        socket: Option<u16>,
        above: Option<usize>,
    ) -> usize {
        let is_known = |row: &Row<'_>| {
            let known = row.switch.map(|(known, _)| &known.address);
            row.root_bus == self.root_bus && known == switch.map(|(switch, _)| &switch.address)
        };
        rows.iter().position(is_known).unwrap_or_else(|| {
            let mut place = above
                .and_then(|above| rows.get(above))
                .map_or_else(Vec::new, |above| above.place.clone());
            place.push(rows.len());
            rows.push(Row {
                root_bus: self.root_bus,
                socket,
                switch,
                place,
                bar: Area::default(),
                port: Area::default(),
                devices: Vec::new(),
            });
            rows.len() - 1
        })
    }
}

/// Sorts rows: by socket and root bus, and each switch before those below it.
fn in_order(mut rows: Vec<Row<'_>>) -> Vec<Row<'_>> {
    let mut buses: Vec<&str> = Vec::new();
    for row in &rows {
        if !buses.contains(&row.root_bus) {
            buses.push(row.root_bus);
        }
    }
    rows.sort_by_key(|row| {
        let bus = buses.iter().position(|bus| *bus == row.root_bus);
        (row.socket, bus, row.place.clone())
    });
    rows
}
