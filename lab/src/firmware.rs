//! The guest's firmware, which runs between QEMU's start and the kernel's.

use serde::Deserialize;
use strum::IntoStaticStr;

/// The firmware with which the guest starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Firmware {
    /// Starts the kernel and does little else. The kernel assigns BARs and windows of bridges.
    /// Nothing is decoded yet while it looks for them, so QEMU's memory map stays unchanged, and no
    /// server is notified of changes.
    Qboot,
    /// Assigns BARs and windows, as a PC's does.
    Seabios,
}

impl Firmware {
    /// Returns its name in a scenario.
    pub fn word(self) -> &'static str {
        self.into()
    }

    /// Returns the file for QEMU's command line, if it is not QEMU's default.
    pub fn file(self) -> Option<&'static str> {
        match self {
            Self::Qboot => Some(peerbar_images::QBOOT),
            Self::Seabios => None,
        }
    }

    /// Returns the size of the 64-bit window for BARs, if QEMU's default is too small for `bars`
    /// bytes. QEMU gives the guest a window of 32 GiB, or a larger one if the firmware has assigned
    /// more (QEMU hw/pci-host/q35.c). Each BAR lies on a multiple of its size, so up to twice as
    /// much is needed.
    pub fn window(self, bars: u64) -> Option<u64> {
        const OF_QEMU: u64 = 32 << 30;
        let needed = bars.saturating_mul(2);
        (self == Self::Qboot && needed > OF_QEMU).then_some(needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qboot_with_large_bars_needs_a_larger_window() {
        const GIB: u64 = 1 << 30;
        assert_eq!(Firmware::Qboot.window(16 * GIB), None);
        assert_eq!(Firmware::Qboot.window(17 * GIB), Some(34 * GIB));
        assert_eq!(Firmware::Seabios.window(17 * GIB), None);
    }
}
