//! The matrix where it must not agree, and where it is cut short, in real guests.
//!
//! Like the runs that go wrong, it takes the programs that `scripts/build` makes, so `scripts/test` runs it, after that.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

const PEERBAR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/peerbar/peerbar");

struct Matrix {
    launcher: Child,
    stderr: BufReader<ChildStderr>,
    folder: TempDir,
}

impl Matrix {
    /// Starts a matrix of one boot; its sockets and its folder are in a folder of the test's own.
    fn start(words: &[&str]) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::create_dir(folder.path().join("sockets"))?;
        let mut launcher = Command::new(PEERBAR)
            .args([
                "matrix",
                "--cpu",
                "EPYC",
                "--topology",
                "one-switch",
                "--runs",
            ])
            .arg(folder.path().join("runs"))
            .args(words)
            .env("TMPDIR", folder.path().join("sockets"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{PEERBAR}: run scripts/build first"))?;
        let stderr = BufReader::new(launcher.stderr.take().context("no stderr")?);
        Ok(Self {
            launcher,
            stderr,
            folder,
        })
    }

    /// Waits for the end: exit code and stdout.
    fn end(&mut self) -> anyhow::Result<(Option<i32>, String)> {
        let mut printed = String::new();
        let mut stdout = self.launcher.stdout.take().context("no stdout")?;
        stdout.read_to_string(&mut printed)?;
        Ok((self.launcher.wait()?.code(), printed))
    }

    /// The matrix' folder.
    fn kept(&self) -> PathBuf {
        self.folder.path().join("runs/latest")
    }

    fn wait_until_booting(&mut self) -> anyhow::Result<()> {
        let mut line = String::new();
        while !line.contains("boot 1 of 1") {
            line.clear();
            ensure!(self.stderr.read_line(&mut line)? > 0, "nothing boots");
        }
        Ok(())
    }

    fn sockets(&self) -> anyhow::Result<usize> {
        Ok(fs::read_dir(self.folder.path().join("sockets"))?.count())
    }
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn data_that_qemu_s_own_controller_corrupts_is_seen() {
    let words = ["--device", "qemu-nvme", "--iommu", "intel", "--json"];
    let mut matrix = Matrix::start(&words).unwrap();
    let (code, printed) = matrix.end().unwrap();
    assert_eq!(code, Some(0), "{printed}");
    let printed: Value = serde_json::from_str(&printed).unwrap();
    let cell = &printed["matrix"]["cells"][0];
    assert_eq!(cell["rule"]["way"], "peer", "{cell:#}");
    let seen = &cell["seen"];
    let fixed = "QEMU corrupts no data any more: the README says that it does";
    assert_eq!(seen["way"], "wrong", "{fixed}: {cell:#}");
    assert_eq!(seen["record"], Value::Null);
    assert!(
        seen["fault"].as_str().unwrap().starts_with("DMAR: "),
        "{seen:#}"
    );
    assert!(cell["disagreement"].is_string(), "{cell:#}");
    let kept = fs::read_to_string(matrix.kept().join("matrix.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&kept).unwrap(), printed);
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn a_matrix_that_is_interrupted_ends_its_boots() {
    let mut matrix = Matrix::start(&["--iommu", "none"]).unwrap();
    matrix.wait_until_booting().unwrap();
    kill_process(Pid::from_child(&matrix.launcher), Signal::TERM).unwrap();
    let (code, printed) = matrix.end().unwrap();
    assert_eq!((code, printed.as_str()), (Some(143), ""));
    assert_eq!(matrix.sockets().unwrap(), 0);
    let read = |file: &Path| fs::read_to_string(matrix.kept().join(file)).unwrap();
    assert_eq!(read("verdict".as_ref()), "not run: ended by signal 15\n");
    let started: Value = serde_json::from_str(&read("started.json".as_ref())).unwrap();
    assert_eq!(started["process"], json!(matrix.launcher.id()));
}
