//! The cache folder of artifacts that take long to build.
//!
//! An entry is a file or a folder whose name contains a hash of its inputs, so it is either right
//! or missing. It is built in a work folder next to it and renamed into place: an interrupted build
//! leaves only a work folder, which the next build removes. Several entries may be built at the
//! same time, each by one process. A [`Cache`] marks each entry that it has returned as used, until
//! the cache is dropped ([`crate::entry_use`]).

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation::{
    self, NonBlockingLockExclusive as Exclusive, NonBlockingLockShared as Shared,
};
use rustix::fs::flock;
use rustix::io::{Errno, FdFlags, fcntl_setfd, retry_on_intr};
use sha2::{Digest, Sha256};

use crate::ImageError;
use crate::entry_use::{self, Removal};
use crate::error::io_error;
use crate::progress::say;

/// Prefix of the names of items that are being built or removed.
pub(crate) const WORK_PREFIX: &str = ".peerbar-building-";
/// Name of the lock file. Builds share the lock; a removal takes it alone.
pub(crate) const LOCK: &str = "lock";
/// Suffix of the names of files that identify the process that builds an entry.
const HOLDER: &str = ".lock";
/// Longest text of such a file that is read.
const LONGEST_HOLDER: u64 = 200;
/// The cache of the whole machine, unless `PEERBAR_SYSTEM_CACHE` names another one.
const SYSTEM: &str = "/var/cache/peerbar";
const DAY: Duration = Duration::from_secs(24 * 3600);
const LOCK_PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// Hexadecimal digits of a key.
const KEY_DIGITS: usize = 16;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A Debian tree and its manifest.
    Root,
    /// Packages beyond those of the root, and their versions.
    Packages,
    /// A kernel that is unpacked.
    Kernel,
    /// An initramfs.
    Initramfs,
    /// Modules built for a kernel.
    Modules,
    /// All modules of a user's kernel, and their index.
    ModuleTree,
    /// The properties of a QEMU.
    Probe,
    /// A kernel built from source.
    BuiltKernel,
    /// The base for building the next state of a kernel's source.
    KernelWork,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Root,
        Self::Packages,
        Self::Kernel,
        Self::Initramfs,
        Self::Modules,
        Self::ModuleTree,
        Self::Probe,
        Self::BuiltKernel,
        Self::KernelWork,
    ];

    fn prefix(self) -> &'static str {
        match self {
            Self::Root => "root-",
            Self::Packages => "packages-",
            Self::Kernel => "kernel-",
            Self::Initramfs => "initramfs-",
            Self::Modules => "modules-",
            Self::ModuleTree => "module-tree-",
            Self::Probe => "qemu-",
            Self::BuiltKernel => "built-kernel-",
            Self::KernelWork => "kernel-work-",
        }
    }

    /// Returns its name for messages.
    pub(crate) fn word(self) -> &'static str {
        self.prefix().trim_end_matches('-')
    }

    /// Returns `true` if it takes seconds to build, and no network.
    pub(crate) fn is_quickly_built(self) -> bool {
        match self {
            Self::Root | Self::Packages | Self::BuiltKernel | Self::KernelWork => false,
            Self::Kernel | Self::Initramfs | Self::Modules | Self::ModuleTree | Self::Probe => true,
        }
    }

    /// Returns the time for which an unused entry is kept.
    pub(crate) fn lifetime(self) -> Duration {
        if self.is_quickly_built() {
            DAY
        } else {
            30 * DAY
        }
    }

    /// Returns the kind of the entry with this name, or `None` if it is not an entry.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let is_key = |key: &str| {
            key.len() == KEY_DIGITS && key.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        Self::ALL
            .into_iter()
            .find(|kind| name.strip_prefix(kind.prefix()).is_some_and(is_key))
    }
}

/// The cache folder.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
    /// A read-only cache over which `dir` takes precedence.
    below: Option<PathBuf>,
    stop: Option<Arc<OwnedFd>>,
    /// The marks of the entries that were returned, by their paths.
    used: Arc<Mutex<BTreeMap<PathBuf, File>>>,
}

