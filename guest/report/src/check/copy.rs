//! `copy`: from disk to disk through a buffer.

use super::inventory::fits;
use super::{Buffer, CheckKind, Keys, PAGE, Pair, TableError, check};

check! {
    /// Copies from one disk to another through a buffer and compares the contents. With p2pmem
    /// every byte must go peer to peer, with guest RAM none.
    "copy": "copy {from} to {to} through {through}"
    pub struct Copy {
        /// Name of the `[[nvme]]` to read.
        pub from: String,
        /// Name of the `[[nvme]]` to write.
        pub to: String,
        /// The buffer: `"guest-ram"`, or `{ p2pmem = "NAME" }` with the name of a device that has p2pmem.
        pub through: Buffer,
        /// Transfer sizes, a list such as `["4K", "1M"]`: multiples of 4K.
        pub sizes: Vec<u64>,
        /// Offsets on the disks at which each size is tried, a list such as `[0, "4K"]`: multiples
        /// of the block size.
        pub offsets: Vec<u64>,
        /// Threads for each disk, 1 to 64. Each thread has its own part of the disk.
        #[default = "1"]
        #[serde(default = "one")]
        pub threads: u32,
    }
}

pub(super) fn one() -> u32 {
    1
}

impl CheckKind for Copy {
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
            seconds: keys.seconds,
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

    fn control(&self) -> Option<Self> {
        let through = Buffer::GuestRam;
        (self.through != through).then(|| Self {
            through,
            ..self.clone()
        })
    }
}
