//! Everything about each pair. The page shows the pair that its address names, and the others if
//! the reader asks for them.

use maud::{Markup, html};

use super::page::{Shown, class};
use crate::address::Address;
use crate::changes::Change;
use crate::labels::Labels;
use crate::machine::Machine;
use crate::matrix::Cell;
use crate::pair::{Pair, PathHop};
use crate::text::{headline, kernel_line};
use crate::tree::root_bus_name;
use crate::wire::{Summit, numa_node};

/// Returns the section of the pairs.
pub(super) fn pairs(shown: &Shown<'_>) -> Markup {
    let labels = Labels::of(shown.machine);
    let cells = shown.matrix.pairs.iter().zip(shown.pairs);
    html! {
        @if !shown.pairs.is_empty() {
            section.pairs aria-labelledby="pairs" {
                h2 id="pairs" { "Pair" }
                p.lead.hint { "Choose a cell of the matrix." }
                @for (cell, pair) in cells { (drawn(shown.machine, &labels, cell, pair)) }
            }
        }
    }
}

/// Returns the anchor of a pair.
pub(super) fn anchor(labels: &Labels, pair: &Pair) -> String {
    format!(
        "{}-to-{}",
        labels.label(pair.client),
        labels.label(pair.provider)
    )
}

fn drawn(machine: &Machine, labels: &Labels, cell: &Cell, pair: &Pair) -> Markup {
    let id = anchor(labels, pair);
    let route = Route::of(machine, pair);
    html! {
        article.pair id=(id) data-way=(class(cell)) data-path=(route.path) data-top=(route.top) {
            h3 { (labels.label(pair.client)) " to memory of " (labels.label(pair.provider)) ": "
                span.(class(cell)) { (headline(pair)) } }
            dl {
                @if let Some(kernel) = &pair.kernel { dt { "Kernel" } dd { (kernel_line(kernel)) } }
                @if let Some(wire) = &pair.wire {
                    dt { "Wire" }
                    dd { b { (wire.distance.word()) } ": " (wire.sentence(machine)) }
                }
                (part("Path", pair.path_note(), &pair.path, hop_of))
                (part("Log", None, &pair.statements, |line| html! { (line) }))
                (part("Changes", None, &pair.changes, change))
                (part("Warnings", None, &pair.warnings, |line| html! { (line) }))
            }
        }
    }
}

/// Returns a list under a title, after a note, or nothing without items.
fn part<T>(title: &str, note: Option<&str>, items: &[T], drawn: impl Fn(&T) -> Markup) -> Markup {
    html! {
        @if !items.is_empty() {
            dt { (title) }
            dd {
                @if let Some(note) = note { span.soft { (note) ":" } }
                ol.(title.to_lowercase()) { @for item in items { li { (drawn(item)) } } }
            }
        }
    }
}

fn hop_of(hop: &PathHop) -> Markup {
    html! {
        b { (hop.name) }
        " " span.soft { (hop.description) }
        @if let Some(acs) = &hop.acs { ", ACS: " (acs) }
        @if hop.decides { " " span.decides { "decides" } }
    }
}

fn change(change: &Change) -> Markup {
    html! {
        code { (change.change) } " gives " (change.way)
        @if let Some(price) = &change.price { "; " span.soft { (price) } }
    }
}

/// The parts of the picture on a pair's way.
pub(super) struct Route {
    /// The parts whose wires are on the way, separated by `|`, because names of parts have spaces.
    pub(super) path: String,
    /// The highest part.
    pub(super) top: String,
}

