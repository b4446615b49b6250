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
    /// The first release with it, at the earliest [`Release::OLDEST`].
    since: Release,
}

const INTEL: u16 = 0x8086;
const GOOGLE: u16 = 0x1ae0;
const NVIDIA: u16 = 0x10de;

const OLD: Release = Release::OLDEST;
const V7_1: Release = Release::new(7, 1);
const V7_1_3: Release = Release {
    patch: 3,
    ..Release::new(7, 1)
};
const V7_3: Release = Release::new(7, 3);

const fn entry(vendor: u16, device: Option<u16>, same_only: bool, since: Release) -> Entry {
    Entry {
        vendor,
        device,
        same_only,
        since,
    }
}

/// The table of Linux 7.3.4, with the release that added each entry. No two entries match one
/// device.
///
/// The commits 70cf146a674c (7.1), 0ba76b19fd4c (7.2) and 894a78088fc3 (7.3) made the additions, of
/// which the stable release 7.1.3 took over the second. Zhaoxin's host bridges (f7c220404700) came
/// after 7.3. Read in the sources of 6.1.192, 6.12.117, 7.2.6, 7.2.12 and 7.2.13, and in Debian's
/// images of 6.18.15, of eight releases from 6.19.6 to 7.0.13, of 7.1.3, 7.1.7, 7.1.8 and 7.1.13, of
/// 7.2.6 and 7.2.11: no other stable release of them has an addition. 7.1.1 and 7.1.2, which were not
/// to be had, count as without.
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
    entry(INTEL, Some(0x0b25), false, V7_1_3),
    entry(INTEL, Some(0x0cfe), false, V7_1_3),
    entry(INTEL, Some(0x11fb), false, V7_1_3),
    entry(INTEL, Some(0x1212), false, V7_1_3),
    entry(INTEL, Some(0x1216), false, V7_1_3),
    entry(INTEL, Some(0x4940), false, V7_1_3),
    entry(INTEL, Some(0x4942), false, V7_1_3),
    entry(INTEL, Some(0x4944), false, V7_1_3),
    entry(INTEL, Some(0x4946), false, V7_1_3),
    entry(INTEL, Some(0x4948), false, V7_1_3),
    // NVIDIA Vera Rubin.
    entry(NVIDIA, Some(0x2f95), false, V7_3),
    entry(NVIDIA, Some(0x2f96), false, V7_3),
    entry(NVIDIA, Some(0x2f97), false, V7_3),
    entry(NVIDIA, Some(0x2f98), false, V7_3),
];

/// Returns the entry for a host bridge known by `id` in the list of `kernel`, which is at least
/// that of [`Release::OLDEST`].
pub(crate) fn find(id: DeviceId, kernel: Release) -> Option<Entry> {
    let kernel = kernel.max(Release::OLDEST);
    matching(id).filter(|entry| entry.since <= kernel)
}

fn matching(id: DeviceId) -> Option<Entry> {
    let matches = |entry: &&Entry| {
        entry.vendor == id.vendor && entry.device.is_none_or(|device| device == id.device)
    };
    ENTRIES.iter().find(matches).copied()
}

impl DeviceId {
    /// Returns the first release that lists a host bridge known by this ID, at the earliest
    /// [`Release::OLDEST`]. Returns `None` if [`Release::NEWEST`] does not list it.
    pub fn listed_since(self) -> Option<Release> {
        Some(matching(self)?.since)
    }
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
    fn each_entry_is_listed_from_its_release_on() {
        let accelerators = [
            0x0b25, 0x0cfe, 0x11fb, 0x1212, 0x1216, 0x4940, 0x4942, 0x4944, 0x4946, 0x4948,
        ];
        for (since, vendor, devices) in [
            (V7_1, GOOGLE, &[0, 0x1234, 0xffff][..]),
            (V7_1_3, INTEL, &accelerators),
            (V7_3, NVIDIA, &[0x2f95, 0x2f96, 0x2f97, 0x2f98]),
        ] {
            let before = match since.patch {
                0 => Release::new(since.major, since.minor - 1),
                patch => Release {
                    patch: patch - 1,
                    ..since
                },
            };
            for device in devices.iter().copied() {
                let id = DeviceId { vendor, device };
                assert_eq!(id.listed_since(), Some(since), "{id}");
                assert_eq!(same_only(vendor, device, before), None, "{id}");
                assert_eq!(same_only(vendor, device, since), Some(false), "{id}");
            }
        }
        let later = ENTRIES.iter().filter(|entry| entry.since > OLD);
        assert_eq!(later.count(), 1 + accelerators.len() + 4);
    }

    #[test]
    fn oldest_entries_are_in_every_list() {
        let within = [0x3c00, 0x3c01, 0x2f00, 0x2f01].map(|device| (device, true));
        let across = [0x2030, 0x2031, 0x2032, 0x2033, 0x2020, 0x09a2].map(|device| (device, false));
        let older = Release::new(5, 19);
        for (device, same) in within.into_iter().chain(across) {
            for kernel in [older, Release::OLDEST, V7_1, Release::NEWEST] {
                assert_eq!(same_only(INTEL, device, kernel), Some(same), "{device:#x}");
            }
        }
    }

    #[test]
    fn neighbours_of_the_entries_are_not_listed() {
        for (vendor, device) in [
            (NVIDIA, 0x2f94),
            (NVIDIA, 0x2f99),
            (INTEL, 0x4941),
            (0x1d17, 0x1003),
        ] {
            assert_eq!(same_only(vendor, device, Release::NEWEST), None);
            assert_eq!(DeviceId { vendor, device }.listed_since(), None);
        }
    }
}
