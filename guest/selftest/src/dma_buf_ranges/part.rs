//! One range of a dma-buf, and the place of its bytes.

use std::fmt;
use std::ops::Range;

use anyhow::Context;
use peerbar_gds::Result;
use peerbar_vfio_nvme::DmaRange;

use super::marks::Marks;
use crate::PAGE;

/// A range of the exporter's BAR, as a part of a dma-buf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Its number in the dma-buf, from 1.
    number: usize,
    /// Its place in the exporter's memory.
    pub(super) bar: Range<u64>,
    /// Its place in the dma-buf.
    pub(super) dma_buf: Range<u64>,
}

impl Part {
    /// Returns the parts of a dma-buf, one behind the other.
    pub(super) fn list(ranges: &[DmaRange]) -> Vec<Self> {
        let mut next = 0_u64;
        let part = |(number, range): (usize, &DmaRange)| {
            let start = next;
            next = next.saturating_add(range.length);
            Part {
                number,
                bar: range.offset..range.offset.saturating_add(range.length),
                dma_buf: start..next,
            }
        };
        (1..).zip(ranges).map(part).collect()
    }

    /// Returns its bytes in `memory`, the exporter's.
    pub(super) fn bar_bytes<'a>(&self, memory: &'a mut [u8]) -> anyhow::Result<&'a mut [u8]> {
        let range = usize::try_from(self.bar.start)?..usize::try_from(self.bar.end)?;
        let bytes = memory.get_mut(range);
        bytes.with_context(|| format!("{self} is longer than the memory that is watched"))
    }

    /// Returns the fault of a write of [`Marks::DMA_BUF`], if there is one. `memory` is what the
    /// exporter has in its memory afterwards, which was [`Marks::BAR`].
    pub(super) fn fault_of_write(&self, outcome: Result<()>, memory: &[u8]) -> Option<String> {
        if let Err(error) = outcome {
            return Some(self.failed("a write to", error));
        }
        let page = usize::try_from(PAGE).unwrap_or(usize::MAX);
        let is_of_it = |bytes: &[u8]| {
            let offset = Marks::DMA_BUF.offset_of(bytes);
            offset.is_some_and(|offset| self.dma_buf.contains(&offset))
        };
        let found = memory.chunks(page).position(is_of_it);
        let found = found.and_then(|index| u64::try_from(index).ok());
        match found.map(|index| index.saturating_mul(PAGE)) {
            Some(at) if at == self.bar.start => None,
            Some(at) => Some(format!("bytes written to {self} land at {at:#x}")),
            None => Some(format!(
                "bytes written to {self} land nowhere in this memory"
            )),
        }
    }

    /// Returns the fault of a read, if there is one. The exporter has [`Marks::BAR`] in its memory,
    /// and the reader got `bytes`.
    pub(super) fn fault_of_read(&self, outcome: Result<()>, bytes: &[u8]) -> Option<String> {
        if let Err(error) = outcome {
            return Some(self.failed("a read of", error));
        }
        if bytes == Marks::BAR.bytes(self.bar.clone()) {
            return None;
        }
        Some(match Marks::BAR.offset_of(bytes) {
            Some(at) => format!("a read of {self} returns the bytes at {at:#x}"),
            None => format!("a read of {self} returns bytes of other memory"),
        })
    }

    fn failed(&self, access: &str, error: peerbar_gds::Error) -> String {
        format!("{access} {self} fails: {:#}", anyhow::Error::from(error))
    }
}

/// Writes its number, and its place in the BAR.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.bar;
        write!(f, "range {} (BAR {start:#x} to {end:#x})", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dma-buf of two pages in reverse order.
    fn parts() -> Vec<Part> {
        let page = |offset| DmaRange {
            offset,
            length: PAGE,
        };
        Part::list(&[page(PAGE), page(0)])
    }

    #[test]
    fn parts_follow_each_other_in_the_dma_buf() {
        let parts = parts();
        assert_eq!(parts[0].dma_buf, 0..PAGE);
        assert_eq!(parts[1].dma_buf, PAGE..2 * PAGE);
        assert_eq!(parts[1].to_string(), "range 2 (BAR 0x0 to 0x1000)");
    }

    #[test]
    fn place_of_written_bytes_is_found() {
        let [first, second] = parts().try_into().unwrap();
        let swapped = Marks::DMA_BUF.bytes(0..2 * PAGE);
        let fault = first.fault_of_write(Ok(()), &swapped).unwrap();
        assert_eq!(
            fault,
            "bytes written to range 1 (BAR 0x1000 to 0x2000) land at 0x0"
        );
        let right = [
            Marks::DMA_BUF.bytes(PAGE..2 * PAGE),
            Marks::DMA_BUF.bytes(0..PAGE),
        ];
        for part in [&first, &second] {
            assert_eq!(part.fault_of_write(Ok(()), &right.concat()), None);
        }
        let fault = second.fault_of_write(Ok(()), &Marks::BAR.bytes(0..2 * PAGE));
        assert!(fault.unwrap().ends_with("land nowhere in this memory"));
    }

    #[test]
    fn origin_of_read_bytes_is_found() {
        let [first, _] = parts().try_into().unwrap();
        let right = Marks::BAR.bytes(PAGE..2 * PAGE);
        assert_eq!(first.fault_of_read(Ok(()), &right), None);
        let other = first.fault_of_read(Ok(()), &Marks::BAR.bytes(0..PAGE));
        assert!(other.unwrap().ends_with("returns the bytes at 0x0"));
        let refused = Err(peerbar_gds::Error::Fault(peerbar_gds::Fault::Dma));
        let failed = first.fault_of_read(refused, &right).unwrap();
        assert!(failed.starts_with("a read of range 1 (BAR 0x1000 to 0x2000) fails: "));
    }
}
