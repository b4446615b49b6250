//! Work requests that add memory to memory regions and remove it. They are executed in the order of
//! their queue: all earlier requests have ended, and no later request has begun.
//!
//! Such a request contains bus addresses. It is therefore refused unless the driver has allocated
//! the region in the queue pair's protection domain (Alloc MR): that permits it.

use peerbar_dma::{Origin, Purpose, Session, Tag};
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::FastRegistration;
use peerbar_pci::Iova;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::requester::Requester;
use crate::objects::{MemoryRegions, ObjectError, RegisterRegion, page_count};

/// Modes of a list of pages (`efa_io_frwr_pbl_mode`).
const INLINE: u8 = 0;
const DIRECT: u8 = 1;

/// Adds memory to a region. Returns the status of the request.
pub(super) fn register(
    regions: &mut MemoryRegions,
    session: &mut Session,
    requester: &Requester,
    request: &FastRegistration,
) -> CompletionStatus {
    let (domain, key) = (requester.protection_domain, request.lkey.get());
    let max_pages = match regions.free_pages(domain, key) {
        Ok(max_pages) => max_pages,
        Err(error) => return refused(&error),
    };
    let (iova, length) = (request.iova.get(), request.length.get());
    let page_shift = request.flags.page_shift();
    let count = page_count(iova, length, page_shift);
    let Some(count) = count.filter(|count| *count <= max_pages) else {
        return CompletionStatus::LocalBadLength;
    };
    let pages = match (request.flags.list_mode(), count) {
        (INLINE, 1) => vec![request.pages.get()],
        (INLINE, _) => return CompletionStatus::LocalBadLength,
        (DIRECT, count) => {
            match read_pages(session, requester.origin(), request.pages.get(), count) {
                Some(pages) => pages,
                None => return CompletionStatus::LocalQueuePair,
            }
        }
        _ => return CompletionStatus::LocalUnsupportedOperation,
    };
    let parameters = RegisterRegion {
        protection_domain: domain,
        address: iova,
        length,
        page_shift,
        pages: &pages,
        access: request.permissions.into(),
    };
    status(regions.add_memory(key, parameters))
}

/// Removes the memory of a region. Returns the status of the request.
pub(super) fn invalidate(regions: &mut MemoryRegions, domain: u16, key: u32) -> CompletionStatus {
    status(regions.remove_memory(domain, key))
}

/// Returns a list of the addresses of that many pages, or `None` if it cannot be read.
fn read_pages(
    session: &mut Session,
    origin: Origin,
    address: u64,
    count: usize,
) -> Option<Vec<u64>> {
    let mut list = vec![U64::ZERO; count];
    let tag = Tag::new(Purpose::List, origin);
    let read = session.read(tag, Iova(address), list.as_mut_bytes());
    read.inspect_err(|error| log::debug!("list of pages: {error}: {}", error.cause))
        .ok()?;
    Some(list.into_iter().map(U64::get).collect())
}

fn status(done: Result<(), ObjectError>) -> CompletionStatus {
    done.map_or_else(|error| refused(&error), |()| CompletionStatus::Ok)
}

fn refused(error: &ObjectError) -> CompletionStatus {
    log::debug!("{error}");
    CompletionStatus::LocalInvalidKey
}
