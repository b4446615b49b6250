//! The matrix as a table, with a link to the text of each pair.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::page::{Shown, VERDICTS, class};
use super::pairs::{Route, anchor};
use super::picture::Marks;
use crate::address::Address;
use crate::labels::Labels;
use crate::matrix::{Cell, Device, left_out_note};
use crate::pair::Pair;
use crate::text::NO_PAIR;

/// The most columns that a laptop's width has room for.
const MOST_COLUMNS: usize = 33;

/// Returns the section of the matrix.
pub(super) fn grid(shown: &Shown<'_>) -> Markup {
    let matrix = shown.matrix;
    let size = if matrix.devices.len() > MOST_COLUMNS {
        "matrix wrapped"
    } else {
        "matrix"
    };
    html! {
        section aria-labelledby="matrix" {
            h2 id="matrix" { "Matrix" }
            @if matrix.pairs.is_empty() {
                p { (NO_PAIR) }
            } @else {
                p.lead { "Rows own the memory, columns issue the DMA: Linux' verdict, and the distance. Choose a cell for the reason." }
                @if let Some(note) = left_out_note(shown.left_out) { p.note { (note) } }
                (table(shown, size))
                (legend(shown))
            }
        }
    }
}

fn table(shown: &Shown<'_>, size: &str) -> Markup {
    let devices = &shown.matrix.devices;
    let labels = Labels::of(shown.machine);
    let cells = shown.matrix.pairs.iter().zip(shown.pairs);
    let cells: BTreeMap<(Address, Address), (&Cell, &Pair)> = cells
        .map(|both| ((both.0.provider, both.0.client), both))
        .collect();
    let providers = devices.iter().filter(|device| device.is_provider);
    html! {
        table class=(size) style=(format!("--columns:{}", devices.len())) {
            thead { tr {
                td {}
                @for client in devices { th scope="col" { span { (client.label) } } }
            } }
            tbody { @for provider in providers { tr {
                th scope="row" { (provider.label) }
                @for client in devices {
                    @match cells.get(&(provider.address, client.address)) {
                        Some((cell, pair)) => (drawn(shown, &labels, client, (cell, pair))),
                        None => td.self aria-hidden="true" { "–" },
                    }
                }
            } } }
        }
    }
}

fn drawn(
    shown: &Shown<'_>,
    labels: &Labels,
    client: &Device,
    (cell, pair): (&Cell, &Pair),
) -> Markup {
    let route = Route::of(shown.machine, pair);
    let provider = labels.label(cell.provider);
    html! {
        td.(class(cell)) {
            a href=(format!("#{}", anchor(labels, pair))) data-way=(class(cell)) data-path=(route.path) data-top=(route.top)
                aria-label=(format!("{} to {provider}: {}, {}", client.label, cell.kernel_word(), cell.wire_word())) {
                span.who { (client.label) }
                b { (cell.kernel_word()) }
                small { (cell.wire_word()) }
            }
        }
    }
}

/// Returns the words of the cells and the marks of the ports that are there.
fn legend(shown: &Shown<'_>) -> Markup {
    let words: Vec<String> = shown.matrix.pairs.iter().map(Cell::kernel_word).collect();
    let is_there = |word: &str| words.iter().any(|there| there.contains(word));
    let marks = Marks::of(shown);
    html! {
        dl.legend {
            @for (class, word, meaning) in VERDICTS.into_iter().filter(|(_, word, _)| is_there(word)) {
                div { dt.(class) { (word) } dd { (meaning) } }
            }
            @if !marks.redirect.is_empty() {
                div { dt.no { "↑" } dd { "redirects requests to the root complex (ACS)" } }
            }
            @if !marks.unknown.is_empty() {
                div { dt.open { "?" } dd { "may do so: its ACS is not known" } }
            }
        }
        p.note {
            "PIX: at most one switch; PXB: several; PHB: root complex; NODE, SYS: host bridges of one, of two NUMA nodes; ^: ACS redirects to the root complex."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::page_of;
    use std::fmt::Write;

    use crate::machine::Machine;

    #[test]
    fn matrix_with_more_columns_than_a_laptop_shows_is_wrapped() {
        let page = |disks: usize| {
            let mut text = "00:01.0 3D controller [0302]: NVIDIA [10de:2330]\n".to_owned();
            for disk in 8..8 + disks {
                let (device, function) = (disk / 8 + 1, disk % 8);
                let what = "Non-Volatile memory controller [0108]: Samsung [144d:a80a]";
                writeln!(text, "00:{device:02x}.{function} {what}").unwrap();
            }
            let machine = Machine::read(&text).unwrap();
            page_of(&machine)
        };
        assert!(page(32).contains("<table class=\"matrix\""));
        assert!(page(33).contains("<table class=\"matrix wrapped\""));
    }
}