impl Cache {
    /// Opens the user's cache: `$PEERBAR_CACHE`, otherwise `$XDG_CACHE_HOME/peerbar`, otherwise
    /// `~/.cache/peerbar`. Makes it if it is missing. It lies over the machine's cache,
    /// `$PEERBAR_SYSTEM_CACHE` or by default `/var/cache/peerbar`, if that exists.
    ///
    /// # Errors
    /// [`ImageError::NoCacheDir`] if no variable is set, and those of [`Cache::at`].
    pub fn open() -> Result<Self, ImageError> {
        let set = |name| {
            env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let dir = set("PEERBAR_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("peerbar")))
            .or_else(|| set("HOME").map(|dir| dir.join(".cache/peerbar")))
            .ok_or(ImageError::NoCacheDir)?;
        let named = set("PEERBAR_SYSTEM_CACHE");
        let system = named.as_deref().unwrap_or(Path::new(SYSTEM));
        let cache = Self::at(&dir)?.over(system);
        let is_itself = system
            .canonicalize()
            .is_ok_and(|system| system == cache.dir);
        if cache.below.is_none() && !is_itself && (named.is_some() || system.exists()) {
            log::warn!(
                "{} is not used: it is not a folder that only root and this user can write to, or its path is not UTF-8",
                system.display()
            );
        }
        Ok(cache)
    }

    /// Lays the cache over another one, whose entries are used and never changed. Ignores a folder
    /// that is missing, or that a user other than this one and root can write, because its programs
    /// would run with this user's rights. Also ignores a folder whose path is not UTF-8.
    #[must_use]
    pub fn over(self, below: &Path) -> Self {
        let below = below.canonicalize().ok();
        let below = below
            .filter(|below| *below != self.dir && check_utf8(below).is_ok() && is_trusted(below));
        Self { below, ..self }
    }

    /// Returns the folder of the cache over which this one lies.
    #[must_use]
    pub fn below(&self) -> Option<&Path> {
        self.below.as_deref()
    }

    /// Opens the cache in `dir`, and makes it if it is missing.
    ///
    /// # Errors
    /// [`ImageError::CacheNotUtf8`], and [`ImageError::Io`] if the folder cannot be made.
    pub fn at(dir: &Path) -> Result<Self, ImageError> {
        let whole = std::path::absolute(dir).map_err(io_error("find", dir))?;
        check_utf8(&whole)?;
        fs::create_dir_all(dir).map_err(io_error("create", dir))?;
        let dir = dir.canonicalize().map_err(io_error("find", dir))?;
        check_utf8(&dir)?;
        Ok(Self {
            dir,
            below: None,
            stop: None,
            used: Arc::default(),
        })
    }

    /// Makes long work end with [`ImageError::Stopped`], and leave nothing behind, once `stop` is
    /// readable.
    #[must_use]
    pub fn stopped_by(self, stop: OwnedFd) -> Self {
        Self {
            stop: Some(Arc::new(stop)),
            ..self
        }
    }

    /// Returns the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Returns `true` if there is an entry with this kind and key.
    pub(crate) fn has(&self, kind: Kind, key: &str) -> bool {
        let name = name_of(kind, key);
        self.folders().any(|folder| folder.join(&name).exists())
    }

    /// Returns this cache's folder, then that of the cache below.
    pub(crate) fn folders(&self) -> impl Iterator<Item = &Path> {
        [Some(self.path()), self.below()].into_iter().flatten()
    }

    /// Returns the path of a file without the folder of its cache: caches may be moved.
    pub(crate) fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        let inside = self
            .folders()
            .find_map(|folder| path.strip_prefix(folder).ok());
        inside.unwrap_or(path)
    }

    /// Identifies the state of a file without reading it. That of an entry is its name, which has
    /// the hash of its inputs: its time of change is the time of its last use.
    pub(crate) fn stamp(&self, path: &Path) -> Result<String, ImageError> {
        let name = self.relative(path).to_str();
        match name.filter(|name| Kind::of(name).is_some()) {
            Some(name) => Ok(name.to_owned()),
            None => stamp(path),
        }
    }

    /// Returns the path at which the entry with this kind and key is built.
    pub(crate) fn path_of(&self, kind: Kind, key: &str) -> PathBuf {
        self.dir.join(name_of(kind, key))
    }

    /// Returns the entry with this kind and key, or `None` if it is missing.
    pub(crate) fn known(&self, kind: Kind, key: &str) -> Result<Option<PathBuf>, ImageError> {
        let path = self.path_of(kind, key);
        if self.is_there(&path, Removal::Possible)? {
            return Ok(Some(path));
        }
        let below = self.below().map(|below| below.join(name_of(kind, key)));
        // An entry that cannot be opened counts as missing.
        let is_used = |path: &PathBuf| self.is_there(path, Removal::Possible).unwrap_or(false);
        Ok(below.filter(is_used))
    }

    /// Returns the entry with this kind and key. If it is missing, `build` creates it at the path
    /// that it gets, while no other process builds it. `build` must not request another entry.
    pub(crate) fn entry(
        &self,
        kind: Kind,
        key: &str,
        build: impl FnOnce(&Path, &BuildLock) -> Result<(), ImageError>,
    ) -> Result<PathBuf, ImageError> {
        if let Some(path) = self.known(kind, key)? {
            return Ok(path);
        }
        let path = self.path_of(kind, key);
        let lock = self.lock_entry(&name_of(kind, key))?;
        if self.is_there(&path, Removal::Excluded)? {
            return Ok(path);
        }
        let work = tempfile::Builder::new()
            .prefix(WORK_PREFIX)
            .tempdir_in(&self.dir)
            .map_err(io_error("create a work folder in", &self.dir))?;
        let made = work.path().join("entry");
        build(&made, &lock)?;
        persist(&made).map_err(io_error("write", &made))?;
        let renamed = fs::rename(&made, &path);
        // Two processes may have built it, if one of them was killed and a child of that process
        // continued.
        if !self.is_there(&path, Removal::Excluded)? {
            renamed.map_err(io_error("create", &path))?;
        }
        Ok(path)
    }

    /// Marks the entry that contains the file at `path` as used, if there is one: the user may name
    /// a kernel in the cache.
    ///
    /// # Errors
    /// [`ImageError::Io`] if the entry cannot be opened.
    pub fn mark_used(&self, path: &Path) -> Result<(), ImageError> {
        let path = path.canonicalize().map_err(io_error("find", path))?;
        for folder in self.folders() {
            let inside = path.strip_prefix(folder).ok();
            let entry = inside.and_then(|inside| inside.components().next());
            let name = entry.and_then(|entry| entry.as_os_str().to_str());
            if let Some(name) = name.filter(|name| Kind::of(name).is_some()) {
                self.is_there(&folder.join(name), Removal::Possible)?;
            }
        }
        Ok(())
    }

    /// Keeps the marks of the entries in use when this process becomes another program (execve(2)).
    ///
    /// # Errors
    /// [`ImageError::Io`] if a mark cannot be kept.
    pub fn keep_marks_at_exec(&self) -> Result<(), ImageError> {
        for (path, mark) in self.used.lock().iter() {
            fcntl_setfd(mark, FdFlags::empty())
                .map_err(|errno| io_error("keep in use", path)(errno.into()))?;
        }
        Ok(())
    }

    /// Returns `true` if the entry exists. It is then marked as used, and counts as used today.
    fn is_there(&self, path: &Path, removal: Removal) -> Result<bool, ImageError> {
        let Some(entry) = entry_use::mark(path, removal).map_err(io_error("open", path))? else {
            return Ok(false);
        };
        // A cache that another user owns works too, so a failure to record the use is ignored.
        let _ = entry.set_modified(SystemTime::now());
        let mut used = self.used.lock();
        used.insert(path.to_path_buf(), entry);
        Ok(true)
    }

    /// Waits for the right to remove entries: until nothing is built.
    pub(crate) fn lock(&self) -> Result<BuildLock, ImageError> {
        let lock = self.open_lock()?;
        lock.take(&lock.whole, Exclusive, || {
            let builds = self.builds();
            match builds.is_empty() {
                true => format!("waiting for another build in {}", self.dir.display()),
                false => format!("waiting for {}", builds.join(" and for ")),
            }
        })?;
        Ok(lock)
    }

    /// Waits for the right to build the entry of this name. Without another build, leftovers are
    /// removed first.
    fn lock_entry(&self, name: &str) -> Result<BuildLock, ImageError> {
        let mut lock = self.open_lock()?;
        if lock.try_take(&lock.whole, Exclusive)? {
            self.sweep(&lock)?;
        }
        lock.take(&lock.whole, Shared, || {
            format!("waiting for a removal in {}", self.dir.display())
        })?;
        let path = self.dir.join(format!("{WORK_PREFIX}{name}{HOLDER}"));
        let file = open_or_create(&path)?;
        lock.take(&file, Exclusive, || waiting_for(name, &path))?;
        let entry = lock.entry.insert(HeldEntry {
            _lock: None,
            file,
            path,
        });
        entry.name_holder()?;
        Ok(lock)
    }

    /// Waits for the lock of `folder`, open at `path`, in which the states of one source are built
    /// one after the other. A file in it names this process.
    pub(crate) fn lock_work(&self, folder: File, path: &Path) -> Result<BuildLock, ImageError> {
        let mut lock = self.open_lock()?;
        let named = path.join(HOLDER);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        lock.take(&folder, Exclusive, || waiting_for(&name, &named))?;
        // Its previous owner may have removed the folder.
        fs::create_dir_all(path).map_err(io_error("create", path))?;
        let file = open_or_create(&named)?;
        let entry = lock.entry.insert(HeldEntry {
            _lock: Some(folder),
            file,
            path: named,
        });
        entry.name_holder()?;
        Ok(lock)
    }

    fn open_lock(&self) -> Result<BuildLock, ImageError> {
        let path = self.dir.join(LOCK);
        Ok(BuildLock {
            whole: open_or_create(&path)?,
            path,
            entry: None,
            stop: self.stop.clone(),
        })
    }

    /// Returns the entries that are being built, each with its process.
    fn builds(&self) -> Vec<String> {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let build = |file: fs::DirEntry| {
            let name = file.file_name().into_string().ok()?;
            let entry = name.strip_prefix(WORK_PREFIX)?.strip_suffix(HOLDER)?;
            Some(format!("{entry}, which {} builds", holder(&file.path())?))
        };
        files.filter_map(build).collect()
    }
}

/// Returns the name of an entry.
fn name_of(kind: Kind, key: &str) -> String {
    format!("{}{key}", kind.prefix())
}

/// Checks that programs can take the path of a cache as text.
fn check_utf8(path: &Path) -> Result<(), ImageError> {
    match path.to_str() {
        Some(_) => Ok(()),
        None => Err(ImageError::CacheNotUtf8 {
            path: path.to_owned(),
        }),
    }
}

/// Returns `true` if only root and this user can write a folder.
fn is_trusted(folder: &Path) -> bool {
    const OTHERS: u32 = 0o022;
    let own = rustix::process::geteuid().as_raw();
    let metadata = folder.metadata().ok();
    metadata.is_some_and(|folder| {
        folder.is_dir() && [0, own].contains(&folder.uid()) && folder.mode() & OTHERS == 0
    })
}

fn open_or_create(path: &Path) -> Result<File, ImageError> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .read(true)
        .open(path)
        .map_err(io_error("open", path))
}

