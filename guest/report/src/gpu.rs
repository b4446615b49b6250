//! GPUs under test, and what is asked of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Buffer;

/// A GPU under test. The guest knows the first of a plan by the PCI subsystem ID 1, the second by 2, and so on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Name in the scenario.
    pub name: String,
    /// Size of its memory in bytes.
    pub vram_bytes: u64,
    /// Size of its aperture, the BAR with its memory behind, in bytes.
    pub aperture_bytes: u64,
    /// Whether the aperture is a window, whose pages come and go, and which is no p2pmem therefore.
    pub window: bool,
}

/// Transfers between disks and GPU memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuFile {
    /// A GPU's name.
    pub gpu: String,
    /// The disks, all at once.
    pub disks: Vec<String>,
    /// What the data lies in on the disks. A file system is made for it, so all else on the disks is lost.
    #[serde(default)]
    pub on: Medium,
    /// How the transfers are asked for.
    #[serde(default)]
    pub by: Calls,
    /// Whether all of the data goes through guest RAM, as the control.
    #[serde(default)]
    pub bounce: bool,
    /// As [`crate::Copy::sizes`].
    pub sizes: Vec<u64>,
    /// As [`crate::Copy::offsets`], and what a disk must hold too.
    pub offsets: Vec<u64>,
    /// Threads for each disk, each with a part of its own.
    #[serde(default = "crate::plan::one")]
    pub threads: u32,
}

impl fmt::Display for GpuFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} to VRAM of {} and back",
            self.disks.join(" and "),
            self.gpu
        )?;
        match self.on {
            Medium::Raw => {}
            Medium::Ext4 => f.write_str(", ext4")?,
            Medium::Xfs => f.write_str(", xfs")?,
        }
        match self.by {
            Calls::Pread => {}
            Calls::IoUring => f.write_str(", io_uring")?,
        }
        f.write_str(if self.bounce { ", bounced" } else { "" })
    }
}

/// What data lies in on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// Nothing: the block device itself.
    #[default]
    Raw,
    /// A file of ext4. Needs the tools root.
    Ext4,
    /// A file of XFS. Needs the tools root.
    Xfs,
}

/// How transfers are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Calls {
    /// pread and pwrite.
    #[default]
    Pread,
    /// io_uring, several at once.
    IoUring,
}

/// Copies by a GPU's own engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuCopy {
    /// A GPU's name.
    pub gpu: String,
    /// What its memory is copied to, and from.
    pub with: Buffer,
    /// Size of each single copy in bytes.
    pub sizes: Vec<u64>,
}