impl Route {
    /// Returns the way that the kernel found.
    pub(super) fn of(machine: &Machine, pair: &Pair) -> Self {
        let mut path: Vec<String> = pair.path.iter().map(|hop| hop.name.clone()).collect();
        let mut hosts: Vec<String> = [pair.client, pair.provider]
            .into_iter()
            .filter_map(|end| machine.root_bus(end).map(root_bus_name))
            .filter(|host| path.contains(host))
            .collect();
        hosts.dedup();
        let socket = |address: Address| {
            numa_node(machine, address)
                .map_or_else(|| "root".to_owned(), |node| format!("node{node}"))
        };
        let ends = [socket(pair.client), socket(pair.provider)];
        let top = match (hosts.as_slice(), &ends) {
            ([], _) => match pair.wire.as_ref().map(|wire| &wire.summit) {
                Some(Summit::Bridge(bridge)) => bridge.to_string(),
                _ => String::new(),
            },
            ([only], _) => only.clone(),
            (_, [one, other]) if one == other => one.clone(),
            _ => {
                path.extend(ends);
                path.push("sockets".to_owned());
                String::new()
            }
        };
        path.retain(|name| *name != top);
        Self {
            path: path.join("|"),
            top,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::page_of;
    use super::*;
    use crate::samples::{DIRECT, REDIRECTS, at, machine, two_sockets};

    const GPU: &str = "1a:00.0";
    const NOTE: &str = "as Linux assumes it, not the way on the wire";

    /// Returns the way of a client to the GPU.
    fn route(acs: &str, client: &str) -> (String, String) {
        let machine = machine(&two_sockets(acs));
        let Route { path, top } = Route::of(&machine, &machine.pair(at(client), at(GPU)));
        (path, top)
    }

    #[test]
    fn route_is_lit_up_to_its_highest_part() {
        let (path, top) = route(DIRECT, "1b:00.0");
        assert_eq!(top, "0000:18:00.0");
        assert_eq!(path, "0000:1b:00.0|0000:19:09.0|0000:19:08.0|0000:1a:00.0");
        let (path, top) = route(DIRECT, "86:00.0");
        assert_eq!(top, "");
        for part in [
            "sockets",
            "pci0000:17",
            "pci0000:85",
            "node0",
            "node1",
            "0000:86:00.0",
        ] {
            assert!(path.split('|').any(|one| one == part), "{part}: {path}");
        }
        let (path, top) = route(REDIRECTS, "1b:00.0");
        assert_eq!(top, "pci0000:17");
        assert!(path.contains("0000:17:00.0"), "{path}");
    }

    #[test]
    fn page_has_each_verdict_and_marks_ports_that_redirect() {
        let page = |acs: &str| {
            let text = two_sockets(acs).replace("GV100GL", "GV100GL <b>");
            let machine = machine(&text);
            page_of(&machine)
        };
        let (direct, redirected) = (page(DIRECT), page(REDIRECTS));
        assert!(
            direct.contains("<td class=\"bus\"><a href=\"#nvme0-to-gpu0\""),
            "{direct}"
        );
        assert!(!direct.contains("node port redirects"));
        assert!(!redirected.contains("<td class=\"bus\">"));
        assert!(redirected.contains("node port redirects"));
        assert!(redirected.contains("setpci -s 0000:19:0"));
        assert!(redirected.contains("GV100GL &lt;b&gt;") && !redirected.contains("GV100GL <b>"));
    }

    #[test]
    fn every_function_at_which_linux_finds_a_redirection_is_marked() {
        let mut machine = machine(&two_sockets(REDIRECTS));
        // Two functions of a device, whose requests to each other do not reach the port above it.
        let gpu = machine.function(at(GPU)).cloned().unwrap();
        machine.functions.insert(at("1a:00.1"), gpu);
        for other in ["1b:00.0", "1c:00.0", "86:00.0"] {
            machine.functions.remove(&at(other));
        }
        let marked = |machine: &Machine, class: &str| page_of(machine).contains(class);
        assert!(marked(&machine, "node port redirects"));
        assert!(marked(&machine, ">19:08.0 ↑<"));
        assert!(!marked(&machine, "node device redirects"));
        let port = machine
            .function(at("19:08.0"))
            .map(|port| port.acs)
            .unwrap();
        machine.functions.get_mut(&at(GPU)).unwrap().acs = port;
        assert!(marked(&machine, "node device redirects"));
        assert!(marked(&machine, ">gpu0 ↑<"));
    }

    #[test]
    fn path_that_only_linux_assumes_says_so() {
        // The provider's port redirects, which matters to Linux but not to a request.
        let text = two_sockets(DIRECT).replacen(DIRECT, REDIRECTS, 1);
        let machine = machine(&text);
        let pair = machine.pair(at("1b:00.0"), at(GPU));
        assert_eq!(pair.path_note(), Some(NOTE));
        assert!(page_of(&machine).contains(&format!("<span class=\"soft\">{NOTE}:</span>")));
        let text = crate::text::pair(&machine, &pair, 80);
        assert!(text.contains(&format!("  path     {NOTE}:\n")), "{text}");
        let opposite = machine.pair(at(GPU), at("1b:00.0"));
        assert_eq!(opposite.path_note(), None);
    }

    #[test]
    fn machine_without_pairs_has_its_devices_only() {
        let text = "01:00.0 Non-Volatile memory controller [0108]: Samsung [144d:a80a]\n";
        let machine = machine(text);
        let page = page_of(&machine);
        assert!(page.contains("No pair:") && page.contains(">nvme0<"));
        assert!(!page.contains("Choose a cell"));
    }
}
