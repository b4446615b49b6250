use std::collections::HashMap;

use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;

const READ: bool = true;
const WRITE: bool = false;

/// Memory that holds segments of SGLs.
#[derive(Default)]
struct Lists {
    descriptors: HashMap<u64, Descriptor>,
    reads: usize,
}

fn block(address: u64, length: u32) -> Descriptor {
    Descriptor::new(DescriptorId::DATA_BLOCK, address, length)
}

fn bucket(length: u32) -> Descriptor {
    Descriptor::new(DescriptorId::BIT_BUCKET, 0, length)
}

fn segment(address: u64, descriptors: u32) -> Descriptor {
    Descriptor::new(DescriptorId::SEGMENT, address, descriptors * 16)
}

fn last(address: u64, descriptors: u32) -> Descriptor {
    Descriptor::new(DescriptorId::LAST_SEGMENT, address, descriptors * 16)
}

impl Lists {
    fn put(&mut self, address: u64, descriptors: &[Descriptor]) {
        for (slot, descriptor) in descriptors.iter().enumerate() {
            let at = address + 16 * slot as u64;
            self.descriptors.insert(at, *descriptor);
        }
    }

    fn walk(&mut self, first: Descriptor, len: usize, to_host: bool) -> Result<Location, Status> {
        let mut location = Location::default();
        let mut page = [0xff; PAGE_BYTES];
        let transfer = Transfer { len, to_host };
        walk(
            first,
            transfer,
            &mut location,
            &mut page,
            |address, data| {
                self.reads += 1;
                for (slot, bytes) in data.chunks_exact_mut(16).enumerate() {
                    let at = address.wrapping_add(16 * slot as u64).0;
                    let found = self.descriptors.get(&at);
                    bytes.copy_from_slice(found.ok_or(Status::DATA_TRANSFER_ERROR)?.as_bytes());
                }
                Ok(())
            },
        )?;
        Ok(location)
    }

    #[track_caller]
    fn refuses(&mut self, first: Descriptor, len: usize, status: Status) {
        for to_host in [READ, WRITE] {
            let walked = self.walk(first, len, to_host).map(|found| found.segments);
            assert_eq!(walked, Err(status), "{first:x?}, to the host: {to_host}");
        }
    }
}

fn segments(expected: &[(u64, usize)]) -> Vec<Segment> {
    let segment = |&(address, len)| Segment {
        address: Iova(address),
        len,
    };
    expected.iter().map(segment).collect()
}

#[test]
fn one_data_block_needs_no_list() {
    let mut lists = Lists::default();
    let found = lists.walk(block(0x1003, 4096), 4096, READ).unwrap();
    assert_eq!(found.segments, segments(&[(0x1003, 4096)]));
    assert_eq!((found.discarded, lists.reads), (vec![], 0));
    let found = lists.walk(block(u64::MAX - 511, 512), 512, READ).unwrap();
    assert_eq!(found.segments, segments(&[(u64::MAX - 511, 512)]));
}

#[test]
fn list_goes_on_at_the_end_of_each_segment() {
    let mut lists = Lists::default();
    lists.put(
        0x5008,
        &[block(0x1001, 511), block(0x1200, 1), segment(0x6000, 1)],
    );
    lists.put(0x6000, &[last(0x7000, 3)]);
    lists.put(0x7000, &[block(0, 0), block(0x9000, 3), block(0x8000, 509)]);
    let found = lists.walk(segment(0x5008, 3), 1024, WRITE).unwrap();
    let expected = [(0x1001, 512), (0x9000, 3), (0x8000, 509)];
    assert_eq!(found.segments, segments(&expected), "neighbours are joined");
}

#[test]
fn long_segment_is_read_in_parts_and_each_descriptor_once() {
    let mut lists = Lists::default();
    let blocks: Vec<_> = (0..600)
        .map(|slot| block(0x10_0000 + slot * 0x1000, 512))
        .collect();
    lists.put(0x5000, &blocks);
    let found = lists.walk(last(0x5000, 600), 600 * 512, READ).unwrap();
    assert_eq!((found.segments.len(), lists.reads), (600, 3));
    // A reference in the middle of the segment, at the end of the first part.
    lists.put(0x5000 + 255 * 16, &[last(0x5000, 1)]);
    lists.refuses(segment(0x5000, 600), 600 * 512, BAD_COUNT);
}

