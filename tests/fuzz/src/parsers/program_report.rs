//! The report that a program prints in the guest, KTAP or TAP.

use peerbar_report::{Nested, ProgramReport, Subtest};

/// Reads `data`.
pub fn run(data: &[u8]) {
    let Some(report) = ProgramReport::read(&String::from_utf8_lossy(data)) else {
        return;
    };
    let leaves = Subtest::leaves(&report.results);
    assert!(leaves.len() >= report.results.len());
    let names = leaves.iter().map(|(name, _)| name);
    assert!(names.flat_map(|name| name.chars()).all(|c| c != '\n'));
    if report.results.is_empty() && report.skipped.is_none() {
        assert!(report.complaint().is_some(), "nothing ran, and it passes");
    }
    // It walks the tree again.
    let _ = report.skipped();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::corpus;

    #[test]
    fn every_seed_is_a_report_with_results() {
        for (name, seed) in corpus("program_report") {
            let report = ProgramReport::read(&String::from_utf8_lossy(&seed)).expect(&name);
            assert!(!report.results.is_empty(), "{name}");
        }
    }
}
