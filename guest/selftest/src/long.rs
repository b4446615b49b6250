//! Commands that are longer than the device accepts: the driver splits them, and their results add
//! up.

use anyhow::{Context, ensure};

use crate::Test;
use crate::expect::driver_refused;

/// Longest command of the device, in bytes (devices/gpu/INTERFACE.md, Commands).
const LONGEST: u64 = 1 << 30;

/// Size of the buffer: both the compared part and the cleared part are longer than a command.
const SIZE: u64 = LONGEST + (1 << 20);

/// Size of the filled part in bytes.
const WORD: u64 = 8;

const MARK: u64 = 0x1717_1717_1717_1717;

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let gpu = test.gpu()?.open()?;
    // Cleared, by a fill of all of it.
    let buffer = gpu.allocate(SIZE)?;
    gpu.fill(buffer.span(SIZE - WORD..)?, MARK)?;
    let here = buffer.span(..SIZE - WORD)?;
    let equal = gpu.compare(here, here)?;
    ensure!(equal.is_none(), "{equal:?} of it differs from itself");
    let differs = gpu.compare(here, buffer.span(WORD..)?)?;
    ensure!(
        differs == Some(SIZE - 2 * WORD),
        "{differs:?} is the first byte that differs, where {} is right",
        SIZE - 2 * WORD
    );
    driver_refused(gpu.crc32c(here), libc::EOPNOTSUPP)
        .context("a checksum, which does not add up from parts")
}
