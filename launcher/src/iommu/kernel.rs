//! Messages of the guest's kernel about a failed DMA.

use std::path::Path;

use peerbar_report::Evidence;

use peerbar_lab::finished_run::EVIDENCE;
use peerbar_lab::iommu::Iommu;
use peerbar_lab::run_file;
use peerbar_lab::terminal::printable;

/// Prefix of the messages from the kernel's IOMMU core.
const CORE: &str = "iommu";
/// Most lines of the log that are shown for a DMA.
const MOST: usize = 2;

/// The guest's console, and the functions of the devices.
#[derive(Default)]
pub(super) struct IommuLog {
    console: Vec<String>,
    /// PCI address and name of each device, once the guest has reported them.
    functions: Vec<(String, String)>,
}

impl IommuLog {
    /// Reads the log of a run, up to now if the run continues.
    pub(super) fn of(run: &Path) -> Self {
        let console = run_file::read(&run.join("console.log")).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let evidence = run_file::read(&run.join(EVIDENCE)).unwrap_or_default();
        let evidence: Vec<Evidence> = serde_json::from_slice(&evidence).unwrap_or_default();
        let functions = evidence.into_iter().filter_map(|evidence| match evidence {
            Evidence::Function(function) => Some((function.address, function.name?)),
            _ => None,
        });
        Self {
            console: console
                .lines()
                .map(|line| printable(line.as_bytes()))
                .collect(),
            functions: functions.collect(),
        }
    }

    /// Returns the lines in which an IOMMU driver names an address in a range, and no device except
    /// `device`.
    pub(super) fn lines(&self, device: &str, address: u64, len: u64) -> Vec<&String> {
        let first = address & !0xfff;
        let last = address.saturating_add(len.saturating_sub(1)) | 0xfff;
        let of_another = |line: &str| {
            let mut functions = self.functions.iter();
            functions.any(|(at, name)| name != device && line.contains(at))
        };
        let drivers: Vec<&str> = Iommu::present()
            .filter_map(Iommu::log_name)
            .chain([CORE])
            .collect();
        let names = |line: &&String| {
            drivers.iter().any(|driver| line.contains(driver))
                && addresses(line).any(|found| (first..=last).contains(&found))
                && !of_another(line)
        };
        self.console.iter().filter(names).take(MOST).collect()
    }
}

/// Returns the numbers with 0x in a line.
fn addresses(line: &str) -> impl Iterator<Item = u64> {
    line.split("0x").skip(1).filter_map(|rest| {
        let digits = rest.split(|c: char| !c.is_ascii_hexdigit()).next()?;
        u64::from_str_radix(digits, 16).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_line_is_found_by_device_and_address() {
        let console = [
            "[    4.1] DMAR: DRHD: handling fault status reg 2",
            "[    4.2] DMAR: [DMA Write NO_PASID] Request device [0000:01:00.0] fault addr 0x400000000000 [fault reason 0x05]",
            "[    4.3] nvme 0000:01:00.0: 0x400000000000",
        ]
        .map(str::to_owned);
        let functions = [("0000:01:00.0", "disk0"), ("0000:02:00.0", "disk1")];
        let kernel = IommuLog {
            console: console.to_vec(),
            functions: functions
                .map(|(at, name)| (at.to_owned(), name.to_owned()))
                .to_vec(),
        };
        let found = kernel.lines("disk0", 0x4000_0000_0004, 8);
        assert_eq!(found, [&console[1]]);
        assert!(kernel.lines("disk1", 0x4000_0000_0004, 8).is_empty());
        assert!(kernel.lines("disk0", 0x4000_0000_1000, 8).is_empty());
        let over = kernel.lines("disk0", 0x3fff_ffff_f000, 0x2000);
        assert_eq!(over.len(), 1);
        let early = IommuLog {
            functions: Vec::new(),
            ..kernel
        };
        assert_eq!(early.lines("disk0", 0x4000_0000_0004, 8).len(), 1);
    }
}
