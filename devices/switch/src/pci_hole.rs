//! Where the machine has no RAM.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::window::BarWindow;

/// A range of bus addresses without RAM (QEMU's term), in which the guest may put BARs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciHole {
    first: u64,
    last: u64,
}

/// Text that is no PCI hole.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("is no FIRST-LAST, two hexadecimal addresses in ascending order")]
pub struct NoPciHole;

impl PciHole {
    /// 0x80000000-0xfebfffff, up to the I/O APIC, and everything from 4 GiB: right for a q35 machine with up to 2 GiB of RAM (QEMU,
    /// `pc_q35_init` and `mch_realize`).
    pub const DEFAULT: [Self; 2] = [
        Self {
            first: 0x8000_0000,
            last: 0xfebf_ffff,
        },
        Self {
            first: 0x1_0000_0000,
            last: u64::MAX,
        },
    ];

    /// The hole from `first` to `last`; `None` if that is before `first`.
    pub fn new(first: u64, last: u64) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// Whether all of a window lies in it.
    pub(crate) fn holds(&self, window: &BarWindow) -> bool {
        let ends = window.last().is_some_and(|last| last <= self.last);
        ends && self.first <= window.address
    }
}

impl fmt::Display for PciHole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}-{:#x}", self.first, self.last)
    }
}

impl FromStr for PciHole {
    type Err = NoPciHole;

    fn from_str(text: &str) -> Result<Self, NoPciHole> {
        let address = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        let (first, last) = text.split_once('-').ok_or(NoPciHole)?;
        let ends = address(first).zip(address(last));
        let hole = ends.and_then(|(first, last)| Self::new(first, last));
        hole.ok_or(NoPciHole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::BarBacking;

    #[test]
    fn pci_hole_is_parsed_as_it_is_displayed() {
        for hole in PciHole::DEFAULT {
            assert_eq!(hole.to_string().parse(), Ok(hole));
        }
        for wrong in [
            "",
            "0x1000",
            "0x2-0x1",
            "1-2",
            "0x1-",
            "0x1-0x1ffffffffffffffff",
        ] {
            assert_eq!(wrong.parse::<PciHole>(), Err(NoPciHole), "{wrong}");
        }
    }

    #[test]
    fn only_a_window_that_lies_in_a_hole_as_a_whole_is_held() {
        let hole = PciHole::new(0x2000, 0x4fff).unwrap();
        let held = |address, size| {
            hole.holds(&BarWindow {
                bar: 0,
                address,
                size,
                claim: 0,
                backing: BarBacking::ByMessage,
            })
        };
        assert!(held(0x2000, 0x3000) && held(0x4fff, 1));
        assert!(!held(0x1fff, 0x10) && !held(0x4000, 0x1001) && !held(0x2000, u64::MAX));
    }
}
