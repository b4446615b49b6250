//! `peerbar fetch`, and runs without a network, with a cache on top of the machine's.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, anyhow, ensure};
use peerbar_lab::artifacts::until_a_signal;
use peerbar_lab::signals;

use crate::command;
use crate::own_guest::write_script;

/// A private cache on top of the usual one, on a machine that reaches no archive.
struct WithoutNetwork<'a> {
    folder: &'a Path,
}

impl<'a> WithoutNetwork<'a> {
    fn make(folder: &'a Path) -> anyhow::Result<Self> {
        let mmdebstrap = "#!/bin/sh\necho 'E: there is no network' >&2\nexit 100\n";
        write_script(&folder.join("mmdebstrap"), mmdebstrap)?;
        Ok(Self { folder })
    }

    fn peerbar(&self, words: &[&str]) -> anyhow::Result<Output> {
        let programs = format!("{}:/usr/bin:/bin", self.folder.display());
        let usual = until_a_signal(&signals::NONE, |cache| Ok(cache.path().to_owned()));
        let usual = usual.map_err(|_| anyhow!("there is no usual cache"))?;
        let mut command: Command = command(words, self.folder);
        command
            .env("PATH", programs)
            .env("PEERBAR_CACHE", self.folder.join("cache"))
            .env("PEERBAR_SYSTEM_CACHE", usual);
        command.output().context("peerbar does not start")
    }

    /// Returns its output, if it succeeds.
    fn said(&self, words: &[&str]) -> anyhow::Result<String> {
        let output = self.peerbar(words)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = text(&output.stdout) + &text(&output.stderr);
        ensure!(output.status.success(), "{said}");
        Ok(said)
    }
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn run_after_a_fetch_needs_no_network() {
    let folder = tempfile::tempdir().unwrap();
    let usual = command(&["fetch", "root-ports"], folder.path()).output();
    assert!(usual.unwrap().status.success());
    let here = WithoutNetwork::make(folder.path()).unwrap();
    let said = here.said(&["fetch", "root-ports"]).unwrap();
    assert!(
        said.ends_with("peerbar: root-ports has all that it needs: its runs use no network\n"),
        "{said}"
    );
    let said = here.said(&["doctor", "root-ports"]).unwrap();
    let network = "ok       network        not used: the cache has all that a run needs";
    assert!(
        said.contains(network) && said.contains(", of the whole machine, "),
        "{said}"
    );
    let said = here.said(&["cache", "list"]).unwrap();
    assert!(
        said.contains(", the cache of the whole machine, holds "),
        "{said}"
    );
    let said = here.said(&["run", "root-ports"]).unwrap();
    assert!(!said.contains("Debian"), "{said}");
    // Large files stay in the cache below. Files that are made from them are in the private one.
    let entries = fs::read_dir(folder.path().join("cache")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names.collect();
    assert!(
        !names.iter().any(|name| name.starts_with("root-")),
        "{names:?}"
    );
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn what_cannot_be_fetched_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let here = WithoutNetwork::make(folder.path()).unwrap();
    let scenario = "name = \"mine\"\ntools = true\npackages = [\"no-such-package\"]\n\n[[nvme]]\nname = \"disk0\"\nnamespaces = [{ ram = \"16M\" }]\n";
    fs::write(folder.path().join("mine.toml"), scenario).unwrap();
    let said = here.said(&["doctor", "mine.toml"]).unwrap();
    let missing = "the packages no-such-package: `peerbar fetch mine.toml` gets it now";
    assert!(said.contains(missing), "{said}");
    for (words, code, expected) in [
        (
            &["fetch", "root-ports", "mine.toml"][..],
            69,
            "there is no network",
        ),
        (
            &["fetch", "no-such-scenario", "mine.toml"],
            2,
            "no-such-scenario",
        ),
        (&["fetch", "--all", "mine.toml"], 2, "cannot be used with"),
    ] {
        let output = here.peerbar(words).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(expected), "{said}");
        let is_named = said.contains("peerbar: mine does not have all that it needs:\n");
        assert_eq!(is_named, code == 69, "{said}");
    }
}
