//! Commands in a guest: their placeholders, their output, and the things that they must not do.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::launched::Launched;
use crate::peerbar;

/// Three checks that fail, each in its own way, after one that passes.
const COMMANDS: &str = r#"
name = "commands"
timeout = "4m"
tools = true

[[nvme]]
name = "disk0"
cmb = "16M"
namespaces = [{ file = "first.img" }, { file = "second.img" }, { ram = "16M" }]

[[nvme]]
name = "own"
counted = false
cmb = "4M"
cmb-legacy = true
namespaces = [{ ram = "8M" }]

[[check]]
name = "by nsid"
kind = "command"
run = '''
for disk in {disk0:ns1} {disk0:ns2} {disk0:disk}; do head -c 6 $disk; echo; done
cat /sys/class/block/$(basename {disk0:ns3})/size
for disk in /dev/nvme?; do nvme show-regs $disk && nvme effects-log $disk || exit; done > /dev/null
test -e {disk0:p2pmem} && lspci -s {disk0:pci} | awk '{{print}}'
'''
expect = ["first \nsecond\nfirst \n32768\n"]
matches = ["^0.*Non-Volatile"]

[[check]]
name = "first namespace alone"
kind = "copy"
from = "disk0"
to = "disk0"
through = "guest-ram"
sizes = ["4M"]
offsets = [0]

[[check]]
name = "legacy buffer"
kind = "copy"
from = "disk0"
to = "disk0"
through = { p2pmem = "own" }
sizes = ["4K"]
offsets = [0]

[[check]]
name = "own disk"
kind = "command"
run = "dd if=/dev/zero of={own:disk} bs=1M count=4 oflag=direct"
through = "guest-ram"

[[check]]
name = "report"
kind = "command"
run = '''
echo "KTAP version 1"; echo 1..2
echo "  1..2"; echo "  ok 1 - a"; echo "  # because"; echo "  not ok 2 - b"; echo "not ok 1 - suite"
echo "ok 2 - c # SKIP none"
'''

[[check]]
name = "slow"
kind = "command"
run = "echo begun; sleep 1000"
timeout = "5s"
"#;

/// Content of the first two namespaces of `disk0`, repeated.
const IMAGES: [(&str, &str); 2] = [("first.img", "first "), ("second.img", "second")];

/// Number of repetitions in each.
const WORDS: usize = 2 << 20;

/// Makes a folder with `scenario` as `x.toml`, and the images of its disk.
fn folder_with(scenario: &str) -> anyhow::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("x.toml"), scenario)?;
    for (file, word) in IMAGES {
        fs::write(folder.path().join(file), word.repeat(WORDS))?;
    }
    Ok(folder)
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn commands_are_shown_and_held_to_what_is_expected() {
    let folder = folder_with(COMMANDS).unwrap();
    let images = IMAGES.map(|(file, word)| (folder.path().join(file), word));
    let mut run = Launched::start(folder, &["run", "--verbose", "x.toml"]).unwrap();
    let (code, results, progress) = run.end().unwrap();
    assert_eq!(code, Some(1), "{results}{progress}");
    for message in [
        "by nsid: 32768",
        "peerbar: 1 of 6: pass: by nsid",
        "peerbar: 2 of 6: pass: first namespace alone",
        "peerbar: 3 of 6: pass: legacy buffer",
        "the command moved 0 bytes peer to peer and 0 through guest RAM",
        "report: KTAP version 1",
        "the command reports: not ok: suite / b",
        "slow: begun",
        "the command was killed, because it did not end within 5 s: give the check a longer `timeout`",
    ] {
        assert!(progress.contains(message), "{message}: {progress}");
    }
    // In the command's output, as the reason for its check's failure, and again at the end.
    let lines = progress.lines().filter(|line| line.ends_with("ok 1 - a"));
    assert_eq!(lines.count(), 3, "{progress}");
    assert!(
        results.contains("report [3 subtests, 1 skipped]"),
        "{results}"
    );
    let unchanged =
        images.map(|(file, word)| fs::read(file).unwrap() == word.repeat(WORDS).as_bytes());
    assert_eq!(unchanged, [false, true]);
    let kept: Value = serde_json::from_str(&run.kept("results.json").unwrap()).unwrap();
    let suite = &kept["checks"][4]["subtests"][0];
    assert_eq!(suite["subtests"][1]["name"], "b");
    assert_eq!(suite["subtests"][1]["verdict"], "fail");
    assert_eq!(suite["subtests"][1]["diagnostics"][0], "because");
}

/// Runs `scenario` with these words, which fails before a guest starts. Returns the exit code and
/// the message.
fn refused(scenario: &str, words: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let folder = folder_with(scenario)?;
    let words = [&["run", "x.toml"], words].concat();
    let output = peerbar(&words, folder.path())?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output.status.code(), message))
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn mistake_is_reported_before_the_guest_boots() {
    let (code, message) = refused(COMMANDS, &["--check", "nope"]).unwrap();
    assert_eq!(code, Some(2));
    let names = "peerbar: no check is named `nope`: there are `by nsid`, `first namespace alone`, `legacy buffer`, `own disk`, `report`, `slow`\n";
    assert_eq!(message, names);
    let (code, message) = refused(&COMMANDS.replace("ns3}", "ns4}"), &[]).unwrap();
    assert_eq!(code, Some(2));
    let start = "peerbar: x.toml:21: unknown placeholder `{disk0:ns4}` (known: {disk0}, ";
    assert!(message.starts_with(start), "{message}");
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn failed_build_is_reported_with_what_it_printed() {
    let program = "[[check]]\nname = \"mine\"\nkind = \"program\"\npath = \".\"\nprogram = \"x\"\nbuild = \"BUILD\"\n";
    let scenario = COMMANDS.split("[[check]]").next().unwrap().to_owned() + program;
    let built = |build: &str| refused(&scenario.replace("BUILD", build), &[]).unwrap();
    let (code, message) = built("echo strange >&2; exit 3");
    assert_eq!(code, Some(2), "{message}");
    assert!(
        message.contains("  strange\npeerbar: check `mine`: `echo strange"),
        "{message}"
    );
    assert!(message.contains("ended with exit status: 3"), "{message}");
    let (code, message) = built("true");
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("`true` does not make it"), "{message}");
    assert!(!Path::new("runs").exists());
}
