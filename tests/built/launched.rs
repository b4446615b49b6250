//! A running `peerbar` in a temporary folder.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};

use anyhow::{Context, ensure};
use rustix::process::Pid;
use tempfile::TempDir;

use crate::PEERBAR;

/// A running `peerbar`. Its sockets and the folder of its runs are in `folder`.
pub(crate) struct Launched {
    pub(crate) launcher: Child,
    pub(crate) stderr: BufReader<ChildStderr>,
    pub(crate) folder: TempDir,
}

impl Launched {
    /// Starts it with these words, and with the folder of its runs.
    pub(crate) fn start(folder: TempDir, words: &[&str]) -> anyhow::Result<Self> {
        fs::create_dir(folder.path().join("sockets"))?;
        let mut launcher = Command::new(&*PEERBAR)
            .args(words)
            .arg("--runs")
            .arg(folder.path().join("runs"))
            .current_dir(folder.path())
            .env("TMPDIR", folder.path().join("sockets"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("peerbar does not start")?;
        let stderr = BufReader::new(launcher.stderr.take().context("no stderr")?);
        Ok(Self {
            launcher,
            stderr,
            folder,
        })
    }

    /// Waits until it prints `words` on stderr.
    pub(crate) fn wait_until_it_says(&mut self, words: &str) -> anyhow::Result<()> {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            let more = self.stderr.read_line(&mut line)? > 0;
            ensure!(more, "it never says: {words}");
        }
        Ok(())
    }

    /// Waits for the end. Returns exit code, stdout, and the rest of stderr.
    pub(crate) fn end(&mut self) -> anyhow::Result<(Option<i32>, String, String)> {
        let (mut results, mut progress) = (String::new(), String::new());
        self.stderr.read_to_string(&mut progress)?;
        self.launcher
            .stdout
            .take()
            .context("no stdout")?
            .read_to_string(&mut results)?;
        Ok((self.launcher.wait()?.code(), results, progress))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.launcher)
    }

    /// Returns a file of the run's folder.
    pub(crate) fn kept(&self, file: &str) -> anyhow::Result<String> {
        let path = self.folder.path().join("runs/latest").join(file);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    pub(crate) fn sockets_left(&self) -> anyhow::Result<usize> {
        Ok(fs::read_dir(self.folder.path().join("sockets"))?.count())
    }
}
