//! The page: one file without network, light and dark, for a phone and for paper. It has a script
//! that lights paths in the picture; without it nothing else is missing.

use maud::{Markup, html};
use peerbar_picture::Script;

use super::grid::grid;
use super::pairs;
use super::picture::picture;
use crate::machine::Machine;
use crate::matrix::{Cell, Detailed, Device, Matrix};
use crate::pair::Pair;
use crate::size::human;
use crate::text::host;
use peerbar_rule::Way;

const STYLE: &str = include_str!("style.css");
/// The test of the page in a browser fails if the hash is not that of the text.
const SCRIPT: Script = Script {
    text: include_str!("light.js"),
    hash: "sha256-LaAN0ODfffcIuSlnsLrO4E4qo3jN30pyP9TXFJq1YDU=",
};
/// Verdicts, their classes and meanings.
pub(super) const VERDICTS: [(&str, &str, &str); 4] = [
    ("bus", "bus", "direct, by bus address"),
    ("host", "host", "through the host bridge"),
    ("no", "no", "refused: not supported"),
    ("open", "?", "depends on what is not known"),
];

/// Everything that the page shows.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a> {
    pub(super) machine: &'a Machine,
    pub(super) matrix: &'a Matrix,
    /// The pairs of the matrix, in the same order.
    pub(super) pairs: &'a [Pair],
    /// The devices that the matrix lacks.
    pub(super) left_out: &'a [Device],
}

/// Returns the page of `machine`, whose verdicts are `detailed`.
pub(crate) fn page(machine: &Machine, detailed: &Detailed) -> String {
    let matrix = &detailed.matrix;
    let shown = Shown {
        machine,
        matrix,
        pairs: &detailed.pairs,
        left_out: &detailed.left_out,
    };
    let body = html! {
        a.skip href="#matrix" { "Skip to the matrix" }
        header.top {
            p.brand { "peerbar p2p" }
            h1 { "Which devices reach each other" }
            p.facts { (host(machine).trim_end()) }
            p.facts { (tally(&shown)) }
        }
        main {
            (notes(matrix))
            @if let Some(picture) = picture(&shown) { (picture) }
            (grid(&shown))
            (pairs::pairs(&shown))
            (devices(&shown))
        }
        footer { p { "Made by peerbar " (env!("CARGO_PKG_VERSION")) "." } }
    };
    peerbar_picture::page("Peer-to-peer DMA", STYLE, Some(SCRIPT), &body).into_string()
}

/// Returns the class of a verdict.
pub(super) fn class(cell: &Cell) -> &'static str {
    match cell.way.filter(|_| !cell.is_conditional) {
        Some(Way::BusAddress) => "bus",
        Some(Way::ThroughHostBridge) => "host",
        Some(Way::NotSupported) => "no",
        None => "open",
    }
}

/// Returns the number of pairs by verdict.
fn tally(shown: &Shown<'_>) -> Markup {
    let pairs = &shown.matrix.pairs;
    let count = |of: &str| pairs.iter().filter(|cell| class(cell) == of).count();
    html! {
        (shown.matrix.devices.len()) " devices, " (pairs.len()) " pairs"
        @for (class, _, meaning) in VERDICTS {
            @if count(class) > 0 { " · " b.(class) { (count(class)) } " " (meaning) }
        }
    }
}

/// Returns the warnings, conflicts and gaps of the whole machine.
fn notes(matrix: &Matrix) -> Markup {
    let lists = [
        ("Warnings", &matrix.warnings),
        ("Conflicts in the source", &matrix.conflicts),
        ("Not in the source", &matrix.gaps),
    ];
    let lists = lists.into_iter().filter(|(_, lines)| !lines.is_empty());
    let lists: Vec<_> = lists.collect();
    html! {
        @if !lists.is_empty() {
            section.notes aria-label="Warnings" {
                @for (title, lines) in lists {
                    p { b { (title) } }
                    ul { @for line in lines { li { (line) } } }
                }
            }
        }
    }
}

fn devices(shown: &Shown<'_>) -> Markup {
    let devices = shown.matrix.devices.iter().chain(shown.left_out);
    html! {
        section aria-labelledby="devices" {
            h2 id="devices" { "Devices" }
            table.devices {
                thead { tr {
                    th scope="col" { "name" } th scope="col" { "address" } th scope="col" { "device" }
                    th scope="col" { "memory" } th scope="col" { "node" } th scope="col" { "driver" }
                } }
                tbody { @for device in devices { tr {
                    th scope="row" { (device.label) }
                    td.mono { (device.address) }
                    td { (device.description) }
                    td { @if let Some(memory) = device.memory { (human(memory)) } }
                    td { @if let Some(node) = device.numa_node { "node " (node) } }
                    td { @if let Some(driver) = &device.driver { (driver) } }
                } } }
            }
        }
    }
}

/// Returns the page of `machine`.
#[cfg(test)]
pub(crate) fn page_of(machine: &Machine) -> String {
    page(machine, &machine.detailed(false))
}
