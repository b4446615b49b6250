//! The kernel's search for leaks (Linux, Documentation/dev-tools/kmemleak.rst), which kernels for debugging have.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Context;

use crate::mounts;

const FILE: &str = "/sys/kernel/debug/kmemleak";

/// The kernel reports memory that is at least so old, and has not changed since the scan before (mm/kmemleak.c,
/// `MSECS_MIN_AGE`).
const AGE: Duration = Duration::from_secs(5);

/// What a report of the kernel begins with, for each object.
const OBJECT: &str = "unreferenced object";

/// Memory of the kernel to which nothing refers any more, in the kernel's words. A kernel without CONFIG_DEBUG_KMEMLEAK
/// reports none.
///
/// # Errors
/// The search is off, though the kernel has it.
pub(crate) fn leaks() -> anyhow::Result<Vec<String>> {
    mounts::debugging()?;
    if !Path::new(FILE).exists() {
        return Ok(Vec::new());
    }
    let scan = || fs::write(FILE, "scan").with_context(|| format!("{FILE} takes no `scan`"));
    scan()?;
    // No event tells the age of memory.
    thread::sleep(AGE);
    scan()?;
    let report = fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
    Ok(lines(&report))
}

/// The lines of a report, after one with the number of objects.
fn lines(report: &str) -> Vec<String> {
    let objects = report.matches(OBJECT).count();
    if report.trim().is_empty() {
        return Vec::new();
    }
    let head = format!("BUG: memory leak: {objects} objects ({FILE}):");
    let lines = report.lines().map(str::to_owned);
    std::iter::once(head).chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_report_is_no_leak_and_another_is_counted() {
        assert_eq!(lines(""), Vec::<String>::new());
        let report = "unreferenced object 0xffff888003a8f000 (size 64):\n  comm \"insmod\", pid 71\n\
            unreferenced object 0xffff888003a8f100 (size 8):\n";
        let lines = lines(report);
        assert_eq!(lines.len(), 4);
        assert!(lines[0].starts_with("BUG: memory leak: 2 objects"));
        assert!(lines[1].contains("(size 64)"));
    }
}
