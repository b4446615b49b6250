//! The contents of the cache, and the entries that can be removed.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::cache::{BuildLock, Kind, WORK_PREFIX};
use crate::error::io_error;
use crate::{Cache, ImageError, entry_use};

/// Initramfs images that are always kept: every change of the agent, and every other set of
/// modules, makes another one.
const NEWEST: usize = 64;
/// Time for which an entry stays after its last use under every rule except
/// [`PruneRule::Everything`]: other versions of this program may share the folder and mark no use.
const RECENT: Duration = Duration::from_secs(600);

/// A file or folder in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CacheEntry {
    /// Name in the cache's folder.
    pub name: String,
    /// Its kind: `root`, `kernel`, `initramfs`, ...; `other` for a foreign file, which is never
    /// removed.
    pub kind: &'static str,
    /// Bytes on disk.
    pub bytes: u64,
    /// The time of its last use.
    #[serde(serialize_with = "seconds")]
    pub last_use: SystemTime,
    /// A process uses it now.
    pub in_use: bool,
}

/// The rule that selects the entries to remove. Entries in use are never removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PruneRule {
    /// The routine after each build: entries unused for the lifetime of their kind, and all
    /// initramfs images except the newest few.
    Routine,
    /// The entries of [`PruneRule::Routine`], and entries that are quick to rebuild and were last
    /// used before this time, at which the present programs were built.
    Superseded(SystemTime),
    /// The entries unused for this time.
    UnusedFor(Duration),
    /// All entries.
    Everything,
}

impl Cache {
    /// Returns everything in the folder, by kind, the last used first.
    ///
    /// # Errors
    /// [`ImageError::Io`] if the folder cannot be read.
    pub fn entries(&self) -> Result<Vec<CacheEntry>, ImageError> {
        let found = found(self.path())?;
        Ok(found.iter().map(StoredFile::entry).collect())
    }

    /// Returns the paths of all entries of a kind, including those of the cache below.
    pub(crate) fn paths(&self, kind: Kind) -> Result<Vec<PathBuf>, ImageError> {
        let mut paths = Vec::new();
        for folder in self.folders() {
            let of_kind = found(folder)?.into_iter();
            let of_kind = of_kind.filter(|each| each.kind == Some(kind));
            paths.extend(of_kind.map(|each| each.path));
        }
        Ok(paths)
    }

    /// Returns the bytes on disk of everything in the folder, or 0 if it cannot be read.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        bytes_in(self.path())
    }

    /// Returns the bytes on disk of all entries of the cache below, or 0 without such a cache.
    #[must_use]
    pub fn bytes_below(&self) -> u64 {
        self.below().map_or(0, bytes_in)
    }

    /// Returns the entries that `rule` selects, and removes them unless `dry_run` is set. Waits for
    /// a build in progress.
    ///
    /// # Errors
    /// [`ImageError::Io`], or [`ImageError::Stopped`] while it waits.
    pub fn prune(&self, rule: PruneRule, dry_run: bool) -> Result<Vec<CacheEntry>, ImageError> {
        let lock = self.lock()?;
        let found = found(self.path())?;
        let mut pruned = Vec::new();
        for each in doomed(&found, rule, SystemTime::now()) {
            let entry = each.entry();
            if !entry.in_use && (dry_run || self.remove(each, &lock)?) {
                pruned.push(entry);
            }
        }
        Ok(pruned)
    }

    /// Removes leftovers of dead builds, and the entries of [`PruneRule::Routine`]. Keeps foreign
    /// files, since the user may keep some in that folder.
    pub(crate) fn sweep(&self, lock: &BuildLock) -> Result<(), ImageError> {
        for left in names(self.path())? {
            if !left.0.starts_with(WORK_PREFIX) {
                continue;
            }
            if let Err(error) = remove_all(&self.path().join(&left.0), &left.1) {
                // No process has locked it. If the cache is the overlay of another one, it may be a
                // build in progress there.
                log::warn!("a build's leftover stays: {error}");
            }
        }
        let found = found(self.path())?;
        for each in doomed(&found, PruneRule::Routine, SystemTime::now()) {
            // A build does not depend on these removals.
            if let Err(error) = self.remove(each, lock) {
                log::warn!("an unused entry of the cache stays: {error}");
            }
        }
        Ok(())
    }

    /// Removes an entry, unless it is in use. It first gets the name of a dead build's leftover, so
    /// that an entry that is only partly removed is found by no user and by every builder. Returns
    /// `false` if it is in use, or gone already: over a read-only cache (overlayfs), the locks of
    /// its owner's removals are not visible here.
    fn remove(&self, found: &StoredFile, _: &BuildLock) -> Result<bool, ImageError> {
        let path = self.path().join(&found.name);
        let Some(_excluded) = entry_use::exclude(&path).map_err(io_error("lock", &path))? else {
            return Ok(false);
        };
        log::info!("removing {}", path.display());
        let removed = self.path().join(format!("{WORK_PREFIX}{}", found.name));
        match fs::rename(&path, &removed) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            renamed => renamed.map_err(io_error("remove", &path))?,
        }
        remove_all(&removed, &found.metadata)?;
        Ok(true)
    }
}

