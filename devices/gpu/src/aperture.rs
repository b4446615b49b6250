//! The aperture as a window: the guest's accesses by the page table.

use peerbar_dma::PageTable;

/// Size of a page of the window.
pub(crate) const PAGE: u64 = 64 << 10;

/// Reads `data` at `offset` of the window. A part without a page reads all-ones, and `fault` gets its offset.
pub(crate) fn read(table: &PageTable, offset: u64, data: &mut [u8], mut fault: impl FnMut(u64)) {
    let (mut at, mut rest) = (offset, data);
    while !rest.is_empty() {
        let (part, tail) = rest.split_at_mut(in_page(table, at, rest.len()));
        if table.read(at, part).is_err() {
            part.fill(0xff);
            fault(at);
        }
        at = at.saturating_add(part.len() as u64);
        rest = tail;
    }
}

/// Writes `data` at `offset` of the window. A part without a page is lost, and `fault` gets its offset.
pub(crate) fn write(table: &PageTable, offset: u64, data: &[u8], mut fault: impl FnMut(u64)) {
    let (mut at, mut rest) = (offset, data);
    while !rest.is_empty() {
        let (part, tail) = rest.split_at(in_page(table, at, rest.len()));
        if table.write(at, part).is_err() {
            fault(at);
        }
        at = at.saturating_add(part.len() as u64);
        rest = tail;
    }
}

/// How many of `len` bytes at `offset` lie in its page.
fn in_page(table: &PageTable, offset: u64, len: usize) -> usize {
    usize::try_from(table.left_in_page(offset)).map_or(len, |left| left.min(len))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use peerbar_dma::MemoryFile;

    use super::*;

    #[test]
    fn an_access_over_several_pages_meets_each_of_them() {
        let file = Arc::new(MemoryFile::create("test", 4 * PAGE).unwrap());
        let table = PageTable::new(file.clone(), 3, PAGE);
        table.set(0, Some(2 * PAGE)).unwrap();
        table.set(2, Some(0)).unwrap();
        let data: Vec<u8> = (0..PAGE + 16).map(|i| i.to_le_bytes()[0] | 1).collect();
        let mut faults = Vec::new();
        write(&table, PAGE - 8, &data, |at| faults.push(at));
        assert_eq!(faults, [PAGE]);
        let mut back = [0; 8];
        file.read(3 * PAGE - 8, &mut back).unwrap();
        assert_eq!(back, data[..8]);
        file.read(0, &mut back).unwrap();
        assert_eq!(back, data[data.len() - 8..]);

        let mut seen = vec![0; data.len()];
        read(&table, PAGE - 8, &mut seen, |at| faults.push(at));
        assert_eq!(faults, [PAGE, PAGE]);
        assert_eq!(seen[..8], data[..8]);
        assert!(seen[8..seen.len() - 8].iter().all(|byte| *byte == 0xff));
        assert_eq!(seen[seen.len() - 8..], data[data.len() - 8..]);
    }
}
