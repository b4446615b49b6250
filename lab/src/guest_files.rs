//! Files of the host in the guest: copied into the run's folder before the boot, and seen in the
//! guest's tools root.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow};
use thiserror::Error;

use crate::exit::Failure;

/// The folder of a run that has them, each at its path in the guest.
pub const FILES: &str = "files";

/// Folders that Debian has below `usr`, with links at the old paths. The guest's root is an
/// overlay, in which a folder hides a link with the same name.
const BELOW_USR: [&str; 4] = ["bin", "lib", "lib64", "sbin"];
/// Mount points of the guest, in which a file would be invisible.
pub(crate) const MOUNTED: [&str; 6] = ["dev", "host", "proc", "run", "sys", "tmp"];

/// A file or a folder of the host that the guest gets a copy of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestFile {
    host: PathBuf,
    guest: PathBuf,
    asked_by: String,
}

/// A path at which the guest cannot have a file.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum GuestPathError {
    /// It leaves the root, or names no file.
    #[error(
        "invalid path `{0}` of a file in the guest: expected one such as `usr/local/bin/x`, without `..`"
    )]
    NotPlain(String),
    /// A file there would be invisible.
    #[error("`{path}`: the guest mounts /{mounted} itself: choose another path, such as `opt/x`")]
    Mounted {
        /// The path.
        path: String,
        /// Its first folder.
        mounted: &'static str,
    },
}

impl GuestFile {
    /// Returns the file or folder `host` at the path `guest` of the guest's tools root, which the
    /// part `asked_by` of a scenario asks for.
    ///
    /// # Errors
    /// A path in the guest at which no file can be.
    pub fn new(
        host: impl Into<PathBuf>,
        guest: &str,
        asked_by: &str,
    ) -> Result<Self, GuestPathError> {
        Ok(Self {
            host: host.into(),
            guest: guest_path(guest)?,
            asked_by: asked_by.to_owned(),
        })
    }

    /// Returns its path in the guest, without the slash at the start.
    pub fn guest(&self) -> &Path {
        &self.guest
    }

    /// Checks that the host has it.
    ///
    /// # Errors
    /// The path, and the error of the system.
    pub fn exists(&self) -> anyhow::Result<()> {
        let host = self.host.display();
        let found = fs::metadata(&self.host).map(drop);
        found.with_context(|| {
            let asked_by = &self.asked_by;
            format!("{asked_by}: {host} cannot be read: make it, or correct the path")
        })
    }

    /// Copies it to its path below `folder`. Modes and links stay as they are, and so do holes.
    fn copy_below(&self, folder: &Path) -> anyhow::Result<()> {
        self.exists()?;
        self.stays_below(folder)?;
        let target = folder.join(&self.guest);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)
                .with_context(|| format!("cannot make {}", parent.display()))?;
        }
        let mut copy = Command::new("cp");
        copy.args(["--archive", "-H", "--reflink=auto", "--no-target-directory"]);
        // Else a link that is there would be written through.
        copy.arg("--remove-destination");
        copy.arg("--").args([&self.host, &target]);
        let done = copy.env("LC_ALL", "C").stdin(Stdio::null()).output();
        let done = done.context("cannot run cp")?;
        if done.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&done.stderr);
        let words = words.lines().next().unwrap_or_default().trim_end();
        let (asked_by, host) = (&self.asked_by, self.host.display());
        Err(anyhow!(
            "{asked_by}: {host} cannot be copied into the run's folder: {words}"
        ))
    }

    /// Rejects a path that leads out of `folder` through a link of an earlier file.
    fn stays_below(&self, folder: &Path) -> anyhow::Result<()> {
        let parent = self.guest.parent().unwrap_or(Path::new(""));
        let link = parent
            .ancestors()
            .find(|part| folder.join(part).is_symlink());
        match link {
            None => Ok(()),
            Some(link) => Err(anyhow!(
                "{}: {} in the guest is below {}, which is a link of another file: choose another path",
                self.asked_by,
                self.guest.display(),
                link.display()
            )),
        }
    }
}

/// Returns the path below the root, with the links of the root followed.
fn guest_path(text: &str) -> Result<PathBuf, GuestPathError> {
    let not_plain = || GuestPathError::NotPlain(text.to_owned());
    let mut path = PathBuf::new();
    for component in Path::new(text).components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => path.push(name),
            Component::ParentDir | Component::Prefix(_) => return Err(not_plain()),
        }
    }
    let first = path.components().next().ok_or_else(not_plain)?;
    let first = first.as_os_str();
    if path.components().count() == 1 && BELOW_USR.iter().any(|name| first == *name) {
        return Err(not_plain());
    }
    if let Some(mounted) = MOUNTED.into_iter().find(|name| first == *name) {
        let path = text.to_owned();
        return Err(GuestPathError::Mounted { path, mounted });
    }
    Ok(if BELOW_USR.iter().any(|name| first == *name) {
        Path::new("usr").join(path)
    } else {
        path
    })
}

