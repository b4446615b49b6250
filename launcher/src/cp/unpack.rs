//! Unpacks an archive that a guest sends. The guest is not trusted: nothing is written outside of the copy, and no link is followed.
//!
//! Entries are made relative to the descriptors of the folders that they are in, so each costs the same however deep it is.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use peerbar_lab::size::{Size, human};
use peerbar_lab::terminal::printable;
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

use super::{ENTRY, SPECIAL, TOP};

/// Mode bits of an owner with all rights.
const OWNERS: u32 = 0o700;
/// Mode bits that are copied: neither setuid nor setgid nor sticky.
const RIGHTS: u32 = 0o777;
/// Longest path of an entry, or of a link's target (limits.h, PATH_MAX).
const LONGEST_PATH: u64 = 4 << 10;
/// Most folders in each other. Each takes a descriptor.
const DEEPEST: usize = 128;
/// Bytes that are written at once.
const CHUNK: usize = 256 << 10;
/// Remedy for a copy that exceeds the limit.
const MORE: &str = "raise --limit";

/// The disk space that a copy may still take.
pub(super) struct Budget {
    left: u64,
    /// The message for a copy that exceeds it.
    excess: String,
}

impl Budget {
    /// Makes a budget of `limit` bytes, or of the free space of `folder` if that is less. A copy of
    /// `needed` bytes must fit.
    pub(super) fn new(limit: Size, folder: &Path, needed: u64) -> anyhow::Result<Self> {
        let state = rustix::fs::statvfs(folder);
        let state = state.with_context(|| format!("cannot look at {}", folder.display()))?;
        let free = state.f_bavail.saturating_mul(state.f_frsize);
        let excess = match limit.0 <= free {
            true => format!("more than {limit}: {MORE}"),
            false => format!(
                "more than the {} that are free in {}",
                human(free),
                folder.display()
            ),
        };
        let budget = Self {
            left: limit.0.min(free),
            excess,
        };
        ensure!(needed <= limit.0, "more than {limit}: {MORE}");
        let (needs, has) = (human(needed), human(free));
        ensure!(
            needed <= free,
            "it needs {needs}, and {} has {has} free",
            folder.display()
        );
        Ok(budget)
    }

    fn spend(&mut self, bytes: u64) -> anyhow::Result<()> {
        let left = self.left.checked_sub(bytes);
        self.left = left.with_context(|| self.excess.clone())?;
        Ok(())
    }
}

/// A complete copy without its final name. It is removed on drop.
pub(super) struct Unpacked(tempfile::TempDir);

/// Unpacks an archive of `from`, a path of the guest, into a new folder in `parent`.
pub(super) fn unpack(
    archive: impl Read,
    from: &str,
    parent: &Path,
    budget: Budget,
) -> anyhow::Result<Unpacked> {
    let beside = tempfile::Builder::new()
        .prefix(".peerbar.")
        .tempdir_in(parent)
        .with_context(|| format!("cannot make a folder in {}", parent.display()))?;
    let copy = Unpacked(beside);
    let root = File::open(copy.0.path()).context("cannot open a temporary folder")?;
    Unpacker {
        tree: Tree {
            root: root.into(),
            folders: Vec::new(),
        },
        budget,
    }
    .unpack(archive, from)?;
    Ok(copy)
}

impl Unpacked {
    /// Gives the copy its name, in one step.
    pub(super) fn rename_to(&self, to: &Path) -> anyhow::Result<()> {
        check_target(to)?;
        let top = self.0.path().join(TOP);
        let metadata = fs::symlink_metadata(&top).context("the guest has sent nothing")?;
        // A later write to a link would go elsewhere.
        ensure!(
            !metadata.is_symlink(),
            "the guest sent a link instead of the copy"
        );
        if !metadata.is_dir() {
            return Ok(fs::rename(top, to)?);
        }
        // Only a folder that its owner may write can be moved (rename(2), EACCES).
        let mode = metadata.permissions().mode();
        fs::set_permissions(&top, fs::Permissions::from_mode(mode | OWNERS))?;
        fs::rename(top, to)?;
        Ok(fs::set_permissions(to, metadata.permissions())?)
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        make_removable(self.0.path());
    }
}

/// Gives the owner all rights to a folder and those in it, as far as that is possible.
fn make_removable(folder: &Path) {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        if let Err(error) = fs::set_permissions(&folder, fs::Permissions::from_mode(OWNERS)) {
            log::debug!("cannot change {}: {error}", folder.display());
        }
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let inner = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.extend(inner.map(|entry| entry.path()));
    }
}

/// The copy that is made of an archive, and its limits.
struct Unpacker {
    tree: Tree,
    budget: Budget,
}

/// Names of an entry's path, from the top on.
type Names = Vec<Vec<u8>>;

