//! The matrix as a coloured grid.

use maud::{Markup, html};

use crate::matrix::{MatrixCell, MatrixResults, TransferOutcome};

/// Returns a table for each CPU, the disagreements, and the reason why the rule names each way.
pub(super) fn matrix(matrix: &MatrixResults, id: &str) -> Markup {
    let all = matrix.cells.len();
    let agree = |cell: &&MatrixCell| cell.disagreement.is_none();
    let agreeing = matrix.cells.iter().filter(agree).count();
    let verdict = if matrix.is_passed() { "pass" } else { "fail" };
    let title = format!("{id}-title");
    html! {
        section.run.(verdict) id=(id) aria-labelledby=(title) {
            header {
                h2 id=(title) { "Matrix of " (matrix.device) }
                p.verdict { (badge(verdict)) (agreeing) " of " (all) " cells agree with the kernel's rule" }
                p.facts { "QEMU " (matrix.versions.qemu) " · Linux " (matrix.versions.kernel) " · "
                    (format!("{:.0} s", matrix.seconds)) }
            }
            @for cpu in distinct(&matrix.cells, |cell| &cell.cpu) { (table(matrix, cpu)) }
            (legend(&matrix.cells))
            @if agreeing < all || !matrix.flaws.is_empty() {
                h3 { "Disagreements" }
                ul.disagreements {
                    @for cell in matrix.cells.iter().filter(|cell| cell.disagreement.is_some()) {
                        li { b { (coordinates(cell)) } ": " (cell.disagreement.as_deref().unwrap_or_default()) }
                    }
                    @for flaw in &matrix.flaws { li { (flaw) } }
                }
            }
            @if let Some(caveat) = &matrix.caveat { p.note { (caveat) } }
        }
    }
}

fn badge(verdict: &str) -> Markup {
    html! { span.badge.(verdict) { (if verdict == "pass" { "passed" } else { "failed" }) } " " }
}

fn coordinates(cell: &MatrixCell) -> String {
    let [cpu, iommu, topology, flow] = cell.coordinates();
    format!(
        "{cpu}, {iommu}, {topology}, {flow} ({} to {})",
        cell.client, cell.provider
    )
}

fn table(matrix: &MatrixResults, cpu: &str) -> Markup {
    let cells: Vec<&MatrixCell> = matrix.cells.iter().filter(|cell| cell.cpu == cpu).collect();
    let iommus = distinct(cells.iter().copied(), |cell| &cell.iommu);
    let topologies = distinct(cells.iter().copied(), |cell| &cell.topology);
    html! {
        div.wide tabindex="0" role="region" aria-label=(format!("Matrix for {cpu}")) {
            table.grid {
                caption { (cpu) }
                thead { tr {
                    th scope="col" { "topology" } th scope="col" { "flow" }
                    @for iommu in &iommus { th scope="col" { (iommu) } }
                } }
                @for topology in topologies {
                    @let here: Vec<&MatrixCell> =
                        cells.iter().copied().filter(|cell| cell.topology == topology).collect();
                    @let flows = distinct(here.iter().copied(), |cell| &cell.flow);
                    tbody {
                        @for (number, flow) in flows.iter().enumerate() { tr {
                            @if number == 0 {
                                th scope="rowgroup" rowspan=(flows.len()) { (topology.replace('-', " ")) }
                            }
                            th scope="row" { (flow) }
                            @for iommu in &iommus {
                                (cell_of(here.iter().find(|cell| cell.flow == *flow && cell.iommu == *iommu)))
                            }
                        } }
                    }
                }
            }
        }
    }
}

fn cell_of(cell: Option<&&MatrixCell>) -> Markup {
    let Some(cell) = cell else {
        return html! { td.none { "·" } };
    };
    let seen = cell.seen.way;
    let why = cell.rule.more.get("why").and_then(|why| why.as_str());
    let title = format!(
        "{}: {}. Rule: {}",
        coordinates(cell),
        seen,
        why.unwrap_or_default()
    );
    match &cell.disagreement {
        None => html! { td.(class(seen)) title=(title) { (seen.symbol()) } },
        Some(_) => html! {
            td.(class(seen)).against title=(title) {
                (seen.symbol()) small { " not " (cell.rule.way.symbol()) }
            }
        },
    }
}

fn class(way: TransferOutcome) -> &'static str {
    match way {
        TransferOutcome::OwnMemory => "own-bar",
        TransferOutcome::Peer => "peer",
        TransferOutcome::HostBridge => "upstream",
        TransferOutcome::Refused => "no",
        TransferOutcome::Unrecorded => "unrecorded",
        TransferOutcome::Mixed | TransferOutcome::Failed | TransferOutcome::Wrong => "refused",
        TransferOutcome::NotRun => "none",
    }
}

fn legend(cells: &[MatrixCell]) -> Markup {
    let mut ways: Vec<TransferOutcome> = Vec::new();
    for way in cells.iter().flat_map(|cell| [cell.seen.way, cell.rule.way]) {
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    html! {
        dl.legend {
            @for way in ways {
                div { dt.(class(way)) { (way.symbol()) } dd { (way) } }
            }
        }
    }
}

/// Returns the values that `of` has for `cells`, each once, in the order of the cells.
fn distinct<'a>(
    cells: impl IntoIterator<Item = &'a MatrixCell>,
    of: impl Fn(&'a MatrixCell) -> &'a String,
) -> Vec<&'a str> {
    let mut values: Vec<&str> = Vec::new();
    for cell in cells {
        let value = of(cell).as_str();
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}
