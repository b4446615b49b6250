//! The folder for a run's sockets, gone with the run.
//!
//! A process that is killed outright cannot remove its folder. The next run does: it takes the lock
//! in the folder, which ended with the process that held it.

use std::fs::{self, DirEntry, File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use tempfile::TempDir;

use crate::qemu::{FOREIGN, SCRATCH, Sockets};
use crate::temporary_folder::temporary_folder;

const PREFIX: &str = "peerbar-run-";
const LOCK: &str = "lock";
/// First characters of the names of keys that are gone with the run.
pub const SSH: &str = "ssh-";

/// A folder for sockets. On drop, it is removed with its contents.
pub struct SocketFolder {
    folder: TempDir,
    _lock: File,
}

impl SocketFolder {
    /// Makes one in the folder for temporary files, and removes those that killed runs have left
    /// there.
    pub fn create() -> anyhow::Result<Self> {
        let parent = Self::parent()?;
        sweep(&parent);
        Self::create_in(&parent)
            .with_context(|| format!("cannot make a folder for sockets in {}", parent.display()))
    }

    /// Returns the folder in which it is made.
    ///
    /// # Errors
    /// No folder or socket can be made there.
    pub(crate) fn parent() -> anyhow::Result<PathBuf> {
        let parent = temporary_folder()?;
        Sockets::check_folder(&parent)?;
        Ok(parent)
    }

    fn create_in(parent: &Path) -> io::Result<Self> {
        // A process that reaches QEMU's monitor can do all that QEMU can.
        let private = Permissions::from_mode(0o700);
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix(PREFIX).permissions(private);
        let folder = builder.tempdir_in(parent)?;
        // The lock gets its name once it is held, so no other process finds it free too early.
        let unnamed = folder.path().join("lock.new");
        let lock = File::create_new(&unnamed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        fs::rename(&unnamed, folder.path().join(LOCK))?;
        Ok(Self {
            folder,
            _lock: lock,
        })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the abandoned folders in `parent`. One that cannot be removed does no harm.
fn sweep(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(is_ours) {
        if let Err(error) = remove_abandoned(&entry.path()) {
            log::debug!("{} stays: {error}", entry.path().display());
        }
    }
}

fn is_ours(entry: &DirEntry) -> bool {
    let named = entry.file_name().to_string_lossy().starts_with(PREFIX);
    let ours = |metadata: fs::Metadata| metadata.is_dir() && metadata.uid() == geteuid().as_raw();
    named && entry.metadata().is_ok_and(ours)
}

/// Removes a run's sockets, its scratch images, its keys, the folders of other projects' servers,
/// its lock and its folder, unless the lock is held; a folder with anything else in it stays.
fn remove_abandoned(folder: &Path) -> io::Result<()> {
    let lock = File::open(folder.join(LOCK))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_image = entry
            .path()
            .extension()
            .is_some_and(|extension| extension == SCRATCH);
        let name = entry.file_name();
        let is_named = |prefix: &str| name.to_string_lossy().starts_with(prefix);
        let is_key = is_named(SSH);
        if entry.file_type()?.is_dir() && is_named(FOREIGN) {
            fs::remove_dir_all(entry.path())?;
        } else if entry.file_type()?.is_socket() || is_image || is_key || name == LOCK {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_dir(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Returns the folder of a run that was killed, with a socket in it.
    fn killed(parent: &Path) -> PathBuf {
        let SocketFolder { folder, _lock } = SocketFolder::create_in(parent).unwrap();
        let path = folder.keep();
        UnixListener::bind(path.join("report.sock")).unwrap();
        fs::write(path.join("disk0.img"), "").unwrap();
        fs::write(path.join("ssh-key"), "").unwrap();
        let foreign = path.join("foreign-dev0");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("notes"), "of the server").unwrap();
        path
    }

    #[test]
    fn folder_is_its_owner_s_alone() {
        let parent = tempfile::tempdir().unwrap();
        let folder = SocketFolder::create_in(parent.path()).unwrap();
        let mode = folder.path().metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_folder_goes_with_its_run() {
        let parent = tempfile::tempdir().unwrap();
        let folder = SocketFolder::create_in(parent.path()).unwrap();
        let path = folder.path().to_owned();
        assert!(path.is_dir());
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_killed_run_left_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let dead = killed(parent.path());
        let alive = SocketFolder::create_in(parent.path()).unwrap();
        sweep(parent.path());
        assert!(!dead.exists());
        assert!(alive.path().join(LOCK).exists());
    }

    #[test]
    fn what_is_not_a_run_s_stays() {
        let parent = tempfile::tempdir().unwrap();
        let unlocked = parent.path().join("peerbar-run-x");
        let other = parent.path().join("peerbar-cache");
        fs::create_dir(&unlocked).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join(LOCK), "").unwrap();
        let used = killed(parent.path());
        fs::write(used.join("notes"), "mine").unwrap();
        sweep(parent.path());
        assert!(unlocked.exists() && other.join(LOCK).exists());
        assert_eq!(fs::read_to_string(used.join("notes")).unwrap(), "mine");
    }
}
