//! The numbered content of blocks.

/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;

/// Returns the content of a block that is written as number `stamp`: no two words in it are the
/// same, nor those of two stamps.
pub(crate) fn block(stamp: u64) -> Vec<u8> {
    let first = stamp << 16;
    let words = first..first + BLOCK as u64 / 8;
    words.flat_map(u64::to_le_bytes).collect()
}

/// Returns the stamp of a block, or `None` if its content is not that of any.
pub(crate) fn stamp(content: &[u8]) -> Option<u64> {
    let first = content.first_chunk().copied().map(u64::from_le_bytes)?;
    let stamp = first >> 16;
    let is_zeroed = content.iter().all(|byte| *byte == 0);
    (is_zeroed || content == block(stamp)).then_some(stamp)
}

#[test]
fn mix_of_two_blocks_has_no_stamp() {
    let mixed = [&block(7)[..2048], &block(8)[2048..]].concat();
    assert_eq!(stamp(&block(7)), Some(7));
    assert_eq!(stamp(&[0; BLOCK]), Some(0));
    assert_eq!(stamp(&mixed), None);
}
