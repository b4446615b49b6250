//! The host bridges that Linux trusts to forward requests from peer to peer, independently of the
//! processor (drivers/pci/p2pdma.c, `pci_p2pdma_whitelist`).

use crate::pci_tree::DeviceId;
use crate::platform::Release;

/// An entry of the list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    vendor: u16,
    /// The device; `None` stands for all devices of the vendor.
    device: Option<u16>,
    /// Both functions must be below this one host bridge.
    pub(crate) same_only: bool,
    /// The first release with it. Backports to older stable series are not considered.
    since: Release,
}

const INTEL: u16 = 0x8086;
const GOOGLE: u16 = 0x1ae0;
const NVIDIA: u16 = 0x10de;

const OLD: Release = Release { major: 6, minor: 0 };
const V7_1: Release = Release { major: 7, minor: 1 };
const V7_2: Release = Release { major: 7, minor: 2 };
const V7_3: Release = Release { major: 7, minor: 3 };

const fn entry(vendor: u16, device: Option<u16>, same_only: bool, since: Release) -> Entry {
    Entry {
        vendor,
        device,
        same_only,
        since,
    }
}

/// The table of Linux 7.3.4, with the release that added each entry.
const ENTRIES: [Entry; 25] = [
    // Xeon E5, v3 of E5 and E7.
    entry(INTEL, Some(0x3c00), true, OLD),
    entry(INTEL, Some(0x3c01), true, OLD),
    entry(INTEL, Some(0x2f00), true, OLD),
    entry(INTEL, Some(0x2f01), true, OLD),
    // Skylake-E: ports A to D, DMI.
    entry(INTEL, Some(0x2030), false, OLD),
    entry(INTEL, Some(0x2031), false, OLD),
    entry(INTEL, Some(0x2032), false, OLD),
    entry(INTEL, Some(0x2033), false, OLD),
    entry(INTEL, Some(0x2020), false, OLD),
    // Ice Lake servers and later.
    entry(INTEL, Some(0x09a2), false, OLD),
    entry(GOOGLE, None, false, V7_1),
    // Accelerators that are alone on one of Intel's root buses: DSA and IAA, then QAT.
    entry(INTEL, Some(0x0b25), false, V7_2),
    entry(INTEL, Some(0x0cfe), false, V7_2),
    entry(INTEL, Some(0x11fb), false, V7_2),
    entry(INTEL, Some(0x1212), false, V7_2),
    entry(INTEL, Some(0x1216), false, V7_2),
    entry(INTEL, Some(0x4940), false, V7_2),
    entry(INTEL, Some(0x4942), false, V7_2),
    entry(INTEL, Some(0x4944), false, V7_2),
    entry(INTEL, Some(0x4946), false, V7_2),
    entry(INTEL, Some(0x4948), false, V7_2),
    // Processors with NVIDIA's host bridges.
    entry(NVIDIA, Some(0x2f95), false, V7_3),
    entry(NVIDIA, Some(0x2f96), false, V7_3),
    entry(NVIDIA, Some(0x2f97), false, V7_3),
    entry(NVIDIA, Some(0x2f98), false, V7_3),
];

/// Returns the entry for a host bridge known by `id` in the list of `kernel`.
pub(crate) fn find(id: DeviceId, kernel: Release) -> Option<Entry> {
    let matches = |entry: &&Entry| {
        entry.vendor == id.vendor
            && entry.device.is_none_or(|device| device == id.device)
            && entry.since <= kernel
    };
    ENTRIES.iter().find(matches).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same_only(vendor: u16, device: u16, kernel: Release) -> Option<bool> {
        find(DeviceId { vendor, device }, kernel).map(|entry| entry.same_only)
    }

    #[test]
    fn old_xeons_are_listed_for_same_bridge_only() {
        assert_eq!(same_only(INTEL, 0x2f00, Release::NEWEST), Some(true));
        assert_eq!(same_only(INTEL, 0x09a2, Release::NEWEST), Some(false));
        assert_eq!(
            same_only(INTEL, 0x29c0, Release::NEWEST),
            None,
            "QEMU's q35"
        );
        assert_eq!(
            same_only(0x1b36, 0x000c, Release::NEWEST),
            None,
            "QEMU's root port"
        );
    }

    #[test]
    fn later_releases_list_more_host_bridges() {
        let older = Release {
            major: 6,
            minor: 13,
        };
        assert_eq!(same_only(GOOGLE, 0x1234, older), None);
        assert_eq!(same_only(GOOGLE, 0x1234, V7_1), Some(false));
        assert_eq!(same_only(INTEL, 0x4948, V7_1), None);
        assert_eq!(same_only(INTEL, 0x4948, V7_2), Some(false));
        assert_eq!(same_only(INTEL, 0x2030, older), Some(false));
        assert_eq!(same_only(NVIDIA, 0x2f95, V7_2), None);
        for device in 0x2f95..=0x2f98 {
            assert_eq!(same_only(NVIDIA, device, V7_3), Some(false));
        }
        assert_eq!(same_only(NVIDIA, 0x2f94, V7_3), None);
        assert_eq!(same_only(NVIDIA, 0x2f99, V7_3), None);
    }
}
