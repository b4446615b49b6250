//! `gpu-file`: from disks to GPU memory and back.

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::inventory::fits;
use super::{CheckKind, Keys, PAGE, Pair, TableError, check};
use crate::{NvmeDevice, Size};

/// The smallest disk that mkfs.xfs accepts.
const LEAST_XFS: u64 = 300 << 20;
/// The share of a disk that a file system needs for itself: these bytes, and an eighth of the disk.
const OVERHEAD: u64 = 16 << 20;

check! {
    /// Reads data from disks into GPU memory, verifies it there, and writes it back.
    "gpu-file": "{} to VRAM of {gpu} and back{}{}{}" with (
        disks.join(" and "), on.suffix(), by.suffix(), if *bounce { ", bounced" } else { "" }
    )
    pub struct GpuFile {
        /// Name of a `[[gpu]]`.
        pub gpu: String,
        /// Names of `[[nvme]]`s, a list. All are used at once.
        pub disks: Vec<String>,
        /// Format of the disks: `raw`, `ext4` or `xfs`. A file system is created for the check,
        /// which requires `tools = true` at the top.
        #[default = "raw"]
        #[serde(default)]
        pub on: Medium,
        /// System calls for the transfers: `pread` or `io-uring`.
        #[default = "pread"]
        #[serde(default)]
        pub by: Calls,
        /// Bounce all of the data in guest RAM, as the control.
        #[default = "false"]
        #[serde(default)]
        pub bounce: bool,
        /// Transfer sizes, a list such as `["4K", "1M"]`: multiples of 4K.
        pub sizes: Vec<u64>,
        /// Offsets on the disks at which each size is tried, a list such as `[0, "4K"]`: multiples of the block size.
        pub offsets: Vec<u64>,
        /// Threads for each disk, 1 to 64. Each thread has its own part of the disk.
        #[default = "1"]
        #[serde(default = "super::copy::one")]
        pub threads: u32,
    }
}

/// The format of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// The block device itself.
    #[default]
    Raw,
    /// A file on ext4. Requires the tools root.
    Ext4,
    /// A file on XFS. Requires the tools root.
    Xfs,
}

/// The system calls for transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Calls {
    /// pread and pwrite.
    #[default]
    Pread,
    /// io_uring, several at once.
    IoUring,
}

impl Medium {
    /// Returns its part of the check's name.
    fn suffix(self) -> &'static str {
        match self {
            Medium::Raw => "",
            Medium::Ext4 => ", ext4",
            Medium::Xfs => ", xfs",
        }
    }
}

impl Calls {
    /// Returns its part of the check's name.
    fn suffix(self) -> &'static str {
        match self {
            Calls::Pread => "",
            Calls::IoUring => ", io_uring",
        }
    }
}

impl CheckKind for GpuFile {
    const ON_DEMAND: &'static [&'static str] = &["ext4", "xfs"];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let gpu = keys.gpu_name("gpu")?;
        let disks: Spanned<Vec<Spanned<String>>> = keys.required("disks")?;
        let disks = disks.into_inner().into_iter();
        let disks = disks.map(|name| keys.inventory.disk(name));
        let disks = disks.collect::<Result<Vec<&NvmeDevice>, _>>()?;
        let on = medium(keys)?;
        let sizes = keys.sizes("sizes", PAGE, 1)?;
        let at = sizes.span();
        let block = disks.iter().map(|disk| disk.block_bytes).max();
        let block = block.ok_or_else(|| TableError::new(at.clone(), "no disk is named"))?;
        let file = GpuFile {
            gpu,
            disks: disks.iter().map(|disk| disk.name.clone()).collect(),
            on,
            by: keys.or_default("by")?,
            bounce: keys.or_default("bounce")?,
            sizes: sizes.into_inner(),
            offsets: keys.sizes("offsets", block.into(), 0)?.into_inner(),
            threads: keys.threads()?,
            seconds: keys.seconds,
        };
        for disk in disks {
            capacity(on, disk)
                .and_then(|bytes| fits(&file.sizes, &file.offsets, file.threads, bytes))
                .map_err(|message| TableError::new(at.clone(), message))?;
        }
        Ok(file)
    }

    fn control(&self) -> Option<Self> {
        (!self.bounce).then(|| Self {
            bounce: true,
            ..self.clone()
        })
    }

    fn pairs(&self) -> Vec<Pair> {
        let disks = self.disks.iter().filter(|_| !self.bounce);
        disks.map(|disk| Pair::of(&self.gpu, disk)).collect()
    }

    fn modules_on_demand(&self) -> &'static [&'static str] {
        match self.on {
            Medium::Raw => &[],
            Medium::Ext4 => &["ext4"],
            Medium::Xfs => &["xfs"],
        }
    }
}

/// Reads the format. File systems are made by programs of the tools root.
fn medium(keys: &mut Keys<'_, '_>) -> Result<Medium, TableError> {
    let tools = keys.inventory.tools;
    match keys.optional::<Medium>("on")? {
        Some(on) if *on.get_ref() != Medium::Raw && !tools => Err(TableError::new(
            on.span(),
            "a file system is made by the tools root: write `tools = true` at the top",
        )),
        on => Ok(on.map_or_else(Default::default, Spanned::into_inner)),
    }
}

/// Returns the bytes that files on `disk` can have.
fn capacity(on: Medium, disk: &NvmeDevice) -> Result<u64, String> {
    let bytes = disk.disk_bytes;
    let kept = (bytes / 8).saturating_add(OVERHEAD);
    match on {
        Medium::Raw => Ok(bytes),
        Medium::Xfs if bytes < LEAST_XFS => Err(format!(
            "XFS requires a disk of {} or more, and `{}` has {}: enlarge its namespace",
            Size(LEAST_XFS),
            disk.name,
            Size(bytes)
        )),
        Medium::Ext4 | Medium::Xfs => Ok(bytes.saturating_sub(kept)),
    }
}