impl Unpacker {
    fn unpack(mut self, archive: impl Read, from: &str) -> anyhow::Result<()> {
        let (mut path, mut target) = (None, None);
        let mut chunk = vec![0; CHUNK];
        for entry in Archive::new(archive).entries()?.raw(true) {
            let mut entry = entry?;
            self.budget.spend(entry.size().saturating_add(ENTRY))?;
            match entry.header().entry_type() {
                // GNU tar stores the long names of an entry in separate entries before it.
                EntryType::GNULongName => path = Some(long_path(&mut entry)?),
                EntryType::GNULongLink => target = Some(long_path(&mut entry)?),
                _ => {
                    let path = path
                        .take()
                        .unwrap_or_else(|| entry.path_bytes().into_owned());
                    let link = entry.link_name_bytes().map(|link| link.into_owned());
                    let target = target.take().or(link).unwrap_or_default();
                    let made = self.make(&mut entry, &path, &target, &mut chunk);
                    made.with_context(|| shortened(&path_in_guest(from, &path)))?;
                }
            }
        }
        self.tree.leave(0)
    }

    /// Makes the entry `path`, which leads to `target` if it is a link.
    fn make(
        &mut self,
        entry: &mut Entry<'_, impl Read>,
        path: &[u8],
        target: &[u8],
        chunk: &mut [u8],
    ) -> anyhow::Result<()> {
        let kind = entry.header().entry_type();
        let names = names_of(path)?;
        let (name, folders) = names.split_last().context("the path is empty")?;
        match kind {
            EntryType::Directory => {
                self.enter(&names, false)?;
                let attributes = Attributes::of(entry)?;
                self.tree.describe(attributes);
            }
            EntryType::Regular => {
                let folder = self.enter(folders, true)?;
                let file = make_file(folder, name)?;
                copy(entry, &file, chunk)?;
                Attributes::of(entry)?.apply(&file)?;
            }
            EntryType::Symlink => {
                let folder = self.enter(folders, true)?;
                rustix::fs::symlinkat(target, folder, name.as_slice())?;
            }
            EntryType::Link => {
                let target = names_of(target)?;
                let (old, old_folders) = target.split_last().context("the target is empty")?;
                let old_folder = self.tree.open(old_folders)?;
                let folder = self.enter(folders, true)?;
                let no_flags = AtFlags::empty();
                rustix::fs::linkat(
                    old_folder,
                    old.as_slice(),
                    folder,
                    name.as_slice(),
                    no_flags,
                )?;
            }
            _ => {
                bail!("it is not a file, folder or link, and nothing else is copied out of a guest")
            }
        }
        Ok(())
    }

    /// Enters a folder of the tree. Those that the archive does not list are made and counted.
    fn enter(&mut self, names: &[Vec<u8>], is_implied: bool) -> anyhow::Result<&OwnedFd> {
        ensure!(names.len() <= DEEPEST, "more than {DEEPEST} folders deep");
        let known = self.tree.known(names);
        self.tree.leave(known)?;
        for (at, name) in names.iter().enumerate().skip(known) {
            let is_new = self.tree.enter(name)?;
            let is_last = at + 1 == names.len();
            // An entry counts itself.
            if is_new && (is_implied || !is_last) {
                self.budget.spend(ENTRY)?;
            }
        }
        Ok(self.tree.current())
    }
}

/// The tree of a copy, and the folder in it that is written now.
struct Tree {
    root: OwnedFd,
    /// The folder and those above it, from the top on.
    folders: Vec<Folder>,
}

struct Folder {
    name: Vec<u8>,
    descriptor: OwnedFd,
    /// The attributes that it gets when it is left: entries change its time, and may need rights
    /// that they deny.
    attributes: Option<Attributes>,
}

impl Tree {
    fn current(&self) -> &OwnedFd {
        self.folders
            .last()
            .map_or(&self.root, |folder| &folder.descriptor)
    }

    /// Returns the number of `names`, from the top on, that lead along the current folder.
    fn known(&self, names: &[Vec<u8>]) -> usize {
        let both = self.folders.iter().zip(names);
        both.take_while(|(folder, name)| folder.name == **name)
            .count()
    }

    /// Leaves all folders but the first `kept`.
    fn leave(&mut self, kept: usize) -> anyhow::Result<()> {
        while self.folders.len() > kept {
            let folder = self.folders.pop();
            if let Some((folder, attributes)) = folder
                .as_ref()
                .and_then(|folder| Some((folder, folder.attributes.as_ref()?)))
            {
                attributes.apply(&folder.descriptor)?;
            }
        }
        Ok(())
    }

