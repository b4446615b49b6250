//! The addresses of the pages of a memory region, as its driver lists them.
//!
//! Up to four addresses are in the command. A longer list is contiguous or indirect: in an indirect
//! list the pages of the list are scattered, and their addresses are in a chain of blocks. The
//! length of a list follows from the number of pages, so no list is endless.

use peerbar_dma::{Origin, Purpose, Requester, Tag};
use peerbar_efa_spec::admin::memory_region::{
    LIST_PAGE_ADDRESSES, LIST_PAGE_BYTES, PAGE_ADDRESS_BYTES, RegMr,
};
use peerbar_efa_spec::admin::{CommandFlags, ControlBuffer, Status};
use peerbar_pci::Iova;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use super::possible;

/// Number of addresses in a page of a list.
const ADDRESSES: usize = LIST_PAGE_BYTES / PAGE_ADDRESS_BYTES;

/// Reads lists of pages by DMA.
pub(super) struct PageListReader<'a> {
    requester: &'a Requester,
    tag: Tag,
}

impl<'a> PageListReader<'a> {
    /// Makes a reader for this command.
    pub(super) fn new(requester: &'a Requester, command: Origin) -> Self {
        let tag = Tag::new(Purpose::List, command);
        Self { requester, tag }
    }

    /// Returns the addresses of the `count` pages of a region.
    pub(super) fn read(
        &self,
        flags: CommandFlags,
        region: &RegMr,
        count: usize,
    ) -> Result<Vec<u64>, Status> {
        if !flags.control_data() {
            possible(!flags.control_data_indirect())?;
            let pages = region.inline_pages.get(..count);
            let pages = pages.ok_or(Status::IllegalParameter)?;
            return Ok(pages.iter().map(|page| page.get()).collect());
        }
        let list = region.list().ok_or(Status::MalformedRequest)?;
        if flags.control_data_indirect() {
            return self.indirect(list, count);
        }
        possible(list.length.get() as usize == count * PAGE_ADDRESS_BYTES)?;
        self.addresses(list.address.get(), count)
    }

    /// Returns the addresses in the pages that a chain of blocks points to.
    fn indirect(&self, mut block: ControlBuffer, count: usize) -> Result<Vec<u64>, Status> {
        let mut pages = Vec::with_capacity(count);
        while pages.len() < count {
            let list_pages = (count - pages.len()).div_ceil(ADDRESSES);
            let here = list_pages.min(LIST_PAGE_ADDRESSES);
            let bytes = here * PAGE_ADDRESS_BYTES;
            possible(block.length.get() as usize == bytes + size_of::<ControlBuffer>())?;
            let address = block.address.get();
            for list_page in self.addresses(address, here)? {
                let left = (count - pages.len()).min(ADDRESSES);
                pages.extend(self.addresses(list_page, left)?);
            }
            if here < list_pages {
                block = self.next_block(address, bytes)?;
            }
        }
        Ok(pages)
    }

    /// Returns the pointer to the next block, which follows the addresses of a block.
    fn next_block(&self, block: u64, bytes: usize) -> Result<ControlBuffer, Status> {
        let mut next = [0; size_of::<ControlBuffer>()];
        let address = block.checked_add(bytes as u64);
        self.read_at(address.ok_or(Status::IllegalParameter)?, &mut next)?;
        ControlBuffer::read_from_bytes(&next).map_err(|_| Status::MalformedRequest)
    }

    fn addresses(&self, address: u64, count: usize) -> Result<Vec<u64>, Status> {
        let mut list = vec![U64::new(0); count];
        self.read_at(address, list.as_mut_bytes())?;
        Ok(list.iter().map(|page| page.get()).collect())
    }

    fn read_at(&self, address: u64, data: &mut [u8]) -> Result<(), Status> {
        let read = self.requester.read(self.tag, Iova(address), data);
        read.map_err(|_| Status::UnknownError)
    }
}
