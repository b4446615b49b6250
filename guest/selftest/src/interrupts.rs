//! Counts of a device's interrupts, from `/proc/interrupts`.

use std::fs;

use anyhow::{Context, ensure};

/// Returns the interrupts of MSI-X vector `vector` of the PCI device at `address`, on all
/// processors, since the kernel started.
pub(crate) fn count(address: &str, vector: u32) -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/interrupts").context("cannot read /proc/interrupts")?;
    find(&text, address, vector)
}

fn find(text: &str, address: &str, vector: u32) -> anyhow::Result<u64> {
    let (chip, hwirq) = (format!("PCI-MSIX-{address}"), format!("{vector}-edge"));
    let line = text.lines().find(|line| {
        let mut words = line.split_whitespace();
        words.any(|word| word.ends_with(&chip)) && words.next() == Some(&hwirq)
    });
    let line = line.with_context(|| format!("no line for vector {vector} of {address}"))?;
    let counts = line.split_whitespace().skip(1);
    let counts: Vec<u64> = counts.map_while(|word| word.parse().ok()).collect();
    ensure!(!counts.is_empty(), "no counts in {line:?}");
    Ok(counts.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "           CPU0       CPU1\n  \
        33:          4          3  PCI-MSIX-0000:05:00.0    1-edge      peerbar-gpu0\n  \
        48:          0          9  IR-PCI-MSIX-0000:05:00.0   15-edge      peerbar-gpu0\n";

    #[test]
    fn all_processors_are_counted() {
        assert_eq!(find(TEXT, "0000:05:00.0", 1).unwrap(), 7);
        assert_eq!(find(TEXT, "0000:05:00.0", 15).unwrap(), 9);
        let error = find(TEXT, "0000:05:00.0", 5).unwrap_err().to_string();
        assert_eq!(error, "no line for vector 5 of 0000:05:00.0");
    }
}