    /// Enters a folder of the current one. Returns `true` if it was made.
    fn enter(&mut self, name: &[u8]) -> anyhow::Result<bool> {
        let made = rustix::fs::mkdirat(self.current(), name, Mode::RWXU);
        let is_new = match made {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let descriptor = open_folder(self.current(), name)?;
        self.folders.push(Folder {
            name: name.to_owned(),
            descriptor,
            attributes: None,
        });
        Ok(is_new)
    }

    /// Sets the `attributes` of the current folder.
    fn describe(&mut self, attributes: Attributes) {
        if let Some(folder) = self.folders.last_mut() {
            folder.attributes = Some(attributes);
        }
    }

    /// Opens a folder that is there.
    fn open(&self, names: &[Vec<u8>]) -> anyhow::Result<OwnedFd> {
        let mut folder = open_folder(&self.root, b".")?;
        for name in names {
            folder = open_folder(&folder, name)?;
        }
        Ok(folder)
    }
}

/// Rights and time of an entry.
struct Attributes {
    mode: Mode,
    modified: i64,
}

impl Attributes {
    fn of(entry: &Entry<'_, impl Read>) -> anyhow::Result<Self> {
        let header = entry.header();
        Ok(Self {
            mode: Mode::from_raw_mode(header.mode()? & RIGHTS),
            modified: i64::try_from(header.mtime()?)?,
        })
    }

    fn apply(&self, to: impl AsFd) -> anyhow::Result<()> {
        let time = Timespec {
            tv_sec: self.modified,
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        rustix::fs::futimens(&to, &times)?;
        Ok(rustix::fs::fchmod(to, self.mode)?)
    }
}

/// Returns the names of a path. Those of an archive of one copy begin with [`TOP`].
fn names_of(path: &[u8]) -> anyhow::Result<Names> {
    let names = path.split(|byte| *byte == b'/');
    let names = names.filter(|name| !name.is_empty() && *name != b".");
    let names: Names = names.map(<[u8]>::to_vec).collect();
    let is_inside = names.first().is_some_and(|top| top == TOP.as_bytes())
        && names.iter().all(|name| name != b"..");
    match is_inside {
        true => Ok(names),
        false => Err(anyhow!("the path leads out of the copy")),
    }
}

/// Returns the path in the guest that an archive of `from` has as `path`. One that leads out of the
/// copy stays as it is.
fn path_in_guest(from: &str, path: &[u8]) -> Vec<u8> {
    let below = path.strip_prefix(TOP.as_bytes());
    match below.filter(|below| below.is_empty() || below.starts_with(b"/")) {
        Some(below) => [from.trim_end_matches('/').as_bytes(), below].concat(),
        None => path.to_owned(),
    }
}

/// Returns a path as an error shows it: a long one only with its ends.
fn shortened(path: &[u8]) -> String {
    /// Characters that are left of each end.
    const END: usize = 24;
    let path: Vec<char> = printable(path).chars().collect();
    let ends = path.first_chunk::<END>().zip(path.last_chunk::<END>());
    match ends.filter(|_| path.len() > 3 * END) {
        Some((first, last)) => first.iter().chain(&['.'; 3]).chain(last).collect(),
        None => path.iter().collect(),
    }
}

fn long_path(entry: &mut Entry<'_, impl Read>) -> anyhow::Result<Vec<u8>> {
    let length = entry.size();
    ensure!(
        length <= LONGEST_PATH,
        "a path of {length} bytes: at most {LONGEST_PATH} are copied"
    );
    let mut path = Vec::new();
    entry.read_to_end(&mut path)?;
    if path.last() == Some(&0) {
        path.pop();
    }
    Ok(path)
}

fn open_folder(folder: impl AsFd, name: &[u8]) -> anyhow::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(folder, name, flags, Mode::empty())?)
}

fn make_file(folder: impl AsFd, name: &[u8]) -> anyhow::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Writes all that an entry has.
fn copy(entry: &mut Entry<'_, impl Read>, mut file: &File, chunk: &mut [u8]) -> anyhow::Result<()> {
    let mut left = entry.size();
    while left > 0 {
        let count = entry.read(chunk)?;
        ensure!(count > 0, "the archive ends in it");
        file.write_all(chunk.get(..count).unwrap_or_default())?;
        left = left.saturating_sub(count as u64);
    }
    Ok(())
}

/// Checks that a copy named `to` replaces nothing but a file or a folder.
///
/// # Errors
/// Something else is there.
pub(super) fn check_target(to: &Path) -> anyhow::Result<()> {
    let kind = fs::symlink_metadata(to).map(|metadata| metadata.file_type());
    let is_special = kind.is_ok_and(|kind| !kind.is_file() && !kind.is_dir());
    ensure!(!is_special, "{} {SPECIAL}", to.display());
    Ok(())
}

/// Returns the folder that a copy named `to` is in.
pub(super) fn parent_of(to: &Path) -> PathBuf {
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}

#[cfg(test)]
mod tests;
