//! The page: one file without network and without script, light and dark, for a phone and for
//! paper.

use maud::{Markup, html};
use peerbar_lab::count::counted;
use peerbar_lab::exit::RunOutcome;
use peerbar_lab::results::{CheckStatus, RunResults};
use peerbar_report::steers;

use super::bars::bars;
use super::checks::{check_id, checks, listed, why_id};
use super::grid::matrix;
use super::picture::{Shown, picture};
use super::routed::{mapped, refused, routed};
use crate::collection::{Collection, Explained, Refusal, ReportedRun};

/// Failed checks, and lines of the kernel, that are shown at the top of a run.
const AT_A_GLANCE: usize = 3;
/// Most characters of a failed check's message that are shown there. Our messages are shorter; a
/// guest's program may print any line.
const LONGEST_LINE: usize = 500;
const STYLE: &str = include_str!("style.css");
/// The meanings of the routes.
const ROUTES: [(&str, &str); 5] = [
    ("own-bar", "into the requester's own memory"),
    ("peer", "straight to a peer below the same switch"),
    ("guest-ram", "into guest RAM"),
    ("upstream", "up to the host bridge, past the IOMMU"),
    ("refused", "no byte was moved"),
];

/// Returns the page of `collection`.
pub fn page(collection: &Collection) -> String {
    let title = title(collection);
    let names = collection.run_names();
    let passed = collection.is_passed();
    let many =
        collection.runs.len() + collection.matrices.len() > 1 || !collection.missing.is_empty();
    let body = html! {
        a.skip href="#results" { "Skip to the results" }
        header.top.(if passed { "pass" } else { "fail" }) {
            p.brand { "peerbar" }
            h1 { (title) }
            (contents(collection))
        }
        main #results {
            @if many { (overview(collection, &names)) }
            @for (number, shown) in collection.matrices.iter().enumerate() {
                (matrix(shown, &format!("matrix-{number}")))
            }
            @for (number, (shown, name)) in collection.runs.iter().zip(&names).enumerate() {
                (run(shown, &format!("run-{number}"), many.then_some(name)))
            }
        }
        footer { p {
            "Routes and bytes are from the devices' counters; other names are from the scenario. Made by peerbar "
            (env!("CARGO_PKG_VERSION")) "."
        } }
    };
    let page = peerbar_picture::page(&title, STYLE, None, &body);
    let mut page = page.into_string();
    page.retain(|character| character == '\n' || character == '\t' || !steers(character));
    page
}

fn title(collection: &Collection) -> String {
    match (collection.runs.as_slice(), collection.matrices.as_slice()) {
        ([only], []) => only.results.scenario.clone(),
        ([], [only]) => format!("matrix of {}", only.device),
        (runs, matrices) => format!("{} runs", runs.len() + matrices.len()),
    }
}

fn contents(collection: &Collection) -> Markup {
    let [only] = collection.runs.as_slice() else {
        return html! {};
    };
    html! {
        nav aria-label="Contents" {
            ul {
                @for (id, name) in sections(only) { li { a href=(format!("#run-0-{id}")) { (name) } } }
            }
        }
    }
}

/// Returns the sections of a run.
fn sections(run: &ReportedRun) -> Vec<(&'static str, &'static str)> {
    let results = &run.results;
    let checks = &results.checks;
    let has_routes = !routed(checks).is_empty() || !refused(checks, run).is_empty();
    let all = [
        ("routes", "Routes", has_routes || !mapped(checks).is_empty()),
        ("checks", "Checks", true),
        ("throughput", "Throughput", bars(results).is_some()),
        ("faults", "Faults", !run.faults.is_empty()),
        ("why", "Why", !run.explanations.is_empty()),
        ("console", "Console", !run.console.is_empty()),
    ];
    let there = all.into_iter().filter(|(.., is_there)| *is_there);
    there.map(|(id, name, _)| (id, name)).collect()
}

