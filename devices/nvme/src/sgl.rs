//! Scatter Gather Lists: the location of a command's data as an alternative to PRPs.

use peerbar_nvme_spec::completion::Status;
use peerbar_nvme_spec::sgl::{Descriptor, DescriptorId};
use peerbar_pci::{Iova, Range};
use zerocopy::FromBytes;

use crate::prp::{PAGE_BYTES, Segment, push};

const DESCRIPTOR_BYTES: usize = size_of::<Descriptor>();
/// Descriptors that are fetched by one read.
const DESCRIPTORS_AT_ONCE: usize = PAGE_BYTES / DESCRIPTOR_BYTES;
/// The most descriptors of a command's data in segments: one for each 512 bytes of the largest
/// transfer (MDTS). Since data blocks may be empty, only this ends a list without an end.
const MOST_DESCRIPTORS: usize = 8192;
/// The most segments of a command after its first descriptor: each takes a read. This also limits
/// the descriptors that refer to segments.
const MOST_SEGMENTS: usize = 256;

const BAD_SEGMENT: Status = Status::INVALID_SGL_SEGMENT.with_dnr(true);
const BAD_COUNT: Status = Status::INVALID_SGL_COUNT.with_dnr(true);
const BAD_LENGTH: Status = Status::INVALID_SGL_LENGTH.with_dnr(true);
const BAD_TYPE: Status = Status::INVALID_SGL_TYPE.with_dnr(true);

/// The transfer that an SGL describes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    /// Bytes of data.
    pub(crate) len: usize,
    /// The data goes to the host. Only then do bit buckets take part of it.
    pub(crate) to_host: bool,
}

/// A part of the data that a bit bucket takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Discarded {
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// The location of data.
#[derive(Debug, Default)]
pub(crate) struct Location {
    /// The memory of the data that is transferred, in order.
    pub(crate) segments: Vec<Segment>,
    /// The parts of the data that are not transferred, in order.
    pub(crate) discarded: Vec<Discarded>,
}

/// A descriptor's reference to another segment.
#[derive(Clone, Copy)]
struct Link {
    address: Iova,
    descriptors: usize,
    is_last: bool,
}

impl Link {
    /// Returns the number of the segment's descriptors that describe data: the last one of any
    /// segment but the last refers to the next.
    fn data_descriptors(&self) -> usize {
        self.descriptors - usize::from(!self.is_last)
    }
}

/// The data that no descriptor has described yet.
struct Rest<'a> {
    transfer: Transfer,
    left: u64,
    location: &'a mut Location,
}

/// Collects the segments of the data that the SGL from `first` on describes, and joins adjacent
/// ones (NVMe Base 2.0, 4.1.2). `read_list` reads descriptors into the start of `page`, which is
/// never cleared. Each descriptor is read once.
///
/// The list must describe exactly the data: Identify Controller does not offer longer lists. Before
/// any data moves, all of the list has been checked.
pub(crate) fn walk(
    first: Descriptor,
    transfer: Transfer,
    location: &mut Location,
    page: &mut [u8; PAGE_BYTES],
    mut read_list: impl FnMut(Iova, &mut [u8]) -> Result<(), Status>,
) -> Result<(), Status> {
    location.segments.clear();
    location.discarded.clear();
    let mut rest = Rest {
        transfer,
        left: transfer.len as u64,
        location,
    };
    let (mut segments, mut descriptors) = (0_usize, 0_usize);
    let mut next = rest.take(&first)?;
    while let Some(link) = next {
        segments += 1;
        descriptors = descriptors.saturating_add(link.data_descriptors());
        if segments > MOST_SEGMENTS || descriptors > MOST_DESCRIPTORS {
            return Err(BAD_COUNT);
        }
        next = rest.follow(link, page, &mut read_list)?;
    }
    if rest.left > 0 {
        return Err(BAD_LENGTH);
    }
    Ok(())
}