#[test]
fn bit_buckets_take_data_for_the_host_only() {
    let mut lists = Lists::default();
    let list = [
        bucket(100),
        block(0x1000, 400),
        bucket(0),
        bucket(12),
        block(0x1190, 512),
    ];
    lists.put(0x5000, &list);
    let found = lists.walk(last(0x5000, 5), 1024, READ).unwrap();
    assert_eq!(found.segments, segments(&[(0x1000, 912)]));
    let gaps = [(0, 100), (500, 12)].map(|(offset, len)| Discarded { offset, len });
    assert_eq!(found.discarded, gaps);
    let found = lists.walk(last(0x5000, 5), 912, WRITE).unwrap();
    assert_eq!(found.segments, segments(&[(0x1000, 912)]));
    assert_eq!(found.discarded, []);
    let found = lists.walk(bucket(512), 512, READ).unwrap();
    assert_eq!(found.segments, []);
    let too_long = lists.walk(bucket(513), 512, READ);
    assert_eq!(too_long.err(), Some(BAD_LENGTH));
    let too_short = lists.walk(bucket(512), 512, WRITE);
    assert_eq!(too_short.err(), Some(BAD_LENGTH));
}

#[test]
fn list_must_describe_exactly_the_data() {
    let mut lists = Lists::default();
    lists.put(
        0x5000,
        &[block(0x1000, 511), block(0x2000, 1), block(0x3000, 1)],
    );
    for descriptors in [1, 3] {
        lists.refuses(last(0x5000, descriptors), 512, BAD_LENGTH);
    }
    assert!(lists.walk(last(0x5000, 2), 512, READ).is_ok());
    for length in [0, 511, 513, u32::MAX] {
        lists.refuses(block(0x1000, length), 512, BAD_LENGTH);
    }
}

#[test]
fn address_that_wraps_is_an_invalid_length() {
    let mut lists = Lists::default();
    lists.refuses(block(u64::MAX - 510, 512), 512, BAD_LENGTH);
    for first in [segment(u64::MAX - 15, 2), last(u64::MAX - 7, 1)] {
        lists.refuses(first, 512, BAD_LENGTH);
    }
}

#[test]
fn invalid_reference_to_a_segment_is_named_as_such() {
    let mut lists = Lists::default();
    for (address, length) in [(0x5000, 0), (0x5000, 8), (0x5000, 24), (0x5004, 16)] {
        for id in [DescriptorId::SEGMENT, DescriptorId::LAST_SEGMENT] {
            lists.refuses(Descriptor::new(id, address, length), 512, BAD_SEGMENT);
        }
    }
    // The last segment goes on, and a segment before it does not.
    lists.put(0x5000, &[block(0x1000, 512), last(0x6000, 1)]);
    lists.put(0x6000, &[block(0, 0)]);
    lists.refuses(last(0x5000, 2), 512, BAD_SEGMENT);
    lists.refuses(segment(0x5000, 1), 512, BAD_SEGMENT);
    lists.put(0x5000, &[last(0x6000, 1), block(0x1000, 512)]);
    lists.refuses(segment(0x5000, 2), 512, BAD_COUNT);
    lists.refuses(last(0x5000, 2), 512, BAD_COUNT);
}

#[test]
fn other_types_and_sub_types_are_refused() {
    let mut lists = Lists::default();
    let known = [0x00, 0x10, 0x20, 0x30];
    for bits in (0..=u8::MAX).filter(|bits| !known.contains(bits)) {
        let other = Descriptor::new(DescriptorId::from_bits(bits), 0x5000, 512);
        lists.refuses(other, 512, BAD_TYPE);
        lists.put(0x6000, &[other, block(0x1000, 512)]);
        lists.refuses(last(0x6000, 2), 512, BAD_TYPE);
    }
}

#[test]
fn list_without_an_end_ends() {
    let mut lists = Lists::default();
    lists.put(0x5000, &[segment(0x5000, 1)]);
    lists.refuses(segment(0x5000, 1), 512, BAD_COUNT);
    assert_eq!(lists.reads, 2 * MOST_SEGMENTS);
    let empty = vec![block(0, 0); 511];
    lists.put(0x5000, &empty);
    lists.put(0x5000 + 511 * 16, &[segment(0x5000, 512)]);
    lists.reads = 0;
    lists.refuses(segment(0x5000, 512), 512, BAD_COUNT);
    assert_eq!(lists.reads, 2 * MOST_DESCRIPTORS / DESCRIPTORS_AT_ONCE);
    lists.reads = 0;
    lists.refuses(last(0x5000, 0x0fff_ffff), 512, BAD_COUNT);
    assert_eq!(lists.reads, 0);
}

