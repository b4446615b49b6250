//! The source of a kernel.

use std::fs;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::snapshot::Snapshots;
use crate::error::io_error;
use crate::progress::{Counted, Progress};
use crate::{Cache, ImageError, KernelTree, PackageTree, cache};

/// The source from which a kernel is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelSource {
    /// A kernel tree.
    Tree {
        /// Its top folder.
        path: PathBuf,
        /// The commit to build, instead of the current files.
        commit: Option<String>,
    },
    /// Debian's package of this version, such as `7.3`.
    Debian(String),
}

/// A source whose state is known.
pub(super) struct Prepared<'a> {
    kind: PreparedKind<'a>,
    /// Differs between any two states.
    pub(super) state: String,
}

enum PreparedKind<'a> {
    Repository(Snapshots<'a>),
    Folder(&'a Path),
    Archive(PathBuf),
}

impl KernelSource {
    /// Returns the identity of the source, independent of its state.
    pub(super) fn identity(&self) -> Result<String, ImageError> {
        match self {
            Self::Debian(version) => Ok(format!("Debian {version}")),
            Self::Tree { path, .. } => {
                let is_tree = KernelTree::around(path).is_some_and(|tree| tree.path() == path);
                if !is_tree {
                    return Err(ImageError::NoKernelTree { path: path.clone() });
                }
                let path = path.canonicalize().map_err(io_error("find", path))?;
                Ok(path.display().to_string())
            }
        }
    }

    /// Finds the state of the source; `folder` is for data about it.
    pub(super) fn prepare<'a>(
        &'a self,
        cache: &Cache,
        folder: &'a Path,
    ) -> Result<Prepared<'a>, ImageError> {
        match self {
            Self::Debian(version) => {
                let package = format!("linux-source-{version}");
                let tree = PackageTree::get(cache, std::slice::from_ref(&package))?;
                let archive = tree.path().join("usr/src").join(package + ".tar.xz");
                Ok(Prepared {
                    state: cache::stamp(&archive)?,
                    kind: PreparedKind::Archive(archive),
                })
            }
            Self::Tree { path, commit } => match Snapshots::of(path, folder)? {
                Some(snapshots) => Ok(Prepared {
                    state: snapshots.state(commit.as_deref())?,
                    kind: PreparedKind::Repository(snapshots),
                }),
                None if commit.is_some() => Err(ImageError::NoRepository { path: path.clone() }),
                None => Ok(Prepared {
                    state: stamps(path)?,
                    kind: PreparedKind::Folder(path),
                }),
            },
        }
    }
}

impl Prepared<'_> {
    /// Returns the folder with the sources: `copy`, or the tree itself if that is not in a
    /// repository.
    pub(super) fn sources(&self, copy: &Path, progress: &Progress) -> Result<PathBuf, ImageError> {
        match &self.kind {
            PreparedKind::Folder(path) => return Ok(path.to_path_buf()),
            PreparedKind::Repository(snapshots) => snapshots.check_out(&self.state, copy)?,
            PreparedKind::Archive(_) if copy.exists() => {}
            PreparedKind::Archive(archive) => {
                progress.say(&format!("unpacking {}", archive.display()));
                unpack(archive, copy, progress)?;
            }
        }
        Ok(copy.to_path_buf())
    }

    /// Returns `true` if the copy of the sources is useless once the kernel is built.
    pub(super) fn is_final(&self) -> bool {
        matches!(self.kind, PreparedKind::Archive(_))
    }
}

fn unpack(archive: &Path, copy: &Path, progress: &Progress) -> Result<(), ImageError> {
    let stream = Counted::open(archive, "unpacking", progress)?;
    extract(
        lzma_rust2::XzReader::new(BufReader::new(stream), true),
        copy,
    )
}

/// Makes the only folder of an archive the folder `copy`. An interrupted extraction leaves no such
/// folder.
fn extract(stream: impl Read, copy: &Path) -> Result<(), ImageError> {
    let work = copy.with_extension("part");
    if work.exists() {
        fs::remove_dir_all(&work).map_err(io_error("remove", &work))?;
    }
    let mut archive = tar::Archive::new(stream);
    archive.unpack(&work).map_err(io_error("unpack", &work))?;
    let mut folders = fs::read_dir(&work).map_err(io_error("list", &work))?;
    let top = folders.find_map(|found| Some(found.ok()?.path()));
    fs::rename(top.unwrap_or_default(), copy).map_err(io_error("create", copy))?;
    fs::remove_dir(&work).map_err(io_error("remove", &work))
}

/// Returns path, size and time of change of each file in a tree without version control.
fn stamps(tree: &Path) -> Result<String, ImageError> {
    let mut stamps = Vec::new();
    let mut folders = vec![tree.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for found in fs::read_dir(&folder).map_err(io_error("list", &folder))? {
            let found = found.map_err(io_error("list", &folder))?;
            let kind = found.file_type().map_err(io_error("read", &found.path()))?;
            if kind.is_dir() {
                folders.push(found.path());
            } else if kind.is_file() {
                stamps.push(cache::stamp(&found.path())?);
            }
        }
    }
    stamps.sort();
    Ok(cache::key(stamps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_loses_its_top_folder_and_is_whole_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut archive = tar::Builder::new(Vec::new());
        for (name, text) in [
            ("linux-7.3/Makefile", "VERSION = 7"),
            ("linux-7.3/fs/a.c", "a"),
        ] {
            let mut header = tar::Header::new_gnu();
            header.set_size(u64::try_from(text.len()).unwrap());
            header.set_mode(0o644);
            archive
                .append_data(&mut header, name, text.as_bytes())
                .unwrap();
        }
        let archive = archive.into_inner().unwrap();
        let copy = dir.path().join("copy");
        extract(&archive[..], &copy).unwrap();
        assert_eq!(
            fs::read_to_string(copy.join("Makefile")).unwrap(),
            "VERSION = 7"
        );
        assert_eq!(fs::read_to_string(copy.join("fs/a.c")).unwrap(), "a");
        assert_eq!(fs::read_dir(&copy).unwrap().count(), 2);
        let cut = dir.path().join("cut");
        assert!(extract(&archive[..1200], &cut).is_err() && !cut.exists());
    }

    #[test]
    fn folder_that_is_no_kernel_tree_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_path_buf();
        let error = KernelSource::Tree { path, commit: None }
            .identity()
            .unwrap_err();
        assert!(matches!(error, ImageError::NoKernelTree { .. }), "{error}");
    }

    #[test]
    fn stamps_change_with_any_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("fs")).unwrap();
        fs::write(dir.path().join("fs/a.c"), "a").unwrap();
        let first = stamps(dir.path()).unwrap();
        assert_eq!(stamps(dir.path()).unwrap(), first);
        fs::write(dir.path().join("fs/a.c"), "aa").unwrap();
        assert_ne!(stamps(dir.path()).unwrap(), first);
    }
}
