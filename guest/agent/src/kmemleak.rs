//! The kernel's search for leaks (Linux, Documentation/dev-tools/kmemleak.rst), which debug kernels
//! have.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Context;

use crate::mounts;

const FILE: &str = "/sys/kernel/debug/kmemleak";

/// The kernel reports memory that has at least this age, and has not changed since the previous
/// scan (mm/kmemleak.c, `MSECS_MIN_AGE`).
const AGE: Duration = Duration::from_secs(5);

/// Start of the kernel's report about each object.
const OBJECT: &str = "unreferenced object";

/// Functions in the backtrace of a leak of Linux itself. `dma_buf_free_sgt` calls `sg_free_table`
/// with `orig_nents` 0, which frees no entries: each mapping of a dma-buf of vfio-pci leaks its
/// scatter list (Linux 7.3, drivers/dma-buf/dma-buf-mapping.c).
const KNOWN: [&str; 3] = [
    "sg_kmalloc+",
    "dma_buf_phys_vec_to_sgt+",
    "vfio_pci_dma_buf_map+",
];

/// Returns the kernel's report of memory to which nothing refers any more, without the [`KNOWN`]
/// leaks. A kernel without CONFIG_DEBUG_KMEMLEAK reports none.
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

/// Returns the lines of a report without those of known leaks, after a line with the number of
/// objects.
fn lines(report: &str) -> Vec<String> {
    let (mut objects, mut lines) = (0, Vec::new());
    // The text before the first one is not an object.
    for object in report.split(OBJECT).skip(1) {
        if KNOWN.iter().all(|function| object.contains(function)) {
            continue;
        }
        objects += 1;
        lines.extend(format!("{OBJECT}{object}").lines().map(str::to_owned));
    }
    if objects > 0 {
        lines.insert(0, format!("BUG: memory leak: {objects} objects ({FILE}):"));
    }
    lines
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

    #[test]
    fn leak_of_linux_itself_is_not_reported_and_others_are() {
        let object = |functions: &[&str]| {
            let calls = functions.iter().map(|name| format!("    {name}+0x1/0x2\n"));
            format!(
                "unreferenced object 0xffff888003a8f000 (size 32):\n  backtrace (crc 0):\n{}",
                calls.collect::<String>()
            )
        };
        let allocation = ["sg_kmalloc", "dma_buf_phys_vec_to_sgt"];
        let known = object(&[&allocation[..], &["vfio_pci_dma_buf_map"]].concat());
        let ours = object(&[&allocation[..], &["pb_export_map"]].concat());
        assert_eq!(lines(&known), Vec::<String>::new());
        let reported = lines(&format!("{known}{ours}{known}"));
        assert_eq!(reported.len(), 6);
        assert!(reported[0].starts_with("BUG: memory leak: 1 objects"));
        assert!(reported[5].contains("pb_export_map"));
    }
}
