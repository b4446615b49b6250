//! A worktree without files for the state of git bisect.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, anyhow, ensure};
use peerbar_lab::exit::Failure;
use peerbar_lab::temporary_folder::temporary_folder;
use peerbar_lab::terminal::say;
use tempfile::TempDir;

/// A linked worktree of a repository. It is removed on drop, with its references.
pub(super) struct Worktree {
    repository: PathBuf,
    folder: TempDir,
}

impl Worktree {
    /// Adds one to the repository of `tree`.
    pub(super) fn add(tree: &Path) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new()
            .prefix("peerbar-bisect-")
            .tempdir_in(temporary_folder()?)
            .context("cannot make a folder for the worktree")?;
        let worktree = Self {
            repository: tree.to_path_buf(),
            folder,
        };
        let mut add = Command::new("git");
        add.arg("-C").arg(tree);
        add.args(["worktree", "add", "--quiet", "--detach", "--no-checkout"]);
        output(add.arg(worktree.path())).map_err(Failure::Usage)?;
        Ok(worktree)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("tree")
    }

    /// Starts a search for the commit after which `bad` is bad and `good` is not yet.
    pub(super) fn start(&self, good: &str, bad: &str) -> Result<(), Failure> {
        for commit in [good, bad] {
            let name = format!("{commit}^{{commit}}");
            let found = self.git(&["rev-parse", "--verify", "--quiet", &name]);
            found.map_err(|_| {
                let tree = self.repository.display();
                Failure::Usage(anyhow!(
                    "{commit} is not a commit of {tree}: name a commit, a tag or a branch"
                ))
            })?;
        }
        self.git(&["bisect", "start", "--no-checkout", bad, good])
            .map_err(Failure::Usage)
            .map(drop)
    }

    /// Runs the program `words` for one commit after another, until git knows the first bad one.
    pub(super) fn search(&self, words: &[std::ffi::OsString]) -> Result<ExitStatus, Failure> {
        let mut run = self.command(&["bisect", "run"]);
        // Its output is progress, so it goes to stderr.
        run.args(words).stdout(std::io::stderr());
        Ok(run.status().context("cannot run git bisect")?)
    }

    /// Returns the first bad commit, once git has called it that.
    pub(super) fn first_bad(&self) -> Option<String> {
        let log = self.git(&["bisect", "log"]).ok()?;
        let line = log
            .lines()
            .find(|line| line.starts_with("# first bad commit: "))?;
        let (commit, _) = line.split_once('[')?.1.split_once(']')?;
        Some(commit.to_owned())
    }

    /// Returns the output of git with the arguments `words` in the worktree.
    pub(super) fn git(&self, words: &[&str]) -> anyhow::Result<String> {
        output(&mut self.command(words))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut git = Command::new("git");
        git.arg("-C")
            .arg(self.path())
            .args(words)
            .stdin(Stdio::null());
        git
    }
}

impl Drop for Worktree {
    fn drop(&mut self) {
        let mut remove = Command::new("git");
        remove.arg("-C").arg(&self.repository);
        remove
            .args(["worktree", "remove", "--force"])
            .arg(self.path());
        if let Err(error) = output(&mut remove) {
            say(format_args!(
                "peerbar: the worktree of the search stays: {error:#}"
            ));
        }
    }
}

/// Returns the output of a program, if it succeeds.
pub(super) fn output(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    let message = String::from_utf8_lossy(&output.stderr);
    let reason = message.lines().last().unwrap_or("it says nothing");
    ensure!(
        output.status.success(),
        "{program} fails ({}): {reason}",
        output.status
    );
    String::from_utf8(output.stdout).with_context(|| format!("{program} prints no text"))
}