/// A file or folder in the cache's folder.
struct StoredFile {
    name: String,
    path: PathBuf,
    /// Its kind, or `None` if it is not an entry.
    kind: Option<Kind>,
    metadata: Metadata,
    last_use: SystemTime,
}

impl StoredFile {
    fn entry(&self) -> CacheEntry {
        let is_entry = self.kind.is_some();
        CacheEntry {
            name: self.name.clone(),
            kind: self.kind.map_or("other", Kind::word),
            bytes: bytes_on_disk(&self.path, &self.metadata, &mut BTreeSet::new()),
            last_use: self.last_use,
            in_use: is_entry && matches!(entry_use::exclude(&self.path), Ok(None)),
        }
    }
}

fn bytes_in(dir: &Path) -> u64 {
    let found = found(dir).unwrap_or_default();
    let entries = found.iter().map(StoredFile::entry);
    entries.fold(0, |sum, entry| sum.saturating_add(entry.bytes))
}

/// Returns everything except leftovers of builds and the lock.
fn found(dir: &Path) -> Result<Vec<StoredFile>, ImageError> {
    let names = names(dir)?.into_iter();
    let names =
        names.filter(|(name, _)| !name.starts_with(WORK_PREFIX) && name != crate::cache::LOCK);
    let mut found: Vec<StoredFile> = names
        .map(|(name, metadata)| StoredFile {
            path: dir.join(&name),
            kind: Kind::of(&name),
            last_use: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            metadata,
            name,
        })
        .collect();
    found.sort_by(|one, other| {
        let by_kind = one
            .kind
            .is_none()
            .cmp(&other.kind.is_none())
            .then(one.kind.cmp(&other.kind));
        by_kind
            .then(other.last_use.cmp(&one.last_use))
            .then(one.name.cmp(&other.name))
    });
    Ok(found)
}

fn names(dir: &Path) -> Result<Vec<(String, Metadata)>, ImageError> {
    let mut names = Vec::new();
    for each in fs::read_dir(dir).map_err(io_error("list", dir))? {
        let each = each.map_err(io_error("list", dir))?;
        // A leftover that is gone by now belonged to a build that ended.
        if let (Ok(name), Ok(metadata)) = (each.file_name().into_string(), each.metadata()) {
            names.push((name, metadata));
        }
    }
    Ok(names)
}

/// Returns those of `found` that `rule` selects. Within a kind, `found` must be in the order of
/// last use, the latest first.
fn doomed(found: &[StoredFile], rule: PruneRule, now: SystemTime) -> Vec<&StoredFile> {
    let mut images: usize = 0;
    let is_doomed = |each: &&StoredFile| {
        let Some(kind) = each.kind else {
            return false;
        };
        images = images.saturating_add(usize::from(kind == Kind::Initramfs));
        let age = now.duration_since(each.last_use).unwrap_or_default();
        let is_routine = age > kind.lifetime() || (kind == Kind::Initramfs && images > NEWEST);
        match rule {
            PruneRule::Everything => true,
            _ if age < RECENT => false,
            PruneRule::Routine => is_routine,
            PruneRule::Superseded(built) => {
                is_routine || (kind.is_quickly_built() && each.last_use < built)
            }
            PruneRule::UnusedFor(time) => age >= time,
        }
    };
    found.iter().filter(is_doomed).collect()
}

