//! The guest's firmware: what runs between QEMU's start and the kernel's.

use serde::Deserialize;
use strum::IntoStaticStr;

/// Which firmware the guest starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Firmware {
    /// Starts the kernel and does little else. BARs and windows of bridges are the kernel's to assign: while it looks for
    /// them nothing is decoded yet, so QEMU's memory map stays as it is, and no server is notified of changes.
    Qboot,
    /// Assigns BARs and windows, as a PC's does.
    Seabios,
}

impl Firmware {
    /// Its name in a scenario.
    pub fn word(self) -> &'static str {
        self.into()
    }

    /// The file for QEMU's command line, if it is not QEMU's default.
    pub fn file(self) -> Option<&'static str> {
        match self {
            Self::Qboot => Some(peerbar_images::QBOOT),
            Self::Seabios => None,
        }
    }

    /// The 64-bit window for BARs in bytes, if QEMU's own does not hold `bars` bytes of them. QEMU tells the guest of a
    /// window of 32 GiB, or of a larger one if the firmware has assigned more (QEMU hw/pci-host/q35.c); each BAR lies on a
    /// multiple of its size, so up to twice as much is needed.
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
