//! Physical Region Pages: the location of a command's data.

use peerbar_nvme_spec::completion::Status;
use peerbar_pci::Iova;

/// The memory page size that the controller offers (CAP.MPSMIN and MPSMAX are 0).
pub(crate) const PAGE: u64 = 4096;
const ENTRY: u64 = 8;
pub(crate) const PAGE_BYTES: usize = 4096;
/// A PRP with an invalid offset; the same command would fail again.
const BAD_OFFSET: Status = Status::INVALID_PRP_OFFSET.with_dnr(true);
/// A PRP that the data needs is 0, so the host has not set it.
const MISSING: Status = Status::INVALID_FIELD.with_dnr(true);

/// A run of bytes at consecutive addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: Iova,
    pub(crate) len: usize,
}

/// Collects the segments of `len` bytes of data that `prp1` and `prp2` describe, and joins adjacent
/// ones (NVMe Base 2.0, 4.1.1). `read_list` reads part of a PRP list into the start of `page`,
/// which is never cleared.
///
/// The first list may start anywhere in its page, and so may the lists that it is chained to. Each
/// list except the first must describe some data: a chain of lists without data is refused, since
/// it may be endless.
pub(crate) fn walk(
    (prp1, prp2): (Iova, Iova),
    len: usize,
    segments: &mut Vec<Segment>,
    page: &mut [u8; PAGE_BYTES],
    mut read_list: impl FnMut(Iova, &mut [u8]) -> Result<(), Status>,
) -> Result<(), Status> {
    segments.clear();
    if !prp1.is_aligned(4) {
        return Err(BAD_OFFSET);
    }
    let mut left = len as u64;
    push(segments, prp1, PAGE - prp1.0 % PAGE, &mut left);
    if left == 0 {
        return Ok(());
    }
    if left <= PAGE {
        return push_page(segments, prp2, &mut left);
    }
    let mut list = prp2;
    let mut first = true;
    while left > 0 {
        check(list, ENTRY)?;
        let slots = (PAGE - list.0 % PAGE) / ENTRY;
        let wanted = left.div_ceil(PAGE);
        let chained = wanted > slots;
        let data = if chained { slots - 1 } else { wanted };
        if data == 0 && !first {
            return Err(BAD_OFFSET);
        }
        let bytes = usize::try_from(wanted.min(slots) * ENTRY).unwrap_or(PAGE_BYTES);
        let entries = page.get_mut(..bytes).ok_or(Status::INTERNAL_ERROR)?;
        read_list(list, entries)?;
        let entries = entries.chunks_exact(8).filter_map(<[u8]>::first_chunk);
        let mut entries = entries.map(|entry| Iova(u64::from_le_bytes(*entry)));
        for _ in 0..data {
            push_page(
                segments,
                entries.next().ok_or(Status::INTERNAL_ERROR)?,
                &mut left,
            )?;
        }
        list = entries.next().unwrap_or(Iova(0));
        first = false;
    }
    Ok(())
}

/// Adds the page at `address`, or the rest of the data if that is shorter.
fn push_page(segments: &mut Vec<Segment>, address: Iova, left: &mut u64) -> Result<(), Status> {
    check(address, PAGE)?;
    push(segments, address, PAGE, left);
    Ok(())
}

/// Checks a PRP after PRP1. No host uses address 0, so a PRP of 0 was never set.
fn check(address: Iova, alignment: u64) -> Result<(), Status> {
    match address {
        Iova(0) => Err(MISSING),
        _ if address.is_aligned(alignment) => Ok(()),
        _ => Err(BAD_OFFSET),
    }
}