/// Returns the reason for waiting for the entry `name`, whose builder has recorded itself in the
/// file at `path`.
fn waiting_for(name: &str, path: &Path) -> String {
    let holder = holder(path).unwrap_or_else(|| "another process".to_owned());
    format!("waiting for {name}, which {holder} builds")
}

/// Returns the process that has recorded itself in the file at `path`.
fn holder(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(LONGEST_HOLDER).read_to_string(&mut text).ok()?;
    let text = text.replace(char::is_control, "");
    let (process, command) = text.split_once(' ')?;
    Some(format!("process {process} ({command})"))
}

/// The right to build an entry, or to remove entries.
pub(crate) struct BuildLock {
    /// Shared with other builds, or alone for a removal.
    whole: File,
    path: PathBuf,
    /// The entry that is built.
    entry: Option<HeldEntry>,
    stop: Option<Arc<OwnedFd>>,
}

/// A file that identifies the builder of an entry. It is removed when this is dropped.
struct HeldEntry {
    /// The lock, if it is not on the file.
    _lock: Option<File>,
    file: File,
    path: PathBuf,
}

impl HeldEntry {
    /// Writes this process into it.
    fn name_holder(&mut self) -> Result<(), ImageError> {
        let mut words = env::args_os().map(|word| word.to_string_lossy().into_owned());
        let program = words.next().unwrap_or_default();
        let program = Path::new(&program).file_name().unwrap_or_default();
        let program = program.to_string_lossy().into_owned();
        let command: Vec<String> = std::iter::once(program).chain(words).collect();
        let text = format!("{} {}", std::process::id(), command.join(" "));
        let written = self
            .file
            .set_len(0)
            .and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(io_error("write", &self.path))
    }
}

