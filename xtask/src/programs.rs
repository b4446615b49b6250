//! The programs and tests of this workspace, built once for all entries.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde::Deserialize;

/// The folder of the programs that `scripts/build --tests` makes.
pub(crate) const FOLDER: &str = "target/gate";

/// The executables of tests, by `FOLDER:TARGET`: the folder of their package in the workspace, and
/// their target.
pub(crate) struct TestPrograms(BTreeMap<String, TestProgram>);

/// A test's executable.
pub(crate) struct TestProgram {
    pub(crate) path: PathBuf,
    /// The folder of its package, where Cargo would start it.
    pub(crate) folder: PathBuf,
}

/// The needed parts of a message of `cargo build --message-format json`.
#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

impl TestProgram {
    /// Returns the names of the tests that it would run with these arguments of libtest.
    ///
    /// # Errors
    /// An executable that does not list its tests.
    pub(crate) fn names(&self, arguments: &[&str]) -> anyhow::Result<BTreeSet<String>> {
        let path = self.path.display();
        let output = Command::new(&self.path)
            .args(arguments)
            .arg("--list")
            .current_dir(&self.folder)
            .output()
            .with_context(|| format!("cannot start {path}"))?;
        ensure!(output.status.success(), "{path} --list: {}", output.status);
        let text = String::from_utf8_lossy(&output.stdout);
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }
}

impl TestPrograms {
    /// Returns the executables of the workspace in `root`, which `scripts/build --tests` has built.
    ///
    /// # Errors
    /// A build that fails, since it is not done.
    pub(crate) fn find(root: &Path) -> anyhow::Result<Self> {
        let output = Command::new("cargo")
            .args(["build", "--quiet", "--workspace", "--bins", "--tests"])
            .args(["--target-dir", "target", "--message-format", "json"])
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start cargo")?;
        ensure!(output.status.success(), "cargo build: {}", output.status);
        Self::parse(&String::from_utf8_lossy(&output.stdout), root)
    }

    fn parse(messages: &str, root: &Path) -> anyhow::Result<Self> {
        let mut programs = BTreeMap::new();
        for line in messages.lines() {
            let message: Message = serde_json::from_str(line)?;
            let (Some(manifest), Some(target), Some(path)) =
                (message.manifest_path, message.target, message.executable)
            else {
                continue;
            };
            if message.reason == "compiler-artifact" && target.kind == ["test"] {
                let folder = manifest.parent().map(PathBuf::from).unwrap_or_default();
                let package = folder.strip_prefix(root).unwrap_or(&folder).display();
                let name = format!("{package}:{}", target.name);
                programs.insert(name, TestProgram { path, folder });
            }
        }
        Ok(Self(programs))
    }

    /// Returns the executable of the target `name`, such as `tests:built`.
    ///
    /// # Errors
    /// A target that does not exist.
    pub(crate) fn get(&self, name: &str) -> anyhow::Result<&TestProgram> {
        let program = self.0.get(name);
        program.with_context(|| format!("no test target `{name}`: expected FOLDER:TARGET"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_of_test_targets_are_found() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/w/tests/Cargo.toml","target":{"name":"built","kind":["test"]},"executable":"/w/target/debug/deps/built-1"}
{"reason":"compiler-artifact","manifest_path":"/w/tests/Cargo.toml","target":{"name":"load","kind":["bin"]},"executable":"/w/target/debug/load"}
{"reason":"build-finished","success":true}"#;
        let programs = TestPrograms::parse(messages, Path::new("/w")).unwrap();
        let built = programs.get("tests:built").unwrap();
        assert_eq!(built.folder, PathBuf::from("/w/tests"));
        assert!(programs.get("tests:load").is_err());
    }
}
