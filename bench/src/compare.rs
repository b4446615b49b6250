//! Comparison of two reports.

use std::collections::{BTreeMap, BTreeSet};

use crate::figure::{Figure, readable};
use crate::report::Report;
use crate::table::table;

/// Returns a table of the figures of both reports: values, and ratios to their baselines. The
/// ratios say more if the machines or their loads differ. The last column is above 1 if the second
/// report is better, and a dash if the baselines differ.
pub(crate) fn compare(first: &Report, second: &Report) -> String {
    let header = [
        "figure",
        "unit",
        "A",
        "B",
        "B / A",
        "A's ratio",
        "B's ratio",
        "better by",
    ];
    let rows = first.figures.iter().map(|figure| {
        let mut others = second.figures.iter();
        row(figure, others.find(|other| other.name == figure.name))
    });
    let table = table(header, 2..8, rows);
    let known = |figure: &&Figure| first.figures.iter().all(|other| other.name != figure.name);
    let new: Vec<&str> = second
        .figures
        .iter()
        .filter(known)
        .map(|figure| figure.name.as_str())
        .collect();
    let mut text = format!("A: {}\nB: {}\n", origin(first), origin(second));
    text += &differences(first, second);
    text += &other_yardsticks(first, second);
    text += &table;
    if !new.is_empty() {
        text += &format!("only in B: {}\n", new.join(", "));
    }
    text
}

fn origin(report: &Report) -> String {
    format!("commit {}, {}", report.commit, report.machine)
}

/// Returns the differences in versions and settings.
fn differences(first: &Report, second: &Report) -> String {
    let of = |report: &Report| {
        let all = report.versions.iter().chain(&report.settings);
        all.map(|(name, value)| (name.clone(), value.clone()))
            .collect::<BTreeMap<_, _>>()
    };
    let (first, second) = (of(first), of(second));
    let names: BTreeSet<&String> = first.keys().chain(second.keys()).collect();
    let lines = names.into_iter().filter_map(|name| {
        let [a, b] = [&first, &second].map(|all| all.get(name).map_or("", String::as_str));
        (a != b).then(|| format!("they differ in {name}: `{a}` and `{b}`\n"))
    });
    lines.collect()
}

/// Returns the figures that have another baseline in `second`.
fn other_yardsticks(first: &Report, second: &Report) -> String {
    let pairs = first.figures.iter().filter_map(|a| {
        let b = second.figures.iter().find(|b| b.name == a.name)?;
        (a.beside.what != b.beside.what).then_some((a, b))
    });
    let lines = pairs.map(|(a, b)| {
        let name = &a.name;
        format!(
            "they differ in the comparison of {name}: `{}` and `{}`\n",
            a.beside.what, b.beside.what
        )
    });
    lines.collect()
}

fn row(a: &Figure, b: Option<&Figure>) -> [String; 8] {
    let with = |text: &dyn Fn(&Figure) -> String| b.map_or_else(|| "-".to_owned(), text);
    let better = |b: &Figure| {
        let by = b.ratio / a.ratio;
        match (a.beside.what == b.beside.what, a.more_is_better) {
            (false, _) => "-".to_owned(),
            (true, true) => format!("{by:.2}"),
            (true, false) => format!("{:.2}", by.recip()),
        }
    };
    [
        a.name.clone(),
        a.unit.clone(),
        readable(a.value),
        with(&|b| readable(b.value)),
        with(&|b| format!("{:.2}", b.value / a.value)),
        format!("{:.2}", a.ratio),
        with(&|b| format!("{:.2}", b.ratio)),
        with(&better),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(name: &str, more_is_better: bool, value: f64, ratio: f64) -> Figure {
        Figure::of_rounds(
            name,
            "IOPS",
            more_is_better,
            "a loop",
            &[(value, value / ratio)],
        )
    }

    #[test]
    fn better_is_above_one_whichever_way_is_better() {
        let (mut a, mut b) = (Report::begin(), Report::begin());
        a.figures = vec![figure("x", true, 100.0, 0.4), figure("y", false, 10.0, 4.0)];
        b.figures = vec![figure("x", true, 150.0, 0.8), figure("y", false, 8.0, 2.0)];
        a.figures.push(figure("z", true, 1.0, 1.0));
        b.figures.push(figure("w", true, 1.0, 1.0));
        let cells = |line: usize| row(&a.figures[line], b.figures.get(line));
        assert_eq!(cells(0)[4..], ["1.50", "0.40", "0.80", "2.00"]);
        assert_eq!(cells(1)[4..], ["0.80", "4.00", "2.00", "2.00"]);
        b.settings
            .insert("rounds".to_owned(), "one, short".to_owned());
        let text = compare(&a, &b);
        assert!(
            text.contains("differ in rounds: `` and `one, short`"),
            "{text}"
        );
        assert!(text.contains("only in B: w\n"), "{text}");
        assert!(row(&a.figures[2], None).contains(&"-".to_owned()));
    }

    #[test]
    fn ratios_to_different_things_make_nothing_better() {
        let (mut a, mut b) = (Report::begin(), Report::begin());
        a.figures = vec![figure("x", true, 100.0, 0.4)];
        b.figures = vec![figure("x", true, 100.0, 0.8)];
        b.figures[0].beside.what = "two loops".to_owned();
        assert_eq!(row(&a.figures[0], b.figures.first())[7], "-");
        let text = compare(&a, &b);
        let message = "they differ in the comparison of x: `a loop` and `two loops`\n";
        assert!(text.contains(message), "{text}");
        assert!(!compare(&a, &a).contains("the comparison of"));
    }
}
