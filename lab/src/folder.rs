//! The folder that a run leaves: a marker first, one log for each source, the verdict last.
//!
//! With `--share-rw` the guest may write there, too. So files are made relative to a descriptor of
//! the folder, and never through a link.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, flock, fstat, mkdirat, open, openat, stat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;
use serde::Serialize;

use crate::started::{STARTED, Started, Versions};
use crate::utc::UtcTime;

/// QEMU's own output in a run's folder.
pub const QEMU_LOG: &str = "qemu.log";
/// Name of the link to the newest run.
pub const LATEST: &str = "latest";

/// A run's folder.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    /// The folder itself, with a shared lock during the run ([`crate::runs`]) if its file system
    /// has locks.
    directory: Arc<File>,
    /// The series that it belongs to.
    series: Option<String>,
}

/// Returns the path in a run's `folder` of the flight record of the device with that name.
pub fn flight_record(folder: &Path, device: &str) -> PathBuf {
    folder.join(format!("{device}.flight"))
}

/// A link in a run's folder, removed when dropped.
#[derive(Debug)]
pub struct SocketLink {
    directory: Arc<File>,
    name: String,
}

impl Drop for SocketLink {
    fn drop(&mut self) {
        if let Err(error) = unlinkat(&self.directory, &self.name, AtFlags::empty()) {
            log::debug!("{} stays: {error}", self.name);
        }
    }
}

impl Folder {
    /// Links to a socket as `name`: a run's folder may be too deep for the address of a socket.
    pub fn link(&self, name: &str, socket: &Path) -> anyhow::Result<SocketLink> {
        symlinkat(socket, &self.directory, name)
            .with_context(|| format!("cannot make the link {}", self.path.join(name).display()))?;
        Ok(SocketLink {
            directory: Arc::clone(&self.directory),
            name: name.to_owned(),
        })
    }

    /// Makes `runs/TIME-scenario` and points `runs/latest` at it.
    pub fn create(runs: &Path, scenario: &str, now: SystemTime) -> anyhow::Result<Self> {
        fs::create_dir_all(runs)
            .with_context(|| format!("cannot make the folder {}", runs.display()))?;
        let stem = format!("{}-{scenario}", UtcTime::from(now).compact());
        let name = unused(runs, &stem)
            .with_context(|| format!("cannot make a folder in {}", runs.display()))?;
        Self::made(runs, &name)
    }

    /// Makes `runs/name`, which must not exist, and points `runs/latest` at it.
    pub(crate) fn named(runs: &Path, name: &str) -> anyhow::Result<Self> {
        let path = runs.join(name);
        fs::create_dir_all(runs)
            .and_then(|()| fs::create_dir(&path))
            .with_context(|| format!("cannot make the folder {}", path.display()))?;
        Self::made(runs, name)
    }

    /// Makes a folder in this one, for the guest `name` of several.
    pub(crate) fn of_guest(&self, name: &str) -> anyhow::Result<Self> {
        let path = self.path.join(name);
        mkdirat(&self.directory, name, Mode::from_raw_mode(0o777))
            .with_context(|| format!("cannot make the folder {}", path.display()))?;
        let folder = Self::opened(path)?;
        Ok(Self {
            series: self.series.clone(),
            ..folder
        })
    }

    fn made(runs: &Path, name: &str) -> anyhow::Result<Self> {
        point(runs, name)
            .with_context(|| format!("cannot link {}", runs.join(LATEST).display()))?;
        Self::opened(runs.join(name))
    }