/// Puts `count` blocks of 512 bytes, no two of them adjacent, into segments of a page. Returns the
/// first descriptor.
fn blocks_in_pages(lists: &mut Lists, count: u64) -> Descriptor {
    let blocks: Vec<_> = (0..count).map(|at| block(1024 * at, 512)).collect();
    let pages: Vec<_> = blocks.chunks(DESCRIPTORS_AT_ONCE - 1).collect();
    let mut next = None;
    for (index, blocks) in pages.into_iter().enumerate().rev() {
        let address = 0x1_0000_0000 + PAGE_BYTES as u64 * index as u64;
        let list: Vec<_> = blocks.iter().copied().chain(next).collect();
        lists.put(address, &list);
        let descriptors = u32::try_from(list.len()).unwrap();
        let refer = if next.is_some() { segment } else { last };
        next = Some(refer(address, descriptors));
    }
    next.unwrap()
}

#[test]
fn references_to_segments_leave_room_for_a_descriptor_of_each_block() {
    let mut lists = Lists::default();
    let first = blocks_in_pages(&mut lists, 8192);
    let found = lists.walk(first, 8192 * 512, READ).unwrap();
    assert_eq!(found.segments.len(), 8192);
    let first = blocks_in_pages(&mut lists, 8193);
    lists.refuses(first, 8193 * 512, BAD_COUNT);
}

#[test]
fn list_that_cannot_be_read_fails_the_command() {
    Lists::default().refuses(last(0x5000, 2), 512, Status::DATA_TRANSFER_ERROR);
}

#[test]
fn gaps_are_closed_in_order() {
    let gap = |offset, len| Discarded { offset, len };
    for (gaps, expected) in [
        (vec![], &b"abcdefgh"[..]),
        (vec![gap(0, 2)], b"cdefgh"),
        (vec![gap(1, 2), gap(3, 1), gap(6, 2)], b"aef"),
        (vec![gap(0, 8)], b""),
    ] {
        let mut data = *b"abcdefgh";
        let len = close_gaps(&gaps, &mut data);
        assert_eq!(&data[..len], expected, "{gaps:?}");
    }
}

/// A list of data blocks (with an address) and bit buckets.
type Parts = Vec<(Option<u64>, u32)>;

fn parts() -> impl Strategy<Value = Parts> {
    let address = prop::option::weighted(0.8, 0..1_u64 << 40);
    prop::collection::vec((address, 0..3000_u32), 0..60)
}

proptest! {
    #[test]
    fn every_list_describes_all_bytes_in_order(
        parts in parts(),
        sizes in prop::collection::vec(1..9_usize, 60),
        to_host: bool,
    ) {
        let descriptors = parts.iter().map(|&(address, len)| match address {
            Some(address) => block(address, len),
            None => bucket(len),
        });
        let descriptors: Vec<_> = descriptors.collect();
        let mut lists = Lists::default();
        let mut rest = &descriptors[..];
        let mut first = block(0, 0);
        // The segments from the last one on.
        for (index, size) in sizes.into_iter().enumerate() {
            let here = 0x1_0000_0000 + 0x1000 * index as u64;
            let (before, tail) = rest.split_at(rest.len().saturating_sub(size));
            let mut list = tail.to_vec();
            list.extend((index > 0).then_some(first));
            if list.is_empty() {
                break;
            }
            lists.put(here, &list);
            let count = u32::try_from(list.len()).unwrap();
            first = if index == 0 { last(here, count) } else { segment(here, count) };
            rest = before;
        }
        let counts = |address: &Option<u64>| address.is_some() || to_host;
        let len = parts.iter().filter(|(address, _)| counts(address)).map(|(_, len)| *len as usize).sum();
        let found = lists.walk(first, len, to_host).unwrap();
        let bytes = |segment: &Segment| {
            let address = segment.address;
            (0..segment.len as u64).map(move |at| address.0 + at).collect::<Vec<_>>()
        };
        let found_bytes: Vec<u64> = found.segments.iter().flat_map(bytes).collect();
        let blocks = parts.iter().filter_map(|&(address, len)| Some(address?..address? + u64::from(len)));
        let expected: Vec<u64> = blocks.flatten().collect();
        prop_assert_eq!(found_bytes, expected);
        let mut offset = 0;
        let mut gaps = Vec::new();
        for (address, part) in parts.iter().filter(|(address, _)| counts(address)) {
            gaps.extend((address.is_none() && *part > 0).then_some(Discarded { offset, len: *part as usize }));
            offset += *part as usize;
        }
        prop_assert_eq!(found.discarded, gaps);
    }
}
