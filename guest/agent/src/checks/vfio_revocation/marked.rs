//! The GPU's memory as this process sees it: data that reads have left there, and a mark that
//! nothing may touch afterwards.

use anyhow::{Context, ensure};
use peerbar_vfio_nvme::VfioDevice;

use super::slot::{LENGTH, READ, Slot};
use crate::user_drivers::vram;
use peerbar_pattern::Pattern;

/// The mark, in each byte of the memory.
const MARK: u8 = 0x5a;

/// Returns the present content of the memory.
pub(super) fn contents(gpu: &VfioDevice) -> anyhow::Result<Vec<u8>> {
    let mut seen = vec![0; usize::try_from(LENGTH)?];
    gpu.map(vram(LENGTH))?.read(0, &mut seen)?;
    Ok(seen)
}

/// Fills the memory with the mark.
pub(super) fn mark(gpu: &VfioDevice) -> anyhow::Result<()> {
    let marks = vec![MARK; usize::try_from(LENGTH)?];
    Ok(gpu.map(vram(LENGTH))?.write(0, &marks)?)
}

/// Checks that the memory still has the mark everywhere.
pub(super) fn is_marked(contents: &[u8]) -> anyhow::Result<()> {
    let first = contents.iter().position(|byte| *byte != MARK);
    let wrong = contents.iter().filter(|byte| **byte != MARK).count();
    ensure!(
        first.is_none(),
        "{wrong} of {} bytes were written after the memory was taken away, the first at {first:?}",
        contents.len()
    );
    Ok(())
}

/// Checks that the memory still has the mark everywhere, or that a reset of the GPU has cleared all
/// of it.
pub(super) fn is_marked_or_cleared(contents: &[u8]) -> anyhow::Result<()> {
    match contents.iter().all(|byte| *byte == 0) {
        true => Ok(()),
        false => is_marked(contents),
    }
}

/// Checks that the memory contains the data of the successful reads.
pub(super) fn judge_reads(contents: &[u8], slots: &[Slot], pattern: Pattern) -> anyhow::Result<()> {
    let parts = contents.chunks(usize::try_from(READ)?);
    let mut judged = 0_u64;
    for ((number, slot), seen) in (0..).zip(slots).zip(parts) {
        let is_judged = slot.judge(number, seen, pattern);
        judged += u64::from(is_judged.with_context(|| format!("part {number} of the memory"))?);
    }
    ensure!(judged > 0, "no part of the memory was read with success");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_in_place_of_the_mark_is_found() {
        let mut contents = vec![MARK; 4096];
        assert!(is_marked(&contents).is_ok() && is_marked_or_cleared(&contents).is_ok());
        contents[4095] = 0;
        let error = is_marked_or_cleared(&contents).unwrap_err().to_string();
        assert!(
            error.starts_with("1 of 4096 bytes") && error.ends_with("Some(4095)"),
            "{error}"
        );
        contents.fill(0);
        assert!(is_marked_or_cleared(&contents).is_ok() && is_marked(&contents).is_err());
    }
}