impl Drop for HeldEntry {
    fn drop(&mut self) {
        // A remaining file names a process that is gone, and is read only while it is locked.
        let _ = fs::remove_file(&self.path);
    }
}

impl BuildLock {
    fn try_take(&self, file: &File, how: FlockOperation) -> Result<bool, ImageError> {
        match flock(file, how) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(io_error("lock", &self.path)(errno.into())),
        }
    }

    /// Waits for a lock that `how` does not wait for. Tells the user the `reason`.
    fn take(
        &self,
        file: &File,
        how: FlockOperation,
        reason: impl FnOnce() -> String,
    ) -> Result<(), ImageError> {
        if self.try_take(file, how)? {
            return Ok(());
        }
        say(&reason());
        // A file lock cannot be polled together with a descriptor, so it is retried periodically.
        while !self.try_take(file, how)? {
            if self.wait_for_stop(&[], Some(&LOCK_PAUSE))? {
                return Err(ImageError::Stopped);
            }
        }
        Ok(())
    }

    /// Waits until the work must stop, one of `others` is ready, or `limit` passes. Returns `true`
    /// if the work must stop.
    pub(crate) fn wait_for_stop(
        &self,
        others: &[BorrowedFd<'_>],
        limit: Option<&Timespec>,
    ) -> Result<bool, ImageError> {
        let stop = self.stop.iter().map(|stop| stop.as_fd());
        let mut fds: Vec<PollFd<'_>> = stop
            .chain(others.iter().copied())
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        retry_on_intr(|| poll(&mut fds, limit))
            .map_err(|errno| io_error("wait next to", &self.path)(errno.into()))?;
        let first = fds.first().filter(|_| self.stop.is_some());
        Ok(first.is_some_and(|stop| !stop.revents().is_empty()))
    }

    /// Returns the lock as an (empty) standard input of a child: if this process is killed, the
    /// lock stays taken until the last of its children has ended too, so that no other build
    /// removes the work folder of a live writer.
    pub(crate) fn stdin(&self) -> Result<File, ImageError> {
        self.whole
            .try_clone()
            .map_err(io_error("share", &self.path))
    }
}

