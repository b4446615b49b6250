//! The aperture as a window: the guest's accesses by the page table.

use peerbar_dma::{Buffer, PageTable};

/// Size of a page of the window.
pub(crate) const PAGE: u64 = 64 << 10;

/// Reads or writes at `offset` of the window. A part without a page reads as all-ones and ignores
/// writes, and `fault` gets its offset.
pub(crate) fn access(table: &PageTable, offset: u64, data: Buffer<'_>, mut fault: impl FnMut(u64)) {
    for (at, mut part) in table.parts(offset, data) {
        if table.access(at, part.reborrow()).is_err() {
            if let Buffer::Read(data) = part {
                data.fill(0xff);
            }
            fault(at);
        }
    }
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
        access(&table, PAGE - 8, Buffer::Write(&data), |at| faults.push(at));
        assert_eq!(faults, [PAGE]);
        let mut back = [0; 8];
        file.read(3 * PAGE - 8, &mut back).unwrap();
        assert_eq!(back, data[..8]);
        file.read(0, &mut back).unwrap();
        assert_eq!(back, data[data.len() - 8..]);

        let mut seen = vec![0; data.len()];
        access(&table, PAGE - 8, Buffer::Read(&mut seen), |at| {
            faults.push(at)
        });
        assert_eq!(faults, [PAGE, PAGE]);
        assert_eq!(seen[..8], data[..8]);
        assert!(seen[8..seen.len() - 8].iter().all(|byte| *byte == 0xff));
        assert_eq!(seen[seen.len() - 8..], data[data.len() - 8..]);
    }
}
