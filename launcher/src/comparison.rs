//! Peer to peer beside its control: what a detour through guest RAM would have cost.

use peerbar_report::{Check, GpuFile, Verdict};

use peerbar_lab::report::Row;
use peerbar_lab::size::human;

/// A line for each pair of passed checks that differ in nothing but the detour.
pub(crate) fn comparison(checks: &[Check], rows: &[Row]) -> String {
    let transfers: Vec<(&GpuFile, &Row)> = checks.iter().zip(rows).filter_map(transfer).collect();
    let mut text = String::new();
    for (file, straight) in transfers.iter().filter(|(file, _)| !file.bounce) {
        let control = GpuFile {
            bounce: true,
            ..(*file).clone()
        };
        if let Some((_, bounced)) = transfers.iter().find(|(other, _)| **other == control) {
            text += &line(&file.to_string(), straight, bounced);
        }
    }
    text
}

fn transfer<'a>((check, row): (&'a Check, &'a Row)) -> Option<(&'a GpuFile, &'a Row)> {
    match check {
        Check::GpuFile(file) if row.verdict == Verdict::Pass => Some((file, row)),
        _ => None,
    }
}

fn line(what: &str, straight: &Row, bounced: &Row) -> String {
    let figures = |row: &Row| {
        let (seconds, bytes) = (row.measure.seconds, row.measure.ram_bytes);
        format!("{seconds:.2} s, {} through guest RAM", human(bytes))
    };
    format!(
        "{what}, {}: peer to peer {}; bounced {}\n",
        human(straight.measure.bytes),
        figures(straight),
        figures(bounced)
    )
}

#[cfg(test)]
mod tests {
    use peerbar_report::Measure;

    use super::*;

    fn check(disk: &str, bounce: bool) -> Check {
        Check::GpuFile(GpuFile {
            gpu: "gpu0".to_owned(),
            disks: vec![disk.to_owned()],
            on: Default::default(),
            by: Default::default(),
            bounce,
            sizes: vec![4096],
            offsets: vec![0],
            threads: 1,
        })
    }

    fn row(verdict: Verdict, ram_bytes: u64) -> Row {
        Row {
            name: String::new(),
            verdict,
            measure: Measure {
                bytes: 8 << 20,
                seconds: 0.25,
                ram_bytes,
                ..Measure::default()
            },
            diagnostics: Vec::new(),
        }
    }

    #[test]
    fn transfer_is_compared_with_the_same_one_bounced() {
        let checks = [check("a", false), check("b", true), check("a", true)];
        let rows = [0, 3 << 20, 16 << 20].map(|bytes| row(Verdict::Pass, bytes));
        assert_eq!(
            comparison(&checks, &rows),
            "a to VRAM of gpu0 and back, 8 MiB: peer to peer 0.25 s, 0 B through guest RAM; bounced 0.25 s, 16 MiB through \
             guest RAM\n"
        );
    }

    #[test]
    fn failed_or_single_check_is_not_compared() {
        let checks = [check("a", false), check("a", true)];
        let rows = [row(Verdict::Pass, 0), row(Verdict::Fail, 0)];
        assert_eq!(comparison(&checks, &rows), "");
        assert_eq!(comparison(&checks, &rows[..1]), "");
    }
}