impl Rest<'_> {
    /// Takes all descriptors of a segment. Returns the reference to the next segment, which is in
    /// the last descriptor of each segment except the last one.
    fn follow(
        &mut self,
        link: Link,
        page: &mut [u8; PAGE_BYTES],
        read_list: &mut impl FnMut(Iova, &mut [u8]) -> Result<(), Status>,
    ) -> Result<Option<Link>, Status> {
        let (mut address, mut left) = (link.address, link.descriptors);
        let mut next = None;
        while left > 0 {
            let count = left.min(DESCRIPTORS_AT_ONCE);
            let bytes = page.get_mut(..count * DESCRIPTOR_BYTES);
            let bytes = bytes.ok_or(Status::INTERNAL_ERROR)?;
            read_list(address, bytes)?;
            let descriptors = <[Descriptor]>::ref_from_bytes(bytes);
            for descriptor in descriptors.map_err(|_| Status::INTERNAL_ERROR)? {
                if next.is_some() {
                    return Err(BAD_COUNT);
                }
                next = self.take(descriptor)?;
            }
            address = address.wrapping_add((count * DESCRIPTOR_BYTES) as u64);
            left -= count;
        }
        if next.is_some() == link.is_last {
            return Err(BAD_SEGMENT);
        }
        Ok(next)
    }

    /// Takes a descriptor. Returns its reference to a segment, if it is not about data.
    fn take(&mut self, descriptor: &Descriptor) -> Result<Option<Link>, Status> {
        let (address, length) = (Iova(descriptor.address.get()), descriptor.length.get());
        match descriptor.id {
            DescriptorId::DATA_BLOCK => self.add_data(address, length.into()).map(|()| None),
            DescriptorId::BIT_BUCKET => self.discard(length).map(|()| None),
            DescriptorId::SEGMENT => link(address, length, false).map(Some),
            DescriptorId::LAST_SEGMENT => link(address, length, true).map(Some),
            _ => Err(BAD_TYPE),
        }
    }

    fn add_data(&mut self, address: Iova, length: u64) -> Result<(), Status> {
        if length == 0 {
            return Ok(());
        }
        if length > self.left || Range::new(address, length).is_none() {
            return Err(BAD_LENGTH);
        }
        push(&mut self.location.segments, address, length, &mut self.left);
        Ok(())
    }

    /// Takes a bit bucket, which has no effect on data that comes from the host.
    fn discard(&mut self, length: u32) -> Result<(), Status> {
        if length == 0 || !self.transfer.to_host {
            return Ok(());
        }
        let len = usize::try_from(length).map_err(|_| BAD_LENGTH)?;
        let left = usize::try_from(self.left).map_err(|_| BAD_LENGTH)?;
        let offset = self.transfer.len.saturating_sub(left);
        self.left = left.checked_sub(len).ok_or(BAD_LENGTH)? as u64;
        self.location.discarded.push(Discarded { offset, len });
        Ok(())
    }
}

/// Checks a reference to a segment of `length` bytes.
fn link(address: Iova, length: u32, is_last: bool) -> Result<Link, Status> {
    let len = usize::try_from(length).map_err(|_| BAD_SEGMENT)?;
    if len == 0 || len % DESCRIPTOR_BYTES != 0 || !address.is_aligned(8) {
        return Err(BAD_SEGMENT);
    }
    Range::new(address, length.into()).ok_or(BAD_LENGTH)?;
    Ok(Link {
        address,
        descriptors: len / DESCRIPTOR_BYTES,
        is_last,
    })
}

/// Moves the data that is transferred to the start of `data`. Returns its length.
pub(crate) fn close_gaps(discarded: &[Discarded], data: &mut [u8]) -> usize {
    let starts = discarded.iter().map(|gap| gap.offset).skip(1);
    let mut end = discarded.first().map_or(data.len(), |gap| gap.offset);
    for (gap, next) in discarded.iter().zip(starts.chain([data.len()])) {
        let kept = gap.offset + gap.len..next;
        let len = kept.len();
        data.copy_within(kept, end);
        end += len;
    }
    end
}

#[cfg(test)]
mod tests;
