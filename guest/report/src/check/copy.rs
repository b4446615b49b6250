//! `copy`: from disk to disk through a buffer.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::inventory::fits;
use super::{Buffer, CheckKind, Key, Keys, PAGE, Pair, TableError};

/// A copy from one disk to another through a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Copy {
    /// The disk that is read.
    pub from: String,
    /// The disk that is written.
    pub to: String,
    /// Where the data lies in between.
    pub through: Buffer,
    /// Size of each single transfer in bytes, each a multiple of 4096.
    pub sizes: Vec<u64>,
    /// Byte offsets on the disks at which each size is tried, each a multiple of the block size; the
    /// destination's offset differs from the source's. A disk must hold
    /// `threads * 2 * (largest offset + largest size)` bytes.
    pub offsets: Vec<u64>,
    /// Threads that copy at once, each in a part of its own of the disks.
    #[serde(default = "one")]
    pub threads: u32,
}

pub(super) fn one() -> u32 {
    1
}

impl fmt::Display for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "copy {} to {} through {}",
            self.from, self.to, self.through
        )
    }
}

impl CheckKind for Copy {
    const KIND: &'static str = "copy";
    const ABOUT: &'static str = "Copies from one disk to another through a buffer and compares the contents. Through \
        p2pmem every byte must go from peer to peer, through guest RAM none.";
    const KEYS: &'static [Key] = &[
        Key::required("from", "Name of the `[[nvme]]` that is read."),
        Key::required("to", "Name of the `[[nvme]]` that is written."),
        Key::required(
            "through",
            "The buffer: `\"guest-ram\"`, or `{ p2pmem = \"NAME\" }` with the name of a device that has p2pmem.",
        ),
        Key::SIZES,
        Key::OFFSETS,
        Key::THREADS,
    ];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let (from, to) = (keys.disk("from")?, keys.disk("to")?);
        let through = keys.buffer("through")?.into_inner();
        let sizes = keys.sizes("sizes", PAGE, 1)?;
        let at = sizes.span();
        let block = from.block_bytes.max(to.block_bytes);
        let copy = Copy {
            from: from.name.clone(),
            to: to.name.clone(),
            through,
            sizes: sizes.into_inner(),
            offsets: keys.sizes("offsets", block.into(), 0)?.into_inner(),
            threads: keys.threads()?,
        };
        let disk = from.disk_bytes.min(to.disk_bytes);
        fits(&copy.sizes, &copy.offsets, copy.threads, disk)
            .and_then(|()| {
                keys.inventory
                    .holds(&copy.through, &copy.sizes, copy.threads)
            })
            .map_err(|message| TableError::new(at, message))?;
        Ok(copy)
    }

    fn pairs(&self) -> Vec<Pair> {
        self.through.provider().map_or_else(Vec::new, |provider| {
            vec![Pair::of(provider, &self.from), Pair::of(provider, &self.to)]
        })
    }
}
