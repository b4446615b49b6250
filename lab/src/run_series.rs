//! The runs that one process makes: they have a common mark, and none is removed while the process
//! may make more.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::run_file;

/// Start of the name of a series' lock in the folder of runs.
const LOCK: &str = ".series-";
/// Age of a lock's file from which it is a leftover, if no process holds it. A younger one may be
/// about to be locked.
const LEFTOVER: Duration = Duration::from_secs(60);

/// The runs of this process.
#[derive(Debug)]
pub struct RunSeries {
    id: String,
    pub(crate) path: PathBuf,
    /// A shared lock of the file at `path`, where the file system has locks.
    _lock: Option<File>,
}

impl RunSeries {
    /// One that begins now, with its runs in the folder `runs`.
    pub(crate) fn begin(runs: &Path) -> Self {
        let id = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let path = lock_path(runs, &id);
        let made = fs::create_dir_all(runs).and_then(|()| File::create_new(&path));
        let lock = made.ok().filter(|file| {
            let locked = flock(file, FlockOperation::NonBlockingLockShared);
            locked.is_ok()
        });
        Self {
            id,
            path,
            _lock: lock,
        }
    }

    /// Returns its mark, which no other series has.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns `true` if the process that makes the series `id` in the folder `runs` may make more.
    pub(crate) fn is_at_work(runs: &Path, id: &str) -> bool {
        is_held(&lock_path(runs, id))
    }

    /// Removes the lock at `path`, if it is one of a process that was killed.
    pub(crate) fn remove_leftover(path: &Path) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let changed = fs::metadata(path).and_then(|found| found.modified());
        let age = changed.ok().and_then(|changed| changed.elapsed().ok());
        let is_old = age.is_some_and(|age| age > LEFTOVER);
        if name.starts_with(LOCK) && is_old && !is_held(path) {
            remove(path);
        }
    }
}

impl Drop for RunSeries {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn lock_path(runs: &Path, id: &str) -> PathBuf {
    runs.join(format!("{LOCK}{id}"))
}

fn is_held(path: &Path) -> bool {
    let excluded = |file: File| {
        flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
    };
    run_file::open(path).is_ok_and(excluded)
}

/// A file that stays is a leftover, which a later run removes.
fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        log::debug!("cannot remove {}: {error}", path.display());
    }
}