/// Returns a row for each run, by these names, and the missing results.
fn overview(collection: &Collection, names: &[String]) -> Markup {
    html! {
        section aria-labelledby="overview" {
            h2 id="overview" { "Overview" }
            @if !collection.missing.is_empty() {
                div.missing role="note" {
                    p { b { "Missing" } }
                    ul { @for item in &collection.missing { li { (item) } } }
                }
            }
            div.wide tabindex="0" role="region" aria-label="All runs" {
                table.overview {
                    thead { tr {
                        th scope="col" { "run" } th scope="col" { "verdict" } th scope="col" { "checks" }
                        th scope="col" { "time" } th scope="col" { "kernel" }
                    } }
                    tbody {
                        @for (number, shown) in collection.matrices.iter().enumerate() { tr {
                            th scope="row" { a href=(format!("#matrix-{number}")) { "matrix of " (shown.device) } }
                            td { (badge(shown.is_passed())) }
                            td { (counted(shown.cells.len(), "cell")) }
                            td { (format!("{:.0} s", shown.seconds)) }
                            td { (shown.versions.kernel) }
                        } }
                        @for (number, (shown, name)) in collection.runs.iter().zip(names).enumerate() {
                            @let results = &shown.results;
                            tr {
                                th scope="row" { a href=(format!("#run-{number}")) { (name) } }
                                td { (badge(results.exit_code == 0)) }
                                td { (tally(results)) }
                                td { (format!("{:.1} s", results.seconds)) }
                                td { (results.versions.kernel) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn badge(passed: bool) -> Markup {
    match passed {
        true => html! { span.badge.pass { "passed" } },
        false => html! { span.badge.fail { "failed" } },
    }
}

/// Returns the numbers of checks by their status.
fn tally(run: &RunResults) -> String {
    let count = |verdict| {
        let of_verdict = run.checks.iter().filter(|check| check.verdict == verdict);
        of_verdict.count()
    };
    let parts = [
        (count(CheckStatus::Pass), "passed"),
        (count(CheckStatus::Fail), "failed"),
        (count(CheckStatus::Skip), "skipped"),
        (run.not_run.len(), "not run"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    parts.join(", ")
}

/// Returns the section of a run, under `name` if it is one of several.
fn run(run: &ReportedRun, id: &str, name: Option<&String>) -> Markup {
    let results = &run.results;
    let class = if results.verdict.outcome == RunOutcome::Passed {
        "pass"
    } else {
        "fail"
    };
    let versions = &results.versions;
    html! {
        article.run.(class) id=(id) aria-labelledby=(format!("{id}-title")) {
            header {
                @if let Some(name) = name { p.brand { (name) } }
                h2 id=(format!("{id}-title")) {
                    span.badge.(class) { (results.verdict.outcome) } " " (results.verdict.reason)
                }
                p.facts {
                    time datetime=(results.started.to_rfc3339()) { (results.started.to_minutes()) }
                    " · " (format!("{:.1} s", results.seconds)) " · QEMU " (versions.qemu)
                    " · Linux " (versions.kernel) " · peerbar " (versions.peerbar)
                }
            }
            (at_a_glance(run, id))
            @for (section, name) in sections(run) {
                section id=(format!("{id}-{section}")) aria-label=(name) {
                    h3 { (name) @if section == "checks" { small { " " (tally(results)) } } }
                    (content(run, section, id))
                }
            }
        }
    }
}

/// Returns the failures, with the kernel's own messages if there are any, and the one change that
/// helps.
fn at_a_glance(run: &ReportedRun, id: &str) -> Markup {
    let outcome = run.results.verdict.outcome;
    let mut failed: Vec<_> = run.failed().collect();
    if outcome == RunOutcome::GuestDied && !failed.is_empty() {
        // The guest died during the last one.
        failed.rotate_right(1);
    }
    // Faults that a check expected are not failures.
    let is_failed_by_faults = failed.is_empty() && outcome != RunOutcome::Passed;
    let faults = run.faults.iter().filter(|_| is_failed_by_faults);
    let faults: Vec<&Explained> = faults.collect();
    let refusals: Vec<&Refusal> = run.refusals().collect();
    let said = run.kernel_words();
    let change = refusals.iter().find_map(|one| one.change.as_ref());
    let (shown, more) = failed.split_at(failed.len().min(AT_A_GLANCE));
    html! {
        @if !failed.is_empty() || !faults.is_empty() {
            div.glance role="note" { dl {
                dt { "Failures" }
                dd {
                    @for fault in faults.iter().take(AT_A_GLANCE) {
                        p { a href=(format!("#{id}-faults")) { (fault.title) } }
                        pre.words { @for line in fault.text.lines() { (line.strip_prefix("  ").unwrap_or(line)) "\n" } }
                    }
                    @for (number, check) in shown {
                        p {
                            a href=(format!("#{}", check_id(id, *number))) { (check.name) }
                            @if let Some(line) = check.diagnostics.first() { ": " (shortened(line)) }
                        }
                    }
                    @if !more.is_empty() { p { "and " (more.len()) " more" } }
                }
                @if !said.is_empty() {
                    dt { "The kernel says" }
                    dd { pre.words { (said.iter().take(AT_A_GLANCE).copied().collect::<Vec<_>>().join("\n")) } }
                }
                @if let Some(refusal) = refusals.first() {
                    dt { "Why" }
                    dd { (refusal.reason) }
                }
                @if let Some(change) = change {
                    dt { "How to fix it" }
                    dd { code { (change) } }
                }
            } }
        }
    }
}

/// Returns a line of at most [`LONGEST_LINE`] characters; the check itself has the whole line.
fn shortened(line: &str) -> String {
    match line.char_indices().nth(LONGEST_LINE) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or(line)),
        None => line.to_owned(),
    }
}

fn content(run: &ReportedRun, section: &str, id: &str) -> Markup {
    match section {
        "routes" => routes(run),
        "checks" => html! {
            @if run.results.checks.iter().any(|check| check.passed()) {
                label.only { input type="checkbox"; " Hide passed checks" }
            }
            (checks(run, id))
        },
        "throughput" => bars(&run.results).unwrap_or_default(),
        "faults" => html! {
            p.lead { "DMA that failed, as the devices recorded it, with the mapping that the address has or had." }
            @for fault in &run.faults {
                details.explained open {
                    summary { (fault.title) }
                    pre.words tabindex="0" { (fault.text) }
                }
            }
        },
        "why" => html! {
            p.lead { "Which route the kernel's rule gives each pair, where it was decided, and how to change it." }
            @for (number, one) in run.explanations.iter().enumerate() {
                @let is_of_failed = run
                    .failed()
                    .flat_map(|(_, check)| run.explanations_of(check))
                    .any(|(of_failed, _)| of_failed == number);
                (explained(one, Some(why_id(id, number)), is_of_failed))
            }
        },
        _ => html! {
            details.console {
                summary { (counted(run.console.lines().count(), "line")) }
                pre tabindex="0" { (run.console) }
            }
        },
    }
}

/// Returns the topology with the routes of all checks together.
fn routes(run: &ReportedRun) -> Markup {
    let transfers = routed(&run.results.checks);
    let refused = refused(&run.results.checks, run);
    let mapped: Vec<&str> = mapped(&run.results.checks).into_iter().collect();
    let shown = Shown {
        transfers: &transfers,
        refused: &refused,
    };
    let is_drawn = |word: &str| shown.draws(&run.functions, word);
    html! {
        p.lead { "Payload of all checks together, by the route that the requesting device recorded." }
        @if let Some(picture) = picture(&run.functions, shown, "Topology and routes") { (picture) }
        dl.legend {
            @for (word, meaning) in ROUTES.iter().filter(|(word, _)| is_drawn(word)) {
                div { dt.(word) { (word) } dd { (meaning) } }
            }
        }
        @if !mapped.is_empty() {
            p {
                "Mapped, not counted: " (mapped.join(", ")) ". The server of such a device accesses "
                "memory itself, so nobody counts the bytes."
            }
        }
        @if !transfers.is_empty() {
            details.all {
                summary { (counted(transfers.len(), "transfer")) " in words" }
                ul.transfers { @for transfer in &transfers { li { (listed(transfer)) } } }
            }
        }
    }
}

fn explained(explained: &Explained, id: Option<String>, open: bool) -> Markup {
    html! {
        details.explained id=[id] open[open] {
            summary { (explained.title) }
            pre tabindex="0" { (explained.text) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn page_names_devices_whose_accesses_nobody_counts() {
        let mut collection = collection();
        let check = &mut collection.runs[0].results.checks[0];
        check.measure.mapped_not_counted = vec!["dev0".to_owned()];
        let page = page(&collection);
        assert!(page.contains("Mapped, not counted: dev0. "), "{page}");
        assert!(page.contains(">mapped, not counted</span>"), "{page}");
    }

    fn collection() -> Collection {
        Collection {
            runs: vec![samples::reported()],
            ..Collection::default()
        }
    }

    #[test]
    fn page_has_every_check_and_escapes_what_the_guest_says() {
        let page = page(&collection());
        let found = [
            "disk0 to VRAM &lt;and&gt; back",
            "4096 bytes at offset 0: &quot;wrong&quot; &amp; &lt;late&gt;",
            "<li class=\"pass\"><span class=\"mark\">pass</span> suite / first</li>",
            "suite / second<pre class=\"words\">expected &lt;1&gt;</pre>",
            "Skipped: no fio",
            "href=\"#run-0-check-1\"",
            "&lt;oops&gt;",
            "rule &lt;b&gt;",
            "disk0 ⇄ gpu0",
            "<svg",
        ];
        for text in found {
            assert!(page.contains(text), "{text}");
        }
        assert!(!page.contains("<oops>") && !page.contains("<late>"));
    }

    #[test]
    fn first_screen_names_what_the_guest_died_of_and_faults_that_failed_the_run() {
        let glance = |change: &dyn Fn(&mut ReportedRun)| {
            let mut run = samples::reported();
            change(&mut run);
            at_a_glance(&run, "run-0").into_string()
        };
        let fault = "href=\"#run-0-faults\">disk0: 1 DMA failed</a>";
        let all_passed = |run: &mut ReportedRun| {
            for check in &mut run.results.checks {
                check.verdict = CheckStatus::Pass;
            }
        };
        assert!(!glance(&|_| {}).contains(fault), "a check failed");
        assert!(glance(&all_passed).contains(fault));
        let passed = glance(&|run| {
            all_passed(run);
            run.results.verdict.outcome = RunOutcome::Passed;
        });
        assert_eq!(passed, "");
        let died = glance(&|run| {
            run.results.verdict.outcome = RunOutcome::GuestDied;
            for (number, check) in run.results.checks.iter_mut().enumerate() {
                check.verdict = CheckStatus::Fail;
                check.name = format!("check {number}");
            }
        });
        let last = samples::reported().results.checks.len() - 1;
        let place = |name: &str| died.find(name).unwrap();
        assert!(place(&format!("check {last}")) < place("check 0"), "{died}");
    }

    #[test]
    fn first_screen_has_whole_messages_but_no_endless_line() {
        let mut run = samples::reported();
        let mut glance = |message: &str| {
            run.results.checks[1].diagnostics = vec![message.to_owned()];
            at_a_glance(&run, "run-0").into_string()
        };
        let message = "`peerbar explain` says which of them is missing; ".repeat(8);
        assert!(glance(&message).contains(&message));
        let endless = glance(&"x".repeat(1 << 20));
        assert!(
            endless.contains("x…") && endless.len() < 4096,
            "{}",
            endless.len()
        );
    }

    #[test]
    fn single_things_are_not_in_the_plural() {
        let page = page(&collection());
        assert!(page.contains("<summary>1 transfer in words</summary>"));
        assert!(page.contains("<summary>1 line</summary>"));
    }

    #[test]
    fn names_do_not_reorder_the_text_of_the_page() {
        let mut collection = collection();
        collection.runs[0].results.checks[0].name = "a\u{202e}gnp.exe".to_owned();
        let page = page(&collection);
        assert!(page.contains("agnp.exe") && !page.contains('\u{202e}'));
    }

    #[test]
    fn page_loads_nothing_and_runs_nothing() {
        let page = page(&Collection {
            matrices: vec![samples::matrix()],
            missing: vec!["scenarios: <x>".to_owned()],
            ..collection()
        });
        for part in [
            "http:",
            "https:",
            "<script",
            "javascript:",
            "@import",
            "url(",
        ] {
            assert!(!page.contains(part), "{part}");
        }
        assert!(page.contains("success with &lt;wrong&gt; data"));
        assert!(page.contains("WRONG<small> not PEER</small>"));
        assert!(page.contains("scenarios: &lt;x&gt;"));
    }

    #[test]
    fn repeated_runs_are_numbered() {
        let run = |scenario: &str| {
            let mut run = ReportedRun::of(samples::run());
            run.results.scenario = scenario.to_owned();
            run
        };
        let page = page(&Collection {
            runs: vec![run("demo"), run("gpu"), run("demo")],
            ..Collection::default()
        });
        for (number, name) in ["demo #1", "gpu", "demo #2"].iter().enumerate() {
            let row = format!("<a href=\"#run-{number}\">{name}</a>");
            assert!(page.contains(&row), "{row}");
            assert!(page.contains(&format!("<p class=\"brand\">{name}</p>")));
        }
    }

    #[test]
    fn run_without_a_tree_has_no_picture_but_its_routes() {
        let mut collection = collection();
        for run in &mut collection.runs {
            run.functions.clear();
        }
        let page = page(&collection);
        assert!(!page.contains("<svg") && page.contains("disk0 ⇄ gpu0"));
    }
}
