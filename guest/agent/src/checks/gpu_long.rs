//! Commands that are longer than the device takes: the driver splits them, and their results add up.

use super::{CheckOutcome, Run};
use anyhow::ensure;
use peerbar_report::{GpuLong, Measure};

use crate::guest_context::GuestContext;

/// Longest command of the device, in bytes (devices/gpu/INTERFACE.md, Commands).
const LONGEST: u64 = 1 << 30;

/// Size of the buffer: both what is compared and what is cleared is longer.
const SIZE: u64 = LONGEST + (1 << 20);

/// Bytes of what is filled.
const WORD: u64 = 8;

const MARK: u64 = 0x1717_1717_1717_1717;

impl Run for GpuLong {
    fn run(&self, guest: &GuestContext, _measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let gpu = guest.gpu(&self.gpu)?.open()?;
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
        let sum = gpu.crc32c(here);
        ensure!(
            matches!(&sum, Err(peerbar_gds::Error::Driver { source, .. }) if source.raw_os_error() == Some(libc::EOPNOTSUPP)),
            "a checksum of {} bytes, which does not add up from parts, ends with {sum:?}",
            SIZE - WORD
        );
        Ok(CheckOutcome::Passed)
    }
}
