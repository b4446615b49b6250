//! `gpu-beside-nvme`: a GPU has queues of a disk that Linux' own driver keeps.

use std::fmt;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{Keys, TableError, check};

/// Commands in progress, if the table says nothing.
const DEPTH: u8 = 32;

check! {
    /// The GPU drives a pair of queues of a disk that Linux' nvme keeps: the module `peerbar_nvme_queues` has asked the disk for it. While
    /// the GPU reads by it, Linux writes and reads blocks of the same disk. The contents must be right on both sides; the counters must
    /// show that all commands of the GPU, and no others, came out of its memory, and that no processor wrote a doorbell of its queue. Then nvme resets the disk, the memory is revoked, and nvme
    /// leaves the disk: each time the queues must be gone, the program must learn of it, and Linux' own I/O must go on. Addresses are
    /// those that the kernel gives: of the bus below a common switch, else of the root.
    "gpu-beside-nvme": "{gpu} reads {disk} by queues of its own beside Linux, {depth} at a time{end}"
    pub struct GpuBesideNvme {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_name,
        /// Name of an `[[nvme]]` with `spare-queues`. Its data are lost.
        pub disk: String = with_spare_queues,
        /// The most commands of the GPU in progress, 1 to 255.
        #[default = "`32`"]
        #[serde(default = "default_depth")]
        pub depth: u8 = depth,
        /// When the queues end: `"idle"`, as above; `"amid-reads"`, with commands of the GPU in progress, by the death of the program that has them and by
        /// a revoke of the memory, which must last until the disk has completed the commands; `"refused"`, with commands in progress and a disk
        /// that refuses to delete them, so that nvme resets it. The counters must show the commands in progress, and whoever has the memory
        /// next must keep what they write, until the disk has carried out a read that it held back later. The last two take a disk of 16 MiB
        /// or more with blocks of 512 bytes, `spare-queues = 1` and the `faults` `delay command read lba=16384..24576 by=10s`,
        /// `delay completion read lba=24576..32768 by=10s`, and `"refused"` also `fail admin-command delete-submission-queue`.
        #[default = "`\"idle\"`"]
        #[serde(default)]
        pub end: QueuesEnd = Keys::or_default,
    }

    fn modules_on_demand(&self) -> &'static [&'static str] {
        &[Self::MODULE]
    }

    /// Linux moves as much as it can meanwhile.
    fn guest_ram_bytes(&self, _payload: u64) -> Option<u64> {
        None
    }
}

/// When queues beside those of Linux end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueuesEnd {
    /// While the GPU is idle.
    #[default]
    Idle,
    /// While commands of the GPU are in progress.
    AmidReads,
    /// Likewise, and the disk refuses to delete the queues.
    Refused,
}

impl fmt::Display for QueuesEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "",
            Self::AmidReads => ", which end amid reads",
            Self::Refused => ", which the disk refuses to delete",
        })
    }
}

impl GpuBesideNvme {
    /// The module that makes the queues.
    pub const MODULE: &'static str = "peerbar_nvme_queues";
}

pub(super) fn with_spare_queues(keys: &mut Keys<'_, '_>, key: &str) -> Result<String, TableError> {
    let name: Spanned<String> = keys.required(key)?;
    let at = name.span();
    let disk = keys.inventory.disk(name)?;
    if disk.spare_queues > 0 {
        return Ok(disk.name.clone());
    }
    let message = format!(
        "`{0}` grants no queues but those of Linux: give [[nvme]] {0} `spare-queues = 4`",
        disk.name
    );
    Err(TableError::new(at, message))
}

fn default_depth() -> u8 {
    DEPTH
}

fn depth(keys: &mut Keys<'_, '_>, key: &str) -> Result<u8, TableError> {
    let depth: Option<Spanned<u8>> = keys.optional(key)?;
    match depth {
        None => Ok(DEPTH),
        Some(depth) if *depth.get_ref() == 0 => {
            let message = "`depth` is 1 to 255: the most commands in progress";
            Err(TableError::new(depth.span(), message))
        }
        Some(depth) => Ok(depth.into_inner()),
    }
}
