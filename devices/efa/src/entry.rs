//! Entries of the rings that a driver polls in its memory: one word, such as the one with the
//! phase, tells that the rest is there.

/// Number of bytes that become visible at once, wherever they are. QEMU may execute a longer write
/// in several parts.
const WORD_BYTES: usize = 4;

/// Calls `write` for the parts of an entry, each with its offset, in such an order that a reader
/// that sees the word at the offset `word` also sees the rest.
pub(crate) fn write_word_last<E>(
    entry: &[u8],
    word: usize,
    mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let behind = word.saturating_add(WORD_BYTES).min(entry.len());
    let parts = [behind..entry.len(), 0..word, word..behind];
    for part in parts {
        let offset = part.start as u64;
        if let Some(bytes) = entry.get(part).filter(|bytes| !bytes.is_empty()) {
            write(offset, bytes)?;
        }
    }
    Ok(())
}

/// Returns the address and the phase of the entry after `count` others in a ring, whose length is a
/// power of two. The route refuses an address that wraps around, like any address that is not
/// memory.
pub(crate) fn ring_entry(start: u64, entries: u16, entry_bytes: usize, count: u32) -> (u64, bool) {
    let entries = u32::from(entries);
    let offset = u64::from(count % entries) * entry_bytes as u64;
    (start.wrapping_add(offset), (count / entries) % 2 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phase_changes_with_each_round_of_a_ring() {
        let entry = |count: u16, entries| ring_entry(0x1000, entries, 1, count.into());
        assert_eq!(entry(0, 32), (0x1000, true));
        assert_eq!(entry(31, 32), (0x101f, true));
        assert_eq!(entry(32, 32), (0x1000, false));
        assert_eq!(entry(u16::MAX, 32), (0x101f, false));
        let after_the_counter_wrapped = entry(0, 4096);
        assert_eq!(after_the_counter_wrapped, (0x1000, true));
    }

    /// Returns the parts of an entry in the order in which they are written.
    fn written(entry: &[u8], word: usize) -> Vec<(u64, Vec<u8>)> {
        let mut written = Vec::new();
        let done = write_word_last(entry, word, |offset, part| {
            written.push((offset, part.to_vec()));
            Ok::<_, ()>(())
        });
        done.unwrap();
        written
    }

    #[test]
    fn word_is_written_alone_and_last() {
        let entry: Vec<u8> = (0..16).collect();
        let part = |range: std::ops::Range<usize>| (range.start as u64, entry[range].to_vec());
        assert_eq!(written(&entry, 0), [part(4..16), part(0..4)]);
        assert_eq!(written(&entry, 4), [part(8..16), part(0..4), part(4..8)]);
        assert_eq!(written(&entry, 12), [part(0..12), part(12..16)]);
    }

    #[test]
    fn nothing_follows_a_part_that_fails() {
        let mut count = 0;
        let failed = write_word_last(&[0; 16], 0, |_, _| {
            count += 1;
            Err(())
        });
        assert_eq!((failed, count), (Err(()), 1));
    }
}
