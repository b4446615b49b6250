//! The target of transfers: a file in a file system that is made for it, or the block device
//! itself.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use peerbar_report::Medium;
use rustix::fs::syncfs;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::devices::Controller;
use crate::guest_context::GuestContext;
use crate::mapped_buffer::MappedBuffer;

/// Bytes that are written at once when a file is made.
const STEP: usize = 1 << 20;

/// The interval at which the kernel looks for data that has been dirty for half a minute, and
/// writes it. On a slow machine that would be counted with the transfers under test.
const WRITEBACK: &str = "/proc/sys/vm/dirty_writeback_centisecs";

/// The interval at which XFS logs that it has nothing to log, and the maximum: two hours.
const XFS_LOGGING: (&str, &str) = ("/proc/sys/fs/xfs/xfssyncd_centisecs", "720000");

/// Data on a disk whose bytes are all allocated already, so that writing to it changes nothing
/// else.
#[derive(Debug)]
pub(crate) struct Volume {
    /// The file, or the block device.
    pub(crate) path: PathBuf,
    /// The mount point of its file system.
    mounted: Option<PathBuf>,
}

impl Volume {
    /// Prepares at least `bytes` on the disk of `controller`, whose content is lost.
    pub(crate) fn prepare(
        guest: &GuestContext,
        controller: &Controller,
        on: Medium,
        bytes: u64,
    ) -> anyhow::Result<Self> {
        let node = &controller.disk.node;
        let (make, kind, options) = match on {
            Medium::Raw => {
                return Ok(Volume {
                    path: node.clone(),
                    mounted: None,
                });
            }
            // Everything is written now, to avoid later reads and writes: no bitmaps, no tables,
            // and no journal before it is needed.
            Medium::Ext4 => (
                "mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0",
                "ext4",
                c"commit=300,no_prefetch_block_bitmaps,noinit_itable",
            ),
            Medium::Xfs => ("mkfs.xfs -q -f", "xfs", c""),
        };
        guest.load_module(kind)?;
        set(WRITEBACK, "0")?;
        if on == Medium::Xfs {
            let (logging, most) = XFS_LOGGING;
            set(logging, most)?;
        }
        run(guest, &format!("{make} {}", node.display()))?;
        let mount_point = Path::new("/mnt").join(&controller.name);
        fs::create_dir_all(&mount_point)
            .with_context(|| format!("cannot create {}", mount_point.display()))?;
        mount(
            node,
            &mount_point,
            kind,
            MountFlags::NOATIME | MountFlags::LAZYTIME,
            options,
        )
        .with_context(|| {
            format!(
                "cannot mount {} on {}",
                node.display(),
                mount_point.display()
            )
        })?;
        let volume = Volume {
            path: mount_point.join("data"),
            mounted: Some(mount_point),
        };
        volume.allocate(bytes).context("cannot make a file")?;
        Ok(volume)
    }

    /// Opens it without the page cache.
    pub(crate) fn open(&self) -> anyhow::Result<File> {
        let mut options = OpenOptions::new();
        let options = options
            .read(true)
            .write(true)
            .create(self.mounted.is_some());
        let file = options.custom_flags(libc::O_DIRECT).open(&self.path);
        file.with_context(|| format!("cannot open {}", self.path.display()))
    }

    /// Waits until the file system has written everything to the disk.
    pub(crate) fn settle(&self) -> anyhow::Result<()> {
        syncfs(self.open()?).context("cannot flush the file system")
    }

    /// Unmounts it, if it is mounted.
    pub(crate) fn close(&self) -> anyhow::Result<()> {
        let Some(mount_point) = &self.mounted else {
            return Ok(());
        };
        unmount(mount_point, UnmountFlags::empty())
            .with_context(|| format!("cannot unmount {}", mount_point.display()))
    }

    /// Writes zeros everywhere, so that no extent is without blocks or marked as unwritten.
    fn allocate(&self, bytes: u64) -> anyhow::Result<()> {
        let file = self.open()?;
        let zeros = MappedBuffer::guest_ram(STEP)?;
        let mut offset = 0;
        while offset < bytes {
            zeros.write_to(&file, offset, STEP)?;
            offset = offset.saturating_add(STEP as u64);
        }
        file.sync_all()?;
        self.settle()
    }
}

fn set(parameter: &str, value: &str) -> anyhow::Result<()> {
    fs::write(parameter, value).with_context(|| format!("cannot write {value} to {parameter}"))
}

fn run(guest: &GuestContext, line: &str) -> anyhow::Result<()> {
    let tools = guest
        .tools()?
        .context("a file system requires the tools root, which the plan does not have")?;
    let ran = tools.run(line, guest.limit(None), |_| ())?;
    if ran.timed_out || ran.code() != 0 {
        bail!("{line} ended with status {}:\n{}", ran.code(), ran.output);
    }
    Ok(())
}