/// Returns the hash that names an entry made of `parts`.
pub(crate) fn key<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        let part = part.as_ref();
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.finalize()
        .iter()
        .take(KEY_DIGITS / 2)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Identifies the state of a file without reading it: path, size in bytes, time of change.
pub(crate) fn stamp(path: &Path) -> Result<String, ImageError> {
    let path = path.canonicalize().map_err(io_error("find", path))?;
    let metadata = path.metadata().map_err(io_error("read", &path))?;
    Ok(format!(
        "{} {} {}.{:09}",
        path.display(),
        metadata.size(),
        metadata.mtime(),
        metadata.mtime_nsec()
    ))
}

/// Makes a file, or a whole folder, reach the disk: after a power loss an incomplete entry with its
/// final name would pass for a complete one.
fn persist(made: &Path) -> io::Result<()> {
    let file = fs::File::open(made)?;
    match file.metadata()?.is_dir() {
        true => Ok(rustix::fs::syncfs(&file)?),
        false => file.sync_all(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::ffi::OsStr;
    use std::io::Read;
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Command, Stdio};
    use std::sync::mpsc;

    const KEY: &str = "0123456789abcdef";
    const ENTRY: &str = "kernel-0123456789abcdef";

    fn cache() -> (tempfile::TempDir, Cache) {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(&dir.path().join("deep/cache")).unwrap();
        (dir, cache)
    }

    fn names(cache: &Cache) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(cache.path())
            .unwrap()
            .map(|found| found.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn cache_is_in_a_folder_that_is_utf8() {
        let (dir, cache) = cache();
        let other = dir.path().join(OsStr::from_bytes(b"c\xff"));
        let error = Cache::at(&other).unwrap_err().to_string();
        assert!(error.ends_with("set PEERBAR_CACHE to another folder"));
        assert!(!other.exists());
        fs::create_dir(&other).unwrap();
        assert_eq!(cache.over(&other).below(), None);
    }

    #[test]
    fn entry_is_built_once() {
        let (_dir, cache) = cache();
        let builds = Cell::new(0);
        let build = |path: &Path, _: &BuildLock| {
            builds.set(builds.get() + 1);
            fs::write(path, "made").map_err(io_error("write", path))
        };
        let first = cache.entry(Kind::Kernel, KEY, build).unwrap();
        let second = cache.entry(Kind::Kernel, KEY, build).unwrap();
        assert_eq!((first, builds.get()), (second, 1));
        assert_eq!(names(&cache), [ENTRY, "lock"]);
    }

    #[test]
    fn failed_build_leaves_nothing() {
        let (_dir, cache) = cache();
        let failed = cache.entry(Kind::Kernel, KEY, |path, _| {
            fs::create_dir(path).unwrap();
            fs::write(path.join("half"), "").unwrap();
            Err(ImageError::NoMmdebstrap)
        });
        assert!(matches!(failed, Err(ImageError::NoMmdebstrap)));
        assert_eq!(names(&cache), ["lock"]);
    }

    fn age(path: &Path, age: Duration) {
        let used = SystemTime::now() - age;
        File::open(path).unwrap().set_modified(used).unwrap();
    }

    fn make_empty(path: &Path, _: &BuildLock) -> Result<(), ImageError> {
        fs::write(path, "").map_err(io_error("write", path))
    }

    #[test]
    fn build_removes_only_dead_work_and_unused_entries() {
        let (_dir, cache) = cache();
        let dead = cache.path().join(format!("{WORK_PREFIX}x/entry/root"));
        fs::create_dir_all(dead).unwrap();
        let root = "root-fedcba9876543210";
        let unused = "initramfs-fedcba9876543210";
        let used = "initramfs-00000000fedcba98";
        let foreign = ["root-of-all-evil", "tax-return.pdf"];
        for name in [root, unused, used, foreign[0], foreign[1]] {
            fs::write(cache.path().join(name), "").unwrap();
            age(&cache.path().join(name), 40 * DAY);
        }
        age(&cache.path().join(root), 29 * DAY);
        cache
            .entry(Kind::Initramfs, "00000000fedcba98", |_, _| {
                Err(ImageError::NoMmdebstrap)
            })
            .unwrap();
        cache.entry(Kind::Kernel, KEY, make_empty).unwrap();
        assert_eq!(
            names(&cache),
            [used, ENTRY, "lock", root, foreign[0], foreign[1]]
        );
    }

    #[test]
    fn second_builder_waits_and_finds_the_entry() {
        let (_dir, cache) = cache();
        let other = cache.clone();
        let (started, start) = mpsc::channel();
        let builder = std::thread::spawn(move || {
            other.entry(Kind::Kernel, KEY, |path, _| {
                started.send(()).unwrap();
                fs::write(path, "first").map_err(io_error("write", path))
            })
        });
        start.recv().unwrap();
        let path = cache
            .entry(Kind::Kernel, KEY, |path, _| {
                fs::write(path, "second").map_err(io_error("write", path))
            })
            .unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "first");
        builder.join().unwrap().unwrap();
    }

    #[test]
    fn marks_outlive_their_process_in_the_program_that_it_becomes() {
        let (_dir, cache) = cache();
        let path = cache.entry(Kind::Kernel, KEY, make_empty).unwrap();
        cache.keep_marks_at_exec().unwrap();
        let mut program = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        drop(cache);
        assert!(entry_use::exclude(&path).unwrap().is_none());
        drop(program.stdin.take());
        program.wait().unwrap();
    }

    #[test]
    fn entries_are_built_at_the_same_time() {
        let (_dir, cache) = cache();
        let other = cache.clone();
        cache
            .entry(Kind::Kernel, KEY, |path, lock| {
                other.entry(Kind::Initramfs, KEY, make_empty).unwrap();
                make_empty(path, lock)
            })
            .unwrap();
        assert_eq!(names(&cache).len(), 3);
    }

    #[test]
    fn who_builds_an_entry_is_named() {
        let (_dir, cache) = cache();
        cache
            .entry(Kind::Kernel, KEY, |path, lock| {
                let builds = cache.builds();
                let expected = format!("{ENTRY}, which process {} (", std::process::id());
                assert!(builds[0].starts_with(&expected), "{builds:?}");
                make_empty(path, lock)
            })
            .unwrap();
        assert!(cache.builds().is_empty());
        assert_eq!(holder(Path::new("/no/such")), None);
    }

    #[test]
    fn entry_of_the_cache_below_is_used_and_not_changed() {
        let (_dir, below) = cache();
        let (_other, cache) = cache();
        let cache = cache.over(below.path());
        let known = below.entry(Kind::Kernel, KEY, make_empty).unwrap();
        let before = names(&below);
        age(&known, DAY);
        let used = cache.entry(Kind::Kernel, KEY, |_, _| panic!("it is there"));
        assert_eq!(used.unwrap(), known);
        assert!(cache.has(Kind::Kernel, KEY));
        assert_eq!(cache.relative(&known.join("x")), Path::new(ENTRY).join("x"));
        // Another key means another entry, which the cache above gets.
        let other = "00000000fedcba98";
        assert!(!cache.has(Kind::Kernel, other));
        let made = cache.entry(Kind::Kernel, other, make_empty).unwrap();
        assert!(made.starts_with(cache.path()));
        assert_eq!(names(&below), before);
        // A cache that others can write is not used.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(below.path(), mode).unwrap();
        let untrusting = Cache::at(cache.path()).unwrap().over(below.path());
        assert!(!untrusting.has(Kind::Kernel, KEY));
        let itself = Cache::at(cache.path()).unwrap().over(cache.path());
        assert_eq!(itself.below(), None);
    }

    #[test]
    fn lock_outlives_its_builder_in_a_child() {
        let (_dir, cache) = cache();
        let lock = cache.lock().unwrap();
        let mut child = lock.stdin().unwrap();
        drop(lock);
        let other = File::open(cache.path().join(LOCK)).unwrap();
        assert_eq!(
            flock(&other, FlockOperation::NonBlockingLockExclusive),
            Err(Errno::WOULDBLOCK)
        );
        assert_eq!(child.read(&mut [0; 8]).unwrap(), 0);
        drop(child);
        assert_eq!(
            flock(&other, FlockOperation::NonBlockingLockExclusive),
            Ok(())
        );
    }

    #[test]
    fn keys_distinguish_parts() {
        assert_eq!(key(["a", "b"]).len(), 16);
        assert_ne!(key(["ab", "c"]), key(["a", "bc"]));
        assert_eq!(key(["ab", "c"]), key(["ab", "c"]));
    }
}