    /// Returns the folder at `path`, which is there.
    pub(crate) fn opened(path: PathBuf) -> anyhow::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = open(&path, flags, Mode::empty())
            .with_context(|| format!("cannot open {}", path.display()))?;
        // A file system without locks has no marks of running runs.
        let _ = flock(&directory, FlockOperation::NonBlockingLockShared);
        Ok(Self {
            path,
            directory: Arc::new(directory.into()),
            series: None,
        })
    }

    /// Returns the folder of a run of that series.
    pub(crate) fn of_series(self, id: &str) -> Self {
        Self {
            series: Some(id.to_owned()),
            ..self
        }
    }

    /// Returns the series that it belongs to, as [`crate::run_series::RunSeries::id`].
    pub fn series(&self) -> Option<&str> {
        self.series.as_deref()
    }

    /// Writes the marker of a run that has started and, as long as there is no verdict, not ended.
    /// `scenario` is the original path of its scenario, if it has one: the paths in it are relative
    /// to that file.
    pub fn begin(&self, scenario: Option<&Path>, versions: Versions) -> anyhow::Result<()> {
        let scenario = scenario.map(std::path::absolute).transpose();
        let scenario = scenario.context("cannot tell where the scenario is")?;
        let started = Started {
            series: self.series.clone(),
            ..Started::now(scenario.as_deref(), versions)
        };
        self.write_json(STARTED, &started)
    }

    /// Removes all its contents, for another beginning.
    pub fn clear(&self) -> anyhow::Result<()> {
        let clear = || {
            for entry in fs::read_dir(&self.path)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    fs::remove_dir_all(entry.path())?;
                } else {
                    fs::remove_file(entry.path())?;
                }
            }
            io::Result::Ok(())
        };
        clear().with_context(|| format!("cannot clear {}", self.path.display()))
    }

    /// Returns `true` if it is `other` or lies below it, even if that has been moved.
    pub(crate) fn is_below(&self, other: &Path) -> io::Result<bool> {
        let other = stat(other)?;
        let mut folder = self.directory.try_clone()?;
        loop {
            let here = fstat(&folder)?;
            if (here.st_dev, here.st_ino) == (other.st_dev, other.st_ino) {
                return Ok(true);
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let parent = File::from(openat(&folder, "..", flags, Mode::empty())?);
            let above = fstat(&parent)?;
            if (above.st_dev, above.st_ino) == (here.st_dev, here.st_ino) {
                return Ok(false);
            }
            folder = parent;
        }
    }

    /// Returns a path that leads to it, also for children of this process, even if the original
    /// path now leads elsewhere (proc(5), `/proc/PID/fd`).
    pub(crate) fn anchored(&self) -> PathBuf {
        let (process, descriptor) = (std::process::id(), self.directory.as_raw_fd());
        format!("/proc/{process}/fd/{descriptor}").into()
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the new file `name` in it.
    pub fn file(&self, name: &str) -> anyhow::Result<File> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&self.directory, name, flags, Mode::from_raw_mode(0o666));
        let file =
            file.with_context(|| format!("cannot make {}", self.path.join(name).display()))?;
        Ok(file.into())
    }

    /// Opens the file `name` in it for appending, and creates it first if it is missing.
    pub fn append(&self, name: &str) -> anyhow::Result<File> {
        let path = self.path.join(name);
        let flags = OFlags::CREATE | OFlags::APPEND | OFlags::WRONLY;
        let flags = flags | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.directory, name, flags, Mode::from_raw_mode(0o666));
        let file = File::from(file.with_context(|| format!("cannot open {}", path.display()))?);
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        anyhow::ensure!(
            is_file,
            "{} is not a regular file: a guest may have replaced it",
            path.display()
        );
        Ok(file)
    }

    /// Writes `text` as the file `name`, in place of one that is there.
    pub fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        match unlinkat(&self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => {
                let path = self.path.join(name);
                return Err(error).with_context(|| format!("cannot replace {}", path.display()));
            }
        }
        let written = self.file(name)?.write_all(text.as_bytes());
        written.with_context(|| format!("cannot write {}", self.path.join(name).display()))
    }

    /// Writes `value` as the JSON file `name`.
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> anyhow::Result<()> {
        let text =
            serde_json::to_string_pretty(value).with_context(|| format!("cannot write {name}"))?;
        self.write(name, &(text + "\n"))
    }
}

/// Makes a folder named `stem`, or `stem-2` and so on where runs begin in the same second.
fn unused(runs: &Path, stem: &str) -> io::Result<String> {
    let mut name = stem.to_owned();
    for number in 2..=1000 {
        match fs::create_dir(runs.join(&name)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                name = format!("{stem}-{number}")
            }
            result => return result.map(|()| name),
        }
    }
    Err(io::Error::from(ErrorKind::AlreadyExists))
}