/// Removes a file or folder. If it vanishes during the removal, that is also a success (see
/// [`Cache::remove`]).
fn remove_all(path: &Path, metadata: &Metadata) -> Result<(), ImageError> {
    let removed = if metadata.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(io_error("remove", path)),
    }
}

/// Returns the bytes on disk. A file with several names counts once: `seen` has the files counted
/// so far. A file that vanishes counts 0.
fn bytes_on_disk(path: &Path, metadata: &Metadata, seen: &mut BTreeSet<(u64, u64)>) -> u64 {
    /// The unit of `st_blocks` (stat(3)).
    const BLOCK: u64 = 512;
    if metadata.nlink() > 1 && !metadata.is_dir() && !seen.insert((metadata.dev(), metadata.ino()))
    {
        return 0;
    }
    let own = metadata.blocks().saturating_mul(BLOCK);
    if !metadata.is_dir() {
        return own;
    }
    let below = fs::read_dir(path).into_iter().flatten().flatten();
    below.fold(own, |sum, each| {
        let bytes = each
            .metadata()
            .map_or(0, |metadata| bytes_on_disk(&each.path(), &metadata, seen));
        sum.saturating_add(bytes)
    })
}

fn seconds<S: serde::Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    serializer.serialize_u64(since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn what_vanishes_before_its_removal_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        for metadata in [
            dir.path().metadata(),
            File::create(dir.path().join("file")).unwrap().metadata(),
        ] {
            remove_all(&dir.path().join("gone"), &metadata.unwrap()).unwrap();
        }
        let folder = dir.path().metadata().unwrap();
        remove_all(&dir.path().join("file/x"), &folder).unwrap_err();
    }

    /// Returns a cache with an entry for each name and hours since its last use.
    fn cache(entries: &[(&str, u32)]) -> (tempfile::TempDir, Cache) {
        let dir = tempfile::tempdir().unwrap();
        for (name, hours) in entries {
            let path = dir.path().join(name);
            fs::write(&path, [1; 5000]).unwrap();
            let used = SystemTime::now() - HOUR * *hours;
            File::open(&path).unwrap().set_modified(used).unwrap();
        }
        let cache = Cache::at(dir.path()).unwrap();
        (dir, cache)
    }

    fn names(entries: &[CacheEntry]) -> Vec<&str> {
        entries.iter().map(|entry| entry.name.as_str()).collect()
    }

    const ROOT: &str = "root-0000000000000001";
    const KERNEL: &str = "kernel-0000000000000001";
    const OLD: &str = "initramfs-0000000000000001";
    const NEW: &str = "initramfs-0000000000000002";

    #[test]
    fn entries_are_listed_by_kind_and_last_use() {
        let (dir, cache) = cache(&[(OLD, 5), ("notes", 1), (NEW, 2), (ROOT, 3), ("lock", 0)]);
        fs::hard_link(dir.path().join("notes"), dir.path().join("root-x")).unwrap();
        let entries = cache.entries().unwrap();
        assert_eq!(names(&entries), [ROOT, NEW, OLD, "notes", "root-x"]);
        assert_eq!((entries[0].kind, entries[3].kind), ("root", "other"));
        assert!(
            entries
                .iter()
                .all(|entry| entry.bytes >= 5000 && !entry.in_use)
        );
    }

    #[test]
    fn size_counts_a_file_of_two_names_once() {
        let dir = tempfile::tempdir().unwrap();
        let size = || {
            bytes_on_disk(
                dir.path(),
                &dir.path().metadata().unwrap(),
                &mut BTreeSet::new(),
            )
        };
        fs::write(dir.path().join("a"), [1; 50_000]).unwrap();
        let one = size();
        fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
        assert!(one >= 50_000);
        assert_eq!(size(), one);
    }

    #[test]
    fn rules_name_what_they_say() {
        let (_dir, cache) = cache(&[(ROOT, 3), (KERNEL, 30), (OLD, 5), (NEW, 0), ("notes", 999)]);
        let built = SystemTime::now() - HOUR * 4;
        let cases: [(PruneRule, &[&str]); 5] = [
            (PruneRule::Routine, &[KERNEL]),
            (PruneRule::Superseded(built), &[KERNEL, OLD]),
            (PruneRule::UnusedFor(HOUR * 2), &[ROOT, KERNEL, OLD]),
            (PruneRule::UnusedFor(Duration::ZERO), &[ROOT, KERNEL, OLD]),
            (PruneRule::Everything, &[ROOT, KERNEL, NEW, OLD]),
        ];
        for (rule, expected) in cases {
            assert_eq!(
                names(&cache.prune(rule, true).unwrap()),
                expected,
                "{rule:?}"
            );
        }
        assert_eq!(cache.entries().unwrap().len(), 5);
        cache.prune(PruneRule::Everything, false).unwrap();
        assert_eq!(names(&cache.entries().unwrap()), ["notes"]);
    }

    #[test]
    fn newest_initramfs_images_are_kept() {
        let images: Vec<String> = (0..80).map(|n| format!("initramfs-{n:016x}")).collect();
        let (dir, cache) = cache(&[]);
        for (minutes, image) in (60..).zip(&images) {
            let used = SystemTime::now() - HOUR / 60 * minutes;
            let file = File::create(dir.path().join(image)).unwrap();
            file.set_modified(used).unwrap();
        }
        cache.prune(PruneRule::Routine, false).unwrap();
        assert_eq!(names(&cache.entries().unwrap()), images[..NEWEST]);
    }

    #[test]
    fn entry_in_use_stays_until_its_user_is_gone() {
        let (_dir, cache) = cache(&[(KERNEL, 50)]);
        let user = Cache::at(cache.path()).unwrap();
        let unneeded = |_: &Path, _: &BuildLock| Err(ImageError::NoMmdebstrap);
        user.entry(Kind::Kernel, "0000000000000001", unneeded)
            .unwrap();
        assert!(cache.entries().unwrap()[0].in_use);
        assert_eq!(cache.prune(PruneRule::Everything, false).unwrap(), []);
        drop(user);
        let pruned = cache.prune(PruneRule::Everything, false).unwrap();
        assert_eq!(names(&pruned), [KERNEL]);
    }

    #[test]
    fn file_of_an_entry_that_the_user_names_marks_it() {
        const BUILT: &str = "built-kernel-0000000000000001";
        let (dir, cache) = cache(&[("notes", 999)]);
        let image = dir.path().join(BUILT).join("bzImage");
        fs::create_dir(dir.path().join(BUILT)).unwrap();
        fs::write(&image, "").unwrap();
        let folder = File::open(dir.path().join(BUILT)).unwrap();
        folder.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        cache.mark_used(&dir.path().join("notes")).unwrap();
        cache.mark_used(Path::new("/")).unwrap();
        cache.mark_used(&image).unwrap();
        assert!(cache.entries().unwrap()[0].in_use);
        assert_eq!(cache.prune(PruneRule::Everything, false).unwrap(), []);
        drop(folder);
        let later = Cache::at(cache.path()).unwrap();
        drop(cache);
        assert_eq!(later.prune(PruneRule::Routine, false).unwrap(), []);
        assert_eq!(names(&later.entries().unwrap()), [BUILT, "notes"]);
    }

    #[test]
    fn entry_that_was_removed_is_built_again() {
        let (_dir, cache) = cache(&[(KERNEL, 50)]);
        cache.prune(PruneRule::Everything, false).unwrap();
        let build =
            |path: &Path, _: &BuildLock| fs::write(path, "new").map_err(io_error("write", path));
        let path = cache
            .entry(Kind::Kernel, "0000000000000001", build)
            .unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "new");
    }
}