pub(crate) fn push(segments: &mut Vec<Segment>, address: Iova, most: u64, left: &mut u64) {
    let bytes = most.min(*left);
    *left -= bytes;
    let len = usize::try_from(bytes).unwrap_or(PAGE_BYTES);
    match segments.last_mut() {
        Some(last) if last.address.checked_add(last.len as u64) == Some(address) => last.len += len,
        _ => segments.push(Segment { address, len }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Memory that holds PRP lists.
    #[derive(Default)]
    struct Lists(HashMap<u64, u64>);

    impl Lists {
        fn put(&mut self, address: u64, entries: &[u64]) {
            for (slot, entry) in entries.iter().enumerate() {
                self.0.insert(address + 8 * slot as u64, *entry);
            }
        }

        fn walk(&self, prp1: u64, prp2: u64, len: usize) -> Result<Vec<Segment>, Status> {
            let mut segments = Vec::new();
            let mut page = [0xff; PAGE_BYTES];
            walk(
                (Iova(prp1), Iova(prp2)),
                len,
                &mut segments,
                &mut page,
                |address, data| {
                    for (slot, entry) in data.chunks_exact_mut(8).enumerate() {
                        let value = self
                            .0
                            .get(&(address.0 + 8 * slot as u64))
                            .ok_or(Status::DATA_TRANSFER_ERROR)?;
                        entry.copy_from_slice(&value.to_le_bytes());
                    }
                    Ok(())
                },
            )?;
            Ok(segments)
        }
    }

    fn segments(expected: &[(u64, usize)]) -> Result<Vec<Segment>, Status> {
        Ok(expected
            .iter()
            .map(|&(address, len)| Segment {
                address: Iova(address),
                len,
            })
            .collect())
    }

    #[test]
    fn up_to_two_pages_need_no_list() {
        let lists = Lists::default();
        assert_eq!(lists.walk(0x10000, 0, 512), segments(&[(0x10000, 512)]));
        assert_eq!(
            lists.walk(0x10e00, 0x30000, 1024),
            segments(&[(0x10e00, 512), (0x30000, 512)])
        );
        assert_eq!(
            lists.walk(0x10000, 0x30000, 8192),
            segments(&[(0x10000, 4096), (0x30000, 4096)])
        );
        assert_eq!(
            lists.walk(0x10000, 0x11000, 8192),
            segments(&[(0x10000, 8192)]),
            "neighbours are joined"
        );
        assert_eq!(lists.walk(0x10000, 7, 0), segments(&[(0x10000, 0)]));
    }

    #[test]
    fn a_list_may_start_anywhere_in_its_page() {
        let mut lists = Lists::default();
        lists.put(0x5ff0, &[0x20000, 0x40000]);
        assert_eq!(
            lists.walk(0x10800, 0x5ff0, 2048 + 4096 + 100),
            segments(&[(0x10800, 2048), (0x20000, 4096), (0x40000, 100)])
        );
    }

    #[test]
    fn list_is_chained_at_the_end_of_its_page_only_if_data_follows() {
        let mut lists = Lists::default();
        lists.put(0x5ff0, &[0x20000, 0x7ff0]);
        lists.put(0x7ff0, &[0x40000, 0x9000]);
        lists.put(0x9000, &[0x60000, 0x80000]);
        let expected = [
            (0x10000, 4096),
            (0x20000, 4096),
            (0x40000, 4096),
            (0x60000, 4096),
            (0x80000, 1),
        ];
        assert_eq!(
            lists.walk(0x10000, 0x5ff0, 4 * 4096 + 1),
            segments(&expected)
        );
        lists.put(0x5ff0, &[0x20000, 0x40000]);
        assert_eq!(
            lists.walk(0x10000, 0x5ff0, 3 * 4096),
            segments(&expected[..3]),
            "the last entry of the page is data if none is to follow"
        );
        lists.put(0xaff8, &[0x9000]);
        let expected = [(0x10000, 4096), (0x60000, 4096), (0x80000, 4096)];
        assert_eq!(
            lists.walk(0x10000, 0xaff8, 3 * 4096),
            segments(&expected),
            "the only entry of the page leads on"
        );
    }

    #[test]
    fn list_chain_without_data_is_refused() {
        let mut lists = Lists::default();
        lists.put(0x5ff8, &[0x5ff8]);
        assert_eq!(lists.walk(0x10000, 0x5ff8, 1 << 20), Err(BAD_OFFSET));
    }

    #[test]
    fn prp_offset_that_must_be_0_is_refused() {
        let mut lists = Lists::default();
        lists.put(0x5000, &[0x20004, 0x40000]);
        for (prp1, prp2, len) in [
            (0x10002, 0, 512),
            (0x10000, 0x20200, 8192),
            (0x10000, 0x5004, 12289),
            (0x10000, 0x5000, 12288),
        ] {
            assert_eq!(
                lists.walk(prp1, prp2, len),
                Err(BAD_OFFSET),
                "{prp1:#x} {prp2:#x} {len}"
            );
        }
    }

    #[test]
    fn data_behind_a_null_prp_is_refused() {
        let mut lists = Lists::default();
        lists.put(0, &[0x20000, 0x40000]);
        lists.put(0x5000, &[0, 0x40000]);
        lists.put(0x5ff0, &[0x20000, 0]);
        for (prp2, len) in [(0, 8192), (0, 12288), (0x5000, 12288), (0x5ff0, 16384)] {
            let walked = lists.walk(0x10000, prp2, len);
            assert_eq!(walked, Err(MISSING), "{prp2:#x} {len}");
        }
    }

    #[test]
    fn a_list_that_cannot_be_read_fails_the_command() {
        assert_eq!(
            Lists::default().walk(0x10000, 0x5000, 12288),
            Err(Status::DATA_TRANSFER_ERROR)
        );
    }

    proptest! {
        #[test]
        fn every_shape_describes_all_bytes_in_order(
            offset in (0u64..1024).prop_map(|dword| dword * 4),
            len in 1usize..(2 << 20),
            start in (0u64..512).prop_map(|slot| slot * 8),
        ) {
            let page_of = |index: u64| 0x1000_0000 + index * 0x2000;
            let first = usize::try_from(PAGE - offset).unwrap();
            let rest = len.saturating_sub(first).div_ceil(4096) as u64;
            let mut lists = Lists::default();
            let mut at = 0x8000_0000 + start;
            for index in 1..=rest {
                if at % PAGE == PAGE - 8 && index < rest {
                    let next = (at & !(PAGE - 1)) + 0x10_0000;
                    lists.put(at, &[next]);
                    at = next;
                }
                lists.put(at, &[page_of(index)]);
                at += 8;
            }
            let prp2 = if rest <= 1 { page_of(1) } else { 0x8000_0000 + start };
            let found = lists.walk(page_of(0) + offset, prp2, len).unwrap();
            prop_assert_eq!(found.iter().map(|s| s.len).sum::<usize>(), len);
            for (index, segment) in found.iter().enumerate() {
                let offset = if index == 0 { offset } else { 0 };
                prop_assert_eq!(segment.address.0, page_of(index as u64) + offset);
            }
        }
    }
}
