//! Results as a table for people.

use peerbar_report::{Nested, Subtest, Verdict};

use peerbar_lab::count::counted;
use peerbar_lab::report::Row;
use peerbar_lab::size::{human, throughput};
use peerbar_lab::table::{Cell, Style, Table};

const HEADER: [&str; 7] = [
    "check",
    "sizes",
    "throughput",
    "route",
    "peer to peer",
    "through guest RAM",
    "verdict",
];
/// Characters of a check's name; the line of a command can be long.
const LONGEST_NAME: usize = 56;
/// Stands for accesses of another project's server to memory that it maps: nobody counts them.
const MAPPED: &str = "mapped, not counted";
/// Columns of figures, aligned to the right.
const NUMBERS: [usize; 3] = [2, 4, 5];

/// Returns the table of `rows`, empty without any. The verdicts are coloured if `colour`, and cells
/// are broken where the table would be wider than `columns`. If no check moved anything, there are
/// no columns of figures.
pub(crate) fn table(rows: &[Row], colour: bool, columns: Option<u16>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    if !rows.iter().any(has_figures) {
        let [check, .., verdict] = HEADER;
        let mut table = Table::new([check, verdict]).at_most(columns);
        for row in rows {
            let [check, .., verdict] = cells(row, colour);
            table.add([check, verdict]);
        }
        return table.framed();
    }
    let mut table = Table::new(HEADER).flush_right(NUMBERS).at_most(columns);
    rows.iter().for_each(|row| table.add(cells(row, colour)));
    table.framed()
}

fn has_figures(row: &Row) -> bool {
    let measure = &row.measure;
    let bytes = [measure.bytes, measure.peer_bytes, measure.ram_bytes];
    let moved = bytes.iter().any(|&bytes| bytes > 0);
    !measure.sizes.is_empty() || moved || !measure.mapped_not_counted.is_empty()
}

fn cells(row: &Row, colour: bool) -> [Cell; HEADER.len()] {
    let measure = &row.measure;
    let bytes = |count: u64| {
        if count == 0 {
            "-".to_owned()
        } else {
            human(count)
        }
    };
    let style = match row.verdict {
        _ if !colour => Style::Plain,
        Verdict::Pass => Style::Green,
        Verdict::Fail => Style::Red,
        Verdict::Skip(_) => Style::Yellow,
    };
    let sizes = match measure.sizes.as_str() {
        "" => "-",
        sizes => sizes,
    };
    [
        Cell::from(shortened(&row.name) + &subtests(row)),
        Cell::from(sizes),
        Cell::from(throughput(measure.bytes, measure.seconds)),
        Cell::from(route(row)),
        Cell::from(bytes(measure.peer_bytes)),
        Cell::from(bytes(measure.ram_bytes)),
        Cell::styled(word(&row.verdict), style),
    ]
}

/// Returns the word of a verdict; a failure's stands out.
pub(crate) fn word(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Fail => verdict.word().to_uppercase(),
        Verdict::Pass | Verdict::Skip(_) => verdict.word().to_owned(),
    }
}

/// Returns the number of subtests that a program has reported, and of those that it skipped.
fn subtests(row: &Row) -> String {
    let leaves = Subtest::leaves(&row.subtests);
    let skipped = leaves
        .iter()
        .filter(|(_, leaf)| matches!(leaf.verdict, Verdict::Skip(_)))
        .count();
    let all = match leaves.len() {
        0 => return String::new(),
        all => counted(all, "subtest"),
    };
    match skipped {
        0 => format!(" [{all}]"),
        skipped => format!(" [{all}, {skipped} skipped]"),
    }
}

fn shortened(name: &str) -> String {
    match name.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => format!("{}…", name.get(..end).unwrap_or(name)),
        None => name.to_owned(),
    }
}

/// Returns every route that carried payload, in the words that the devices record, and says so if a
/// device may have moved more.
fn route(row: &Row) -> String {
    let taken = row.measure.routes.iter().filter(|&(_, &bytes)| bytes > 0);
    let mut words: Vec<&str> = taken.map(|(route, _)| route.word()).collect();
    if !row.measure.mapped_not_counted.is_empty() {
        words.push(MAPPED);
    }
    if words.is_empty() {
        "-".to_owned()
    } else {
        words.join(" + ")
    }
}

#[cfg(test)]
mod tests {
    use peerbar_report::{Measure, Route};

    use super::*;

    fn row(name: &str, verdict: Verdict, measure: Measure) -> Row {
        Row {
            name: name.to_owned(),
            verdict,
            measure,
            diagnostics: Vec::new(),
            subtests: Vec::new(),
        }
    }

