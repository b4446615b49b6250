//! An address space, and the memory behind its addresses.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::RwLock;
use peerbar_gds::Mapping;
use peerbar_nvme_driver::DmaMemory;

use crate::address_space::AddressSpace;
use crate::error::{Error, Result};

/// Start of the allocated addresses. Windows of PCI buses are excluded, which a switch would route
/// to a peer.
const FIRST: u64 = 0x1000_0000;
/// Every IOMMU translates up to here.
const END: u64 = 1 << 38;

/// A range that is never allocated: a PC has its interrupts, its interrupt controllers and its
/// config space there.
const RESERVED: Range<u64> = 0x8000_0000..0x1_0000_0000;

/// Mappings begin at a multiple of this, so that large pages can be used.
const ALIGNMENT: u64 = 2 << 20;

/// An address space, and the memory behind its addresses, as far as this process can access it.
/// Clones are the same space.
#[derive(Clone, Debug)]
pub struct DmaSpace(Arc<Mapped>);

#[derive(Debug)]
struct Mapped {
    space: AddressSpace,
    /// The windows of PCI buses.
    windows: Vec<Range<u64>>,
    regions: RwLock<BTreeMap<u64, Arc<Mapping>>>,
}

impl DmaSpace {
    /// Makes a space without memory.
    #[must_use]
    pub fn new(space: AddressSpace) -> Self {
        let windows = windows(&fs::read_to_string("/proc/iomem").unwrap_or_default());
        let regions = RwLock::default();
        Self(Arc::new(Mapped {
            space,
            windows,
            regions,
        }))
    }

    /// Returns the address space, to open devices in.
    #[must_use]
    pub fn address_space(&self) -> &AddressSpace {
        &self.0.space
    }

    /// Maps `length` bytes of new memory, whole pages. Returns their address. A device must be
    /// open.
    ///
    /// # Errors
    /// [`Error::NoAddresses`], [`Error::Memory`], [`Error::Request`].
    pub fn allocate(&self, length: u64) -> Result<u64> {
        let memory = Arc::new(
            Mapping::anonymous(length).map_err(|source| Error::Memory { length, source })?,
        );
        let mut regions = self.0.regions.write();
        let iova = free_iova(&regions, &self.0.windows, length)?;
        self.0.space.map(iova, &memory)?;
        regions.insert(iova, memory);
        Ok(iova)
    }

    /// Returns an address at which `length` bytes are free.
    ///
    /// # Errors
    /// [`Error::NoAddresses`].
    pub fn free_addresses(&self, length: u64) -> Result<u64> {
        free_iova(&self.0.regions.read(), &self.0.windows, length)
    }

    /// Maps `memory` at `iova`.
    ///
    /// # Errors
    /// As for [`AddressSpace::map`].
    pub fn map(&self, iova: u64, memory: Arc<Mapping>) -> Result<()> {
        let mut regions = self.0.regions.write();
        self.0.space.map(iova, &memory)?;
        regions.insert(iova, memory);
        Ok(())
    }

    /// Maps a dma-buf at `iova`, which this process accesses through `memory`.
    ///
    /// # Errors
    /// As for [`AddressSpace::map_dma_buf`].
    pub fn map_dma_buf(
        &self,
        iova: u64,
        dma_buf: BorrowedFd<'_>,
        memory: Arc<Mapping>,
    ) -> Result<()> {
        let mut regions = self.0.regions.write();
        self.0.space.map_dma_buf(iova, dma_buf, memory.size())?;
        regions.insert(iova, memory);
        Ok(())
    }

    /// Unmaps the mapping at `iova`, and returns it. Does nothing if there is none.
    ///
    /// # Errors
    /// [`Error::Request`].
    pub fn unmap(&self, iova: u64) -> Result<Option<Arc<Mapping>>> {
        let mut regions = self.0.regions.write();
        let Some(memory) = regions.get(&iova) else {
            return Ok(None);
        };
        self.0.space.unmap(iova, memory.size())?;
        Ok(regions.remove(&iova))
    }

    /// Returns the memory that is mapped at `iova`, if this process can access it.
    #[must_use]
    pub fn memory(&self, iova: u64) -> Option<Arc<Mapping>> {
        self.0.regions.read().get(&iova).cloned()
    }

    /// Returns the memory at `iova`, and the offset in it.
    fn at(&self, iova: u64) -> io::Result<(Arc<Mapping>, u64)> {
        let regions = self.0.regions.read();
        let found = regions.range(..=iova).next_back();
        let (start, memory) = found.ok_or_else(|| unreachable(iova))?;
        let offset = iova.checked_sub(*start).filter(|at| *at < memory.size());
        let offset = offset.ok_or_else(|| unreachable(iova))?;
        Ok((Arc::clone(memory), offset))
    }
}