/// Copies `files` into the folder [`FILES`] of the run `run`, and returns that folder.
///
/// # Errors
/// A file that the host does not have or that cannot be copied, with the part of the scenario that
/// asked for it.
pub fn stage(files: &[GuestFile], run: &Path) -> Result<PathBuf, Failure> {
    let folder = run.join(FILES);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for file in files {
        file.copy_below(&folder).map_err(Failure::Usage)?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn guest_paths_follow_the_links_of_the_root() {
        let path = |text| guest_path(text).map(|path| path.display().to_string());
        assert_eq!(path("/bin/x"), Ok("usr/bin/x".to_owned()));
        assert_eq!(path("lib/./m/a.ko"), Ok("usr/lib/m/a.ko".to_owned()));
        assert_eq!(path("root/data"), Ok("root/data".to_owned()));
    }

    #[test]
    fn guest_paths_without_a_file_are_refused() {
        for text in ["", "/", "..", "a/../b", "bin", "./sbin"] {
            let error = GuestPathError::NotPlain(text.to_owned());
            assert_eq!(guest_path(text), Err(error));
        }
        let error = guest_path("/tmp/x").unwrap_err().to_string();
        assert!(
            error.starts_with("`/tmp/x`: the guest mounts /tmp"),
            "{error}"
        );
    }

    #[test]
    fn staged_files_keep_modes_links_and_holes() {
        let host = tempfile::tempdir().unwrap();
        let (tool, sparse) = (host.path().join("tool"), host.path().join("sparse"));
        fs::write(&tool, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o750)).unwrap();
        fs::File::create(&sparse).unwrap().set_len(1 << 30).unwrap();
        symlink("tool", host.path().join("link")).unwrap();
        let run = tempfile::tempdir().unwrap();
        let file = |host: &Path, guest: &str| GuestFile::new(host, guest, "`files`").unwrap();
        let files = [
            file(host.path(), "opt/all"),
            file(&host.path().join("link"), "bin/tool"),
        ];
        let staged = stage(&files, run.path()).unwrap();
        let mode = |path: &str| fs::symlink_metadata(staged.join(path)).unwrap().mode();
        assert_eq!(mode("opt/all/tool") & 0o777, 0o750);
        assert_eq!(mode("usr/bin/tool"), mode("opt/all/tool"));
        let link = fs::read_link(staged.join("opt/all/link")).unwrap();
        assert_eq!(link, Path::new("tool"));
        let sparse = fs::metadata(staged.join("opt/all/sparse")).unwrap();
        assert!(
            sparse.len() == 1 << 30 && sparse.blocks() < 1024,
            "{sparse:?}"
        );
    }

    #[test]
    fn link_of_a_staged_folder_leads_no_file_out_of_it() {
        let host = tempfile::tempdir().unwrap();
        let (outside, all) = (host.path().join("outside"), host.path().join("all"));
        fs::create_dir(&outside).unwrap();
        fs::create_dir(&all).unwrap();
        fs::write(outside.join("file"), "mine").unwrap();
        symlink(&outside, all.join("folder")).unwrap();
        symlink(outside.join("file"), all.join("link")).unwrap();
        let tool = host.path().join("tool");
        fs::write(&tool, "tool").unwrap();
        let run = tempfile::tempdir().unwrap();
        let file = |host: &Path, guest: &str| GuestFile::new(host, guest, "`files`").unwrap();
        let files = [file(&all, "opt/all"), file(&tool, "opt/all/link")];
        let staged = stage(&files, run.path()).unwrap();
        let replaced = fs::read_to_string(staged.join("opt/all/link")).unwrap();
        assert_eq!(replaced, "tool");
        for path in ["opt/all/folder/file", "opt/all/folder/new/file"] {
            let error = stage(&[file(&tool, path)], run.path()).unwrap_err();
            let message = format!("`files`: {path} in the guest is below opt/all/folder, which is");
            assert!(error.to_string().starts_with(&message), "{error}");
        }
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "mine");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    }

    #[test]
    fn missing_host_file_names_key_path_and_way_out() {
        let run = tempfile::tempdir().unwrap();
        let file = GuestFile::new("/no/such", "opt/x", "[[check]] 3: `path`").unwrap();
        let failure = stage(&[file], run.path()).unwrap_err();
        assert_eq!(failure.code(), 2);
        let text = failure.to_string();
        let start =
            "[[check]] 3: `path`: /no/such cannot be read: make it, or correct the path: No such";
        assert!(text.starts_with(start), "{text}");
    }
}
