//! Compares peer-to-peer DMA with its control: the cost that a detour through guest RAM would have.

use peerbar_report::{Check, Verdict};

use peerbar_lab::report::Row;
use peerbar_lab::size::human;

/// Returns a line for each passed check whose control passed too.
pub(crate) fn comparison(checks: &[Check], rows: &[Row]) -> String {
    let passed = |row: &&Row| row.verdict == Verdict::Pass;
    let compared = checks.iter().zip(rows).filter_map(|(check, straight)| {
        let bounced = rows.get(check.control_among(checks)?).filter(passed)?;
        Some(line(&check.name(), Some(straight).filter(passed)?, bounced))
    });
    compared.collect()
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
    use peerbar_report::{GpuFile, Measure};

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
            seconds: (!bounce).then_some(9),
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
            subtests: Vec::new(),
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
