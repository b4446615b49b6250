//! Deliberate faults of the controller, to test the checks that find them.
//!
//! A fault is bound to a logical block: every Read, Write or Compare that starts there is executed
//! as a faulty controller would, however often the driver repeats it. No other command is affected.

use std::fmt;
use std::str::FromStr;

use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::command::nvm::BlockRange;
use peerbar_pci::Iova;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString};
use thiserror::Error;

use crate::prp::Segment;

/// An address that no guest maps: above all its memory, below the limit of every IOMMU with four
/// levels of tables.
const UNMAPPED: Iova = Iova(1 << 46);
/// Beyond what a page table entry of x86 can hold (Intel SDM, 4.5).
const BEYOND_52_BITS: Iova = Iova(1 << 52);

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display, EnumString)]
#[strum(serialize_all = "kebab-case")]
pub enum FaultKind {
    /// The data's address is not mapped.
    Unmapped,
    /// The data's address has more than 52 bits.
    #[strum(serialize = "beyond-52-bits")]
    Beyond52Bits,
    /// The data's first half lies at the end of the address space, its second half past it.
    Wraps,
    /// The data's address is that of the previous command's data, which its driver has unmapped
    /// since.
    AfterUnmap,
    /// The data starts in its middle, and so runs past its end.
    PastEnd,
    /// The controller writes zeros where it should read the data: a fault of Write and Compare
    /// only.
    WriteBack,
}

/// A fault, and the block whose commands it affects; on a command line `KIND:BLOCK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SeededFault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// First logical block of the affected commands.
    pub block: u64,
}

/// A word that is not a seeded fault. The message continues after the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "must be KIND:BLOCK, such as unmapped:2048; the kinds are unmapped, beyond-52-bits, wraps, after-unmap, past-end, write-back"
)]
pub struct UnknownFault;

impl FromStr for SeededFault {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, UnknownFault> {
        let (word, block) = text.split_once(':').ok_or(UnknownFault)?;
        let kind = word.parse().map_err(|_| UnknownFault)?;
        let block = block.parse().map_err(|_| UnknownFault)?;
        Ok(Self { kind, block })
    }
}

impl TryFrom<String> for SeededFault {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        let fault = word.parse();
        fault.map_err(|error: UnknownFault| format!("`{word}` {error}"))
    }
}

impl From<SeededFault> for String {
    fn from(fault: SeededFault) -> Self {
        fault.to_string()
    }
}

impl fmt::Display for SeededFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.block)
    }
}

impl SeededFault {
    /// Returns `true` if it applies to a command with blocks.
    pub(crate) fn meets(&self, command: &SubmissionEntry) -> bool {
        BlockRange::from(command).slba.get() == self.block
    }

    /// Turns the data's true segments into those that a faulty controller would use. `stale` is the
    /// address of the previous command's data.
    pub(crate) fn commit(&self, stale: Option<Iova>, segments: &mut Vec<Segment>) {
        let len = segments.iter().map(|segment| segment.len).sum::<usize>();
        let start = segments.first().map_or(Iova(0), |first| first.address);
        let half = len as u64 / 2;
        let address = match self.kind {
            FaultKind::Unmapped => UNMAPPED,
            FaultKind::Beyond52Bits => BEYOND_52_BITS,
            FaultKind::Wraps => Iova(half.wrapping_neg()),
            FaultKind::AfterUnmap => stale.unwrap_or(UNMAPPED),
            FaultKind::PastEnd => start.wrapping_add(half),
            FaultKind::WriteBack => return,
        };
        log::debug!("block {}: seeded fault {:?}", self.block, self.kind);
        segments.clear();
        segments.push(Segment { address, len });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_a_kind_and_a_block() {
        let fault = |kind, block| Ok(SeededFault { kind, block });
        assert_eq!("unmapped:2048".parse(), fault(FaultKind::Unmapped, 2048));
        assert_eq!(
            "beyond-52-bits:0".parse(),
            fault(FaultKind::Beyond52Bits, 0)
        );
        assert_eq!("wraps:7".parse(), fault(FaultKind::Wraps, 7));
        assert_eq!(
            fault(FaultKind::Wraps, 7).map(|f| f.to_string()),
            Ok("wraps:7".to_owned())
        );
        for wrong in ["", "unmapped", "unmapped:", "unmapped:-1", "lost:1"] {
            assert_eq!(wrong.parse::<SeededFault>(), Err(UnknownFault), "{wrong}");
        }
        let said = UnknownFault.to_string();
        assert!(
            said.ends_with("wraps, after-unmap, past-end, write-back"),
            "{said}"
        );
    }

    #[test]
    fn all_the_data_goes_astray() {
        let honest = [(0x1000, 0x1000), (0x9000, 0x200)].map(|(address, len)| Segment {
            address: Iova(address),
            len,
        });
        let committed = |kind| {
            let mut segments = honest.to_vec();
            SeededFault { kind, block: 0 }.commit(Some(Iova(0x7000)), &mut segments);
            segments
        };
        let whole = |address| {
            [Segment {
                address,
                len: 0x1200,
            }]
        };
        assert_eq!(committed(FaultKind::Unmapped), whole(Iova(1 << 46)));
        assert_eq!(committed(FaultKind::Beyond52Bits), whole(Iova(1 << 52)));
        assert_eq!(committed(FaultKind::Wraps), whole(Iova(u64::MAX - 0x8ff)));
        assert_eq!(committed(FaultKind::AfterUnmap), whole(Iova(0x7000)));
        assert_eq!(committed(FaultKind::PastEnd), whole(Iova(0x1900)));
        assert_eq!(committed(FaultKind::WriteBack), honest);
    }
}