    #[test]
    fn uncounted_accesses_are_no_number() {
        let measure = Measure {
            mapped_not_counted: vec!["dev0".to_owned()],
            ..Measure::default()
        };
        let shown = table(&[row("order dev0", Verdict::Pass, measure)], false, None);
        let shown: Vec<&str> = shown.lines().nth(3).unwrap().split(['│', '┆']).collect();
        let shown: Vec<&str> = shown.iter().map(|cell| cell.trim()).collect();
        let expected = [
            "order dev0",
            "-",
            "-",
            "mapped, not counted",
            "-",
            "-",
            "pass",
        ];
        assert_eq!(shown[1..8], expected);
    }

    #[test]
    fn a_table_shows_every_figure() {
        let copy = Measure {
            status: None,
            mapped_not_counted: Vec::new(),
            sizes: "4K-8M".to_owned(),
            bytes: 30 << 20,
            seconds: 0.1,
            routes: [
                (Route::OwnBar, 30 << 20),
                (Route::Upstream, 30 << 20),
                (Route::GuestRam, 0),
            ]
            .into(),
            peer_bytes: 60 << 20,
            ram_bytes: 0,
            failures: 0,
            flows: Vec::new(),
            probe: None,
            subtests: Vec::new(),
        };
        let rows = [
            row("copy disk0 to disk1", Verdict::Pass, copy),
            row("reset disk0", Verdict::Fail, Measure::default()),
            row(
                "fio",
                Verdict::Skip("no fio".to_owned()),
                Measure::default(),
            ),
        ];
        let expected = "\
┌─────────────────────┬───────┬────────────┬────────────────────┬──────────────┬───────────────────┬─────────┐
│ check               ┆ sizes ┆ throughput ┆ route              ┆ peer to peer ┆ through guest RAM ┆ verdict │
╞═════════════════════╪═══════╪════════════╪════════════════════╪══════════════╪═══════════════════╪═════════╡
│ copy disk0 to disk1 ┆ 4K-8M ┆  300 MiB/s ┆ own-bar + upstream ┆       60 MiB ┆                 - ┆ pass    │
│ reset disk0         ┆ -     ┆          - ┆ -                  ┆            - ┆                 - ┆ FAIL    │
│ fio                 ┆ -     ┆          - ┆ -                  ┆            - ┆                 - ┆ skip    │
└─────────────────────┴───────┴────────────┴────────────────────┴──────────────┴───────────────────┴─────────┘
";
        assert_eq!(table(&rows, false, None), expected);
    }

    #[test]
    fn a_long_name_is_cut_and_no_rows_are_no_table() {
        let rows = [row(&"ä".repeat(80), Verdict::Pass, Measure::default())];
        assert!(table(&rows, false, None).contains(&format!("│ {}… ┆", "ä".repeat(LONGEST_NAME))));
        assert_eq!(table(&[], false, None), "");
    }

    #[test]
    fn checks_that_moved_nothing_have_no_figures() {
        let part = |verdict| Subtest {
            name: "part".to_owned(),
            verdict,
            diagnostics: Vec::new(),
            subtests: Vec::new(),
        };
        let mut one = row("one", Verdict::Pass, Measure::default());
        one.subtests = vec![part(Verdict::Pass)];
        let mut two = row("two", Verdict::Fail, Measure::default());
        two.subtests = vec![part(Verdict::Fail), part(Verdict::Skip(String::new()))];
        let expected = "\
┌─────────────────────────────┬─────────┐
│ check                       ┆ verdict │
╞═════════════════════════════╪═════════╡
│ one [1 subtest]             ┆ pass    │
│ two [2 subtests, 1 skipped] ┆ FAIL    │
└─────────────────────────────┴─────────┘
";
        assert_eq!(table(&[one, two], false, None), expected);
    }

    #[test]
    fn only_a_coloured_table_holds_escape_sequences() {
        let rows = [row("x", Verdict::Fail, Measure::default())];
        assert!(table(&rows, true, None).contains('\u{1b}'));
        assert!(!table(&rows, false, None).contains('\u{1b}'));
    }

    #[test]
    fn a_table_fits_a_narrow_terminal() {
        let measure = Measure {
            sizes: "4K".to_owned(),
            ..Measure::default()
        };
        let rows = [row("a name of many words", Verdict::Pass, measure)];
        let width = |columns| {
            let text = table(&rows, false, columns);
            text.lines().map(|line| line.chars().count()).max()
        };
        let natural = width(None);
        assert!(natural > Some(80));
        assert_eq!(width(Some(200)), natural);
        assert!(width(Some(80)) <= Some(80));
    }
}
