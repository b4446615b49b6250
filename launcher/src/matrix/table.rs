//! The matrix as people read it, after the manner of `nvidia-smi topo -m`.

use std::fmt::Write;

use super::cell::{Cell, Spot};
use peerbar_lab::iommu::Iommu;
use peerbar_lab::table::{Cell as TableCell, Style, Table};
use peerbar_results::TransferOutcome;

/// Returns a table for each processor, with a row for each topology and flow and a column for each
/// IOMMU; coloured if `colour`.
pub(super) fn tables(cells: &[Cell], colour: bool) -> String {
    let mut text = String::new();
    for cpu in distinct(cells, |spot| spot.cpu.clone()) {
        let of_cpu: Vec<&Cell> = cells.iter().filter(|cell| cell.spot.cpu == cpu).collect();
        text += &table(&cpu, &of_cpu, colour);
        text.push('\n');
    }
    text + &legend(cells)
}

fn table(cpu: &str, cells: &[&Cell], colour: bool) -> String {
    let iommus = distinct(cells.iter().copied(), |spot| spot.iommu);
    let rows = distinct(cells.iter().copied(), |spot| (spot.topology, spot.flow));
    let heads = [cpu, ""]
        .into_iter()
        .chain(iommus.iter().map(|iommu| iommu.short_name()));
    let bold = if colour { Style::Bold } else { Style::Plain };
    let mut table = Table::new(heads.map(|head| TableCell::styled(head, bold)));
    let mut above = None;
    for (topology, flow) in rows {
        let label = if above == Some(topology) {
            ""
        } else {
            topology.label()
        };
        above = Some(topology);
        let at = |iommu: &Iommu| {
            let is_here = |cell: &&&Cell| {
                (cell.spot.topology, cell.spot.flow, cell.spot.iommu) == (topology, flow, *iommu)
            };
            cells
                .iter()
                .find(is_here)
                .map_or(TableCell::from(""), |cell| entry(cell, colour))
        };
        let labels = [label, flow.label()].map(TableCell::from);
        table.add(labels.into_iter().chain(iommus.iter().map(at)));
    }
    table.bare()
}

fn entry(cell: &Cell, colour: bool) -> TableCell {
    let style = match (&cell.disagreement, colour) {
        (Some(_), true) => Style::BoldRed,
        (None, true) if cell.seen.way == TransferOutcome::Refused => Style::Yellow,
        (None, true) => Style::Green,
        (_, false) => Style::Plain,
    };
    TableCell::styled(word(cell), style)
}

/// Returns the observation, and the rule's way if the two do not agree.
fn word(cell: &Cell) -> String {
    let (seen, ruled) = (cell.seen.way.symbol(), cell.rule.way.symbol());
    match cell.disagreement {
        None => seen.to_owned(),
        Some(_) if seen == ruled => format!("{seen} (!)"),
        Some(_) => format!("{seen} ({ruled})"),
    }
}

/// Explains the symbols of `cells`.
fn legend(cells: &[Cell]) -> String {
    let mut text = "Legend:\n".to_owned();
    let all = [
        TransferOutcome::OwnMemory,
        TransferOutcome::Peer,
        TransferOutcome::HostBridge,
        TransferOutcome::Refused,
        TransferOutcome::Unrecorded,
        TransferOutcome::Mixed,
        TransferOutcome::Failed,
        TransferOutcome::Wrong,
        TransferOutcome::NotRun,
    ];
    let is_used = |way: &TransferOutcome| {
        let shows = |cell: &Cell| {
            cell.seen.way == *way || cell.disagreement.is_some() && cell.rule.way == *way
        };
        cells.iter().any(shows)
    };
    for way in all.into_iter().filter(is_used) {
        line(&mut text, way.symbol(), &way.to_string());
    }
    if cells.iter().any(|cell| cell.disagreement.is_some()) {
        line(
            &mut text,
            "X (Y)",
            "X happened where the kernel's rule says Y; (!) another thing is wrong",
        );
    }
    if cells
        .iter()
        .any(|cell| cell.spot.iommu == Iommu::IntelPassthrough)
    {
        line(
            &mut text,
            "intel-pt",
            "intel-passthrough: an IOMMU that lets everything pass",
        );
    }
    text
}

fn line(text: &mut String, symbol: &str, meaning: &str) {
    // Writing to a string never fails.
    let _ = writeln!(text, "  {symbol:<10}{meaning}");
}

/// Returns the values that `of` has for `cells`, each once, in the order of the cells.
fn distinct<'a, T: PartialEq>(
    cells: impl IntoIterator<Item = &'a Cell>,
    of: impl Fn(&Spot) -> T,
) -> Vec<T> {
    let mut values = Vec::new();
    for cell in cells {
        let value = of(&cell.spot);
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use peerbar_lab::results::CheckStatus;

    use super::super::cell::tests::{at, upstream};
    use super::super::placement::Placement;
    use super::*;

    #[test]
    fn table_with_disagreement_shows_seen_and_rule() {
        let right = upstream();
        let mut faulty = right.clone();
        faulty.verdict = CheckStatus::Fail;
        let in_passthrough = |mut cell: Cell| {
            cell.spot.iommu = Iommu::IntelPassthrough;
            cell
        };
        let cells = [
            at("EPYC", Placement::RootPorts, Ok(&right)),
            in_passthrough(at("EPYC", Placement::RootPorts, Ok(&faulty))),
            at("EPYC", Placement::OneSwitch, Ok(&right)),
            in_passthrough(at("EPYC", Placement::OneSwitch, Err("late"))),
            at("Haswell", Placement::RootPorts, Ok(&right)),
        ];
        let expected = " EPYC                       none        intel-pt
 root ports  NVMe-CMB-NVMe  PHB         PHB (!)
 one switch  NVMe-CMB-NVMe  PHB (PEER)  - (PEER)

 Haswell                    none
 root ports  NVMe-CMB-NVMe  PHB (NO)

Legend:
  PEER      straight from device to device below their switch
  PHB       up and through the host bridge
  NO        refused by the kernel: the program gets an error, and nothing moves
  -         not tried
  X (Y)     X happened where the kernel's rule says Y; (!) another thing is wrong
  intel-pt  intel-passthrough: an IOMMU that lets everything pass
";
        assert_eq!(tables(&cells, false), expected);
        assert!(tables(&cells, true).contains('\u{1b}'));
    }
}
