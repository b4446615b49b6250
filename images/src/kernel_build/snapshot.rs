//! The state of a git tree, copied without a trace in the tree or its repository.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::ImageError;
use crate::error::io_error;

/// A repository, and a folder that gets copies of its states.
///
/// Index and new objects are in that folder. A copy replaces the previous one, and touches only
/// files that differ, so that the build of the next state can reuse the last one.
pub(super) struct Snapshots<'a> {
    tree: &'a Path,
    git_dir: PathBuf,
    objects: PathBuf,
    folder: &'a Path,
}

impl<'a> Snapshots<'a> {
    /// Returns the snapshots of the repository that has its working tree at `tree`, or `None` if
    /// there is no repository.
    pub(super) fn of(tree: &'a Path, folder: &'a Path) -> Result<Option<Self>, ImageError> {
        let answer = |question: &[&str]| {
            let mut git = Command::new("git");
            git.arg("-C").arg(tree).arg("rev-parse").args(question);
            let output = git
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .output()
                .ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            output.status.success().then(|| text.trim_end().to_owned())
        };
        let Some(top) = answer(&["--show-toplevel"]) else {
            return Ok(None);
        };
        let canonical = |path: &Path| path.canonicalize().map_err(io_error("find", path));
        if canonical(Path::new(&top))? != canonical(tree)? {
            return Ok(None);
        }
        let path = |question: &[&str]| answer(question).map(PathBuf::from);
        let git_dir = path(&["--absolute-git-dir"]);
        let objects = path(&["--path-format=absolute", "--git-path", "objects"]);
        Ok(git_dir.zip(objects).map(|(git_dir, objects)| Self {
            tree,
            git_dir,
            objects,
            folder,
        }))
    }

    /// Returns the tree object of `commit`, or by default that of the working tree with all files
    /// that git does not ignore.
    pub(super) fn state(&self, commit: Option<&str>) -> Result<String, ImageError> {
        if let Some(commit) = commit {
            let tree = format!("{commit}^{{tree}}");
            return self.git(
                &["rev-parse", "--verify", "--quiet", &tree],
                "present",
                self.tree,
            );
        }
        // With the file states in the repository's own index, only changed files are read.
        let index = self.folder.join("present");
        let known = self.git_dir.join("index");
        if !index.is_file() && known.is_file() {
            fs::copy(&known, &index).map_err(io_error("copy", &known))?;
        }
        self.git(&["add", "--all"], "present", self.tree)?;
        self.git(&["write-tree"], "present", self.tree)
    }

    /// Makes `copy`, an earlier copy or a missing folder, equal to a tree object.
    pub(super) fn check_out(&self, state: &str, copy: &Path) -> Result<(), ImageError> {
        fs::create_dir_all(copy).map_err(io_error("create", copy))?;
        let words = ["read-tree", "--reset", "-u", state];
        self.git(&words, "copied", copy).map(drop)
    }

    /// Returns git's output, with an index of ours and `work` as its working tree.
    fn git(&self, words: &[&str], index: &str, work: &Path) -> Result<String, ImageError> {
        let objects = self.folder.join("objects");
        fs::create_dir_all(&objects).map_err(io_error("create", &objects))?;
        let mut git = Command::new("git");
        git.current_dir(work)
            .args(words)
            .env("GIT_DIR", &self.git_dir)
            .env("GIT_WORK_TREE", work)
            .env("GIT_INDEX_FILE", self.folder.join(index))
            .env("GIT_OBJECT_DIRECTORY", &objects)
            .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", &self.objects)
            .env("GIT_OPTIONAL_LOCKS", "0")
            .stdin(Stdio::null());
        let output = git.output().map_err(io_error("run", Path::new("git")))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout)
                .trim_end()
                .to_owned());
        }
        let message = String::from_utf8_lossy(&output.stderr);
        let words: Vec<_> = words.iter().map(OsStr::new).collect();
        Err(ImageError::Git {
            command: words.join(OsStr::new(" ")).to_string_lossy().into_owned(),
            tree: self.tree.to_path_buf(),
            reason: message
                .lines()
                .next()
                .unwrap_or("it says nothing")
                .to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(tree: &Path, words: &[&str]) -> String {
        let mut git = Command::new("git");
        git.arg("-C")
            .arg(tree)
            .args(["-c", "user.name=a", "-c", "user.email=a@b"]);
        let output = git.args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Makes a repository with one commit, and a folder next to it.
    fn repository() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (tree, folder) = (dir.path().join("tree"), dir.path().join("folder"));
        fs::create_dir_all(tree.join("fs")).unwrap();
        fs::create_dir(&folder).unwrap();
        for (file, text) in [("a.c", "a"), ("fs/b.c", "b"), (".gitignore", "*.o\n")] {
            fs::write(tree.join(file), text).unwrap();
        }
        git(&tree, &["init", "--quiet"]);
        git(&tree, &["add", "--all"]);
        git(&tree, &["commit", "--quiet", "--message", "first"]);
        (dir, tree, folder)
    }

    #[test]
    fn copy_has_changed_and_new_but_no_ignored_files() {
        let (_dir, tree, folder) = repository();
        fs::write(tree.join("a.c"), "changed").unwrap();
        fs::write(tree.join("new.c"), "new").unwrap();
        fs::write(tree.join("a.o"), "ignored").unwrap();
        let status = git(&tree, &["status", "--porcelain"]);
        let objects = git(&tree, &["count-objects"]);
        let snapshots = Snapshots::of(&tree, &folder).unwrap().unwrap();
        let copy = folder.join("source");
        snapshots
            .check_out(&snapshots.state(None).unwrap(), &copy)
            .unwrap();
        let text = |file: &str| fs::read_to_string(copy.join(file)).unwrap();
        assert_eq!(
            (text("a.c"), text("fs/b.c"), text("new.c")),
            ("changed".into(), "b".into(), "new".into())
        );
        assert!(!copy.join("a.o").exists() && !copy.join(".git").exists());
        assert_eq!(git(&tree, &["status", "--porcelain"]), status);
        assert_eq!(git(&tree, &["count-objects"]), objects);
    }

    #[test]
    fn next_copy_touches_only_files_that_differ() {
        let (_dir, tree, folder) = repository();
        let snapshots = Snapshots::of(&tree, &folder).unwrap().unwrap();
        let copy = folder.join("source");
        let first = snapshots.state(None).unwrap();
        snapshots.check_out(&first, &copy).unwrap();
        let modified = |file: &str| fs::metadata(copy.join(file)).unwrap().modified().unwrap();
        let kept = modified("fs/b.c");
        fs::remove_file(tree.join("a.c")).unwrap();
        let second = snapshots.state(None).unwrap();
        assert_ne!(second, first);
        snapshots.check_out(&second, &copy).unwrap();
        assert!(!copy.join("a.c").exists());
        assert_eq!(modified("fs/b.c"), kept);
        assert_eq!(snapshots.state(Some("HEAD")).unwrap(), first);
        let error = snapshots.state(Some("nonsense")).unwrap_err();
        assert!(matches!(error, ImageError::Git { .. }), "{error}");
    }

    #[test]
    fn folder_inside_another_repository_is_none() {
        let (dir, tree, folder) = repository();
        assert!(Snapshots::of(&tree.join("fs"), &folder).unwrap().is_none());
        assert!(Snapshots::of(dir.path(), &folder).unwrap().is_none());
    }
}
