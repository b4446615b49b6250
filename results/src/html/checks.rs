//! The checks of a run, each with its evidence.

use maud::{Markup, html};
use peerbar_lab::count::counted;
use peerbar_lab::results::{CheckResult, SubtestResult};
use peerbar_lab::size::{human, throughput};
use peerbar_report::{Nested, PciFunction};

use super::picture::{Shown, picture};
use super::routed::{RoutedBytes, refused, routed};
use crate::collection::{Explained, ReportedRun};

/// Most checks that have a separate picture.
const MOST_PICTURES: usize = 100;

/// Returns all checks of `run`, whose part of the page is `id`; those that did not pass are open.
pub(super) fn checks(run: &ReportedRun, id: &str) -> Markup {
    let results = &run.results;
    html! {
        ol.checks {
            @for (number, check) in results.checks.iter().enumerate() {
                li { (drawn(run, id, number, check)) }
            }
            @for name in &results.not_run {
                li { div.check.skip {
                    span.mark { "not run" } span.name { (name) }
                } }
            }
        }
    }
}

/// Returns the anchor of a check, by its number from 0.
pub(super) fn check_id(id: &str, number: usize) -> String {
    format!("{id}-check-{number}")
}

fn drawn(run: &ReportedRun, id: &str, number: usize, check: &CheckResult) -> Markup {
    let measure = &check.measure;
    let transfers = routed([check]);
    let refused = refused([check], run);
    let shown = Shown {
        transfers: &transfers,
        refused: &refused,
    };
    let functions = if number < MOST_PICTURES {
        &*run.functions
    } else {
        &[]
    };
    let rate = throughput(measure.bytes, measure.seconds);
    html! {
        details.check.(check.verdict) id=(check_id(id, number)) open[!check.passed()] {
            summary {
                span.mark { (check.verdict) }
                span.name { (check.name) }
                span.chips {
                    @for (route, bytes) in measure.routes.iter().filter(|(_, bytes)| **bytes > 0) {
                        span.chip.(route.word()) { (route.word()) " " b { (human(*bytes)) } }
                    }
                    @if !measure.mapped_not_counted.is_empty() { span.chip { "mapped, not counted" } }
                }
                span.rate { @if rate != "-" { (rate) } }
            }
            div.evidence {
                @if let Some(reason) = &check.skipped { p.reason { "Skipped: " (reason) } }
                @if !check.diagnostics.is_empty() {
                    pre.words { (check.diagnostics.join("\n")) }
                }
                @if !check.passed() { (reasons(run, id, check)) }
                (figures(check))
                @if !check.subtests.is_empty() { (subtests(check)) }
                @if !shown.is_empty() { (evidence(check, shown, functions)) }
            }
        }
    }
}

/// Returns links to the reasons for the routes of DMA between the pairs of a check.
fn reasons(run: &ReportedRun, id: &str, check: &CheckResult) -> Markup {
    html! {
        @for (number, Explained { title, .. }) in run.explanations_of(check) {
            p.reason { "Why: " a href=(format!("#{}", why_id(id, number))) { (title) } }
        }
    }
}

/// Returns the anchor of an explanation, by its number from 0.
pub(super) fn why_id(id: &str, number: usize) -> String {
    format!("{id}-why-{number}")
}

fn figures(check: &CheckResult) -> Markup {
    let measure = &check.measure;
    let facts = [
        ("kind", check.kind.clone()),
        (
            "sizes",
            Some(measure.sizes.clone()).filter(|sizes| !sizes.is_empty()),
        ),
        (
            "moved",
            Some(human(measure.bytes)).filter(|_| measure.bytes > 0),
        ),
        (
            "time",
            Some(format!("{:.3} s", measure.seconds)).filter(|_| measure.seconds > 0.0),
        ),
        (
            "peer to peer",
            Some(human(measure.peer_bytes)).filter(|_| measure.bytes > 0),
        ),
        (
            "through guest RAM",
            Some(human(measure.ram_bytes)).filter(|_| measure.bytes > 0),
        ),
        (
            "mapped, not counted",
            Some(measure.mapped_not_counted.join(", ")).filter(|names| !names.is_empty()),
        ),
        (
            "failed requests",
            Some(measure.failures.to_string()).filter(|_| measure.failures > 0),
        ),
        (
            "exit status",
            measure.status.map(|status| status.to_string()),
        ),
    ];
    html! {
        dl.figures {
            @for (name, value) in facts {
                @if let Some(value) = value { div { dt { (name) } dd { (value) } } }
            }
        }
    }
}

/// Returns the subtests that a program has reported; open if the check did not pass.
fn subtests(check: &CheckResult) -> Markup {
    let leaves = SubtestResult::leaves(&check.subtests);
    html! {
        details.all open[!check.passed()] {
            summary { (counted(leaves.len(), "subtest")) }
            ul.subtests {
                @for (name, leaf) in leaves {
                    li.(leaf.verdict) {
                        span.mark { (leaf.verdict) } " " (name)
                        @if let Some(reason) = &leaf.skipped { ": " (reason) }
                        @if !leaf.diagnostics.is_empty() { pre.words { (leaf.diagnostics.join("\n")) } }
                    }
                }
            }
        }
    }
}

fn evidence(check: &CheckResult, shown: Shown<'_>, functions: &[PciFunction]) -> Markup {
    let title = format!("Routes of the check {}", check.name);
    html! {
        @if let Some(picture) = picture(functions, shown, &title) { (picture) }
        ul.transfers { @for transfer in shown.transfers { li { (listed(transfer)) } } }
    }
}

/// Returns a transfer in words.
pub(super) fn listed(transfer: &RoutedBytes) -> Markup {
    let part = |name: &str, bytes: u64| {
        html! { @if bytes > 0 { span.part { (name) " " b { (human(bytes)) } } } }
    };
    html! {
        span.chip.(transfer.route_word()) { (transfer.route_word()) }
        span.ends { (transfer.ends()) }
        (part("read", transfer.read))
        (part("wrote", transfer.written))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn many_checks_have_words_but_not_all_have_pictures() {
        let mut run = ReportedRun {
            functions: samples::functions(),
            ..ReportedRun::of(samples::run())
        };
        let drawn = |run: &ReportedRun| {
            let page = checks(run, "run-0").into_string();
            [
                page.matches("<div class=\"picture\"").count(),
                page.matches("ul class=\"transfers\"").count(),
            ]
        };
        let is_routed = |check: &CheckResult| !routed([check]).is_empty();
        run.results.checks.retain(is_routed);
        run.results.checks.truncate(1);
        assert_eq!(drawn(&run), [1, 1]);
        let check = run.results.checks.remove(0);
        run.results.checks = vec![check; MOST_PICTURES + 2];
        assert_eq!(drawn(&run), [MOST_PICTURES, MOST_PICTURES + 2]);
    }
}