/// Returns the first address with `length` bytes after it that are neither mapped nor in a window.
fn free_iova(
    regions: &BTreeMap<u64, Arc<Mapping>>,
    windows: &[Range<u64>],
    length: u64,
) -> Result<u64> {
    let mapped = regions.iter();
    let mapped = mapped.map(|(start, memory)| *start..start.saturating_add(memory.size()));
    let taken = mapped.chain(windows.iter().cloned()).chain([RESERVED]);
    let mut taken: Vec<Range<u64>> = taken.collect();
    taken.sort_by_key(|range| range.start);
    let mut iova = FIRST;
    for range in taken {
        if range.start.saturating_sub(iova) >= length {
            break;
        }
        let end = range.end.checked_next_multiple_of(ALIGNMENT);
        iova = iova.max(end.unwrap_or(END));
    }
    match iova.checked_add(length) {
        Some(end) if end <= END => Ok(iova),
        _ => Err(Error::NoAddresses { length, end: END }),
    }
}

/// Returns the windows of PCI buses in the text of `/proc/iomem`.
fn windows(text: &str) -> Vec<Range<u64>> {
    let window = |line: &str| {
        let (range, name) = line.trim().split_once(" : ")?;
        let (first, last) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let window = number(first)?..number(last)?.checked_add(1)?;
        name.starts_with("PCI Bus").then_some(window)
    };
    text.lines().filter_map(window).collect()
}

fn unreachable(iova: u64) -> io::Error {
    io::Error::other(format!(
        "this process has no memory at the I/O address {iova:#x}"
    ))
}

impl Drop for Mapped {
    /// Removes all memory of this process from the devices.
    fn drop(&mut self) {
        for (iova, memory) in std::mem::take(self.regions.get_mut()) {
            if self.space.unmap(iova, memory.size()).is_err() {
                // The kernel may still use it: it is better kept than given to another owner.
                std::mem::forget(memory);
            }
        }
    }
}

impl DmaMemory for DmaSpace {
    fn read(&self, address: u64, data: &mut [u8]) -> io::Result<()> {
        let (memory, offset) = self.at(address)?;
        Ok(memory.read(offset, data)?)
    }

    fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        let (memory, offset) = self.at(address)?;
        Ok(memory.write(offset, data)?)
    }

    fn load32(&self, address: u64) -> io::Result<u32> {
        let (memory, offset) = self.at(address)?;
        Ok(memory.load32(offset)?)
    }

    fn store32(&self, address: u64, value: u32) -> io::Result<()> {
        let (memory, offset) = self.at(address)?;
        Ok(memory.store32(offset, value)?)
    }

    fn load64(&self, address: u64) -> io::Result<u64> {
        let (memory, offset) = self.at(address)?;
        Ok(memory.load64(offset)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(ranges: &[(u64, u64)]) -> BTreeMap<u64, Arc<Mapping>> {
        let region =
            |(iova, length): &(u64, u64)| (*iova, Arc::new(Mapping::anonymous(*length).unwrap()));
        ranges.iter().map(region).collect()
    }

    #[test]
    fn first_gap_that_is_long_enough_is_free() {
        let used = regions(&[(FIRST, 4096), (FIRST + 2 * ALIGNMENT, 4096)]);
        let free = |length| free_iova(&used, &[], length).unwrap();
        assert_eq!(free(4096), FIRST + ALIGNMENT);
        assert_eq!(free(2 * ALIGNMENT), FIRST + 3 * ALIGNMENT);
        assert_eq!(free_iova(&regions(&[]), &[], 4096).unwrap(), FIRST);
        let error = free_iova(&used, &[], END).unwrap_err().to_string();
        assert!(
            error.ends_with("of I/O addresses are free below 0x4000000000"),
            "{error}"
        );
    }

    #[test]
    fn without_room_below_2_gib_addresses_start_at_4_gib() {
        let windows = windows("06000000-febfffff : PCI Bus 0000:00\n");
        let free = |length| free_iova(&regions(&[]), &windows, length).unwrap();
        assert_eq!(free(4096), 0x1_0000_0000);
        let long = free_iova(&regions(&[]), &[], 0x7000_1000).unwrap();
        assert_eq!(long, 0x1_0000_0000);
    }

    #[test]
    fn windows_of_pci_buses_are_not_given_out() {
        let text = "00100000-0fffffff : System RAM\n10000000-100fffff : PCI Bus 0000:00\n  \
                    10000000-1000ffff : 0000:01:00.0\n  11000000-110fffff : PCI Bus 0000:02\n";
        let windows = windows(text);
        assert_eq!(
            windows,
            [0x1000_0000..0x1010_0000, 0x1100_0000..0x1110_0000]
        );
        let free = |length| free_iova(&regions(&[]), &windows, length).unwrap();
        assert_eq!(free(4096), 0x1020_0000);
        assert_eq!(free(0x100_0000), 0x1120_0000);
    }
}