/// Replaces the link in one step, since another process may follow it.
fn point(runs: &Path, name: &str) -> io::Result<()> {
    let fresh = runs.join(format!(".{name}.link"));
    symlink(name, &fresh)?;
    fs::rename(&fresh, runs.join(LATEST)).inspect_err(|_| drop(fs::remove_file(&fresh)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_second_get_folders_of_their_own() {
        let runs = tempfile::tempdir().unwrap();
        let now = SystemTime::UNIX_EPOCH;
        let first = Folder::create(runs.path(), "demo", now).unwrap();
        let second = Folder::create(runs.path(), "demo", now).unwrap();
        assert_eq!(first.path(), runs.path().join("19700101T000000Z-demo"));
        assert_eq!(second.path(), runs.path().join("19700101T000000Z-demo-2"));
        let latest = fs::read_link(runs.path().join("latest")).unwrap();
        assert_eq!(latest, Path::new("19700101T000000Z-demo-2"));
    }

    #[test]
    fn nothing_is_overwritten() {
        let runs = tempfile::tempdir().unwrap();
        let folder = Folder::create(runs.path(), "demo", SystemTime::UNIX_EPOCH).unwrap();
        folder.file("console.log").unwrap();
        let error = folder.file("console.log").unwrap_err();
        assert!(error.to_string().starts_with("cannot make "), "{error}");
    }

    #[test]
    fn link_that_a_guest_plants_is_not_followed() {
        let runs = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let file = other.path().join("file");
        fs::write(&file, "mine").unwrap();
        let folder = Folder::create(runs.path(), "demo", SystemTime::UNIX_EPOCH).unwrap();
        let planted = folder.path().join("results.json");
        symlink(&file, &planted).unwrap();
        folder.write("results.json", "{}").unwrap();
        assert_eq!(fs::read_to_string(&planted).unwrap(), "{}");

        let link = folder.link("file", Path::new("/nowhere")).unwrap();
        fs::rename(folder.path(), runs.path().join("moved")).unwrap();
        symlink(other.path(), folder.path()).unwrap();
        folder.write("verdict", "passed").unwrap();
        folder.append("file").unwrap_err();
        fs::write(folder.anchored().join("brought"), "").unwrap();
        drop(link);
        folder.append("file").unwrap().write_all(b"1").unwrap();
        folder.append("file").unwrap().write_all(b"2").unwrap();
        assert_eq!(
            fs::read_to_string(runs.path().join("moved/file")).unwrap(),
            "12"
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
        assert!(!other.path().join("verdict").exists() && !other.path().join("brought").exists());
        assert!(runs.path().join("moved/brought").exists());
    }

    #[test]
    fn folder_is_below_those_that_it_is_moved_in() {
        let runs = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let folder = Folder::create(runs.path(), "demo", SystemTime::UNIX_EPOCH).unwrap();
        let is_below = |path: &Path| folder.is_below(path).unwrap();
        assert!(is_below(folder.path()) && is_below(runs.path()) && is_below(Path::new("/")));
        assert!(!is_below(other.path()));
        fs::create_dir(runs.path().join("sub")).unwrap();
        fs::rename(folder.path(), runs.path().join("sub/moved")).unwrap();
        symlink(other.path(), folder.path()).unwrap();
        assert!(is_below(runs.path()) && !is_below(other.path()));
    }

    #[test]
    fn guest_s_folder_is_in_the_run_s_and_not_the_latest() {
        let runs = tempfile::tempdir().unwrap();
        let run = Folder::named(runs.path(), "run").unwrap();
        let run = run.of_series("s");
        let guest = run.of_guest("left").unwrap();
        assert_eq!(
            (guest.path(), guest.series()),
            (&*run.path().join("left"), Some("s"))
        );
        guest.write("verdict", "passed").unwrap();
        let latest = fs::read_link(runs.path().join(LATEST)).unwrap();
        assert_eq!(latest, Path::new("run"));
        assert!(run.of_guest("left").is_err());
    }
}
