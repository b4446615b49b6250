//! Mistakes of the user end with exit code 2 and one line that describes the mistake.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Output};

fn peerbar(arguments: &[&str]) -> io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_peerbar"))
        .args(arguments)
        .output()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_missing_scenario_is_named() {
    let output = peerbar(&["run", "no/such.toml"]).unwrap();
    assert_eq!(output.status.code(), Some(2));
    let expected = "peerbar: scenario no/such.toml not found: `peerbar list` names all scenarios, and `peerbar init FILE.toml` writes one\n";
    assert_eq!(stderr(&output), expected);
}

#[test]
fn kernel_that_cannot_be_built_is_wrong_usage() {
    for (words, reason) in [
        (["--version", "v7.3"], "write two numbers, as 7.3"),
        (["--fragment", "no/such.config"], "it cannot be read"),
    ] {
        let output = peerbar(&[&["kernel", "build"], &words[..]].concat()).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
    }
}

#[test]
fn folder_without_runs_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["explain", "iommu", "report", "trace"] {
        let mut peerbar = Command::new(env!("CARGO_BIN_EXE_peerbar"));
        let output = peerbar.arg(command).current_dir(&folder).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{command}");
        let begins = "peerbar: runs/latest: no run found: run a scenario, ";
        assert!(stderr(&output).starts_with(begins), "{}", stderr(&output));
    }
}

#[test]
fn init_that_cannot_write_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let line = "ulimit -f 0; exec \"$0\" init x.toml";
    let mut shell = Command::new("sh");
    shell.args(["-c", line, env!("CARGO_BIN_EXE_peerbar")]);
    let output = shell.current_dir(&folder).output().unwrap();
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
    let begins = "peerbar: cannot write x.toml: ";
    assert!(stderr(&output).starts_with(begins), "{}", stderr(&output));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn report_needs_a_verdict_and_says_when_its_run_was() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("runs/latest");
    fs::create_dir_all(&run).unwrap();
    let results = r#"{"format": 1, "scenario": "x", "exit_code": 0, "seconds": 1.0, "checks": [], "not_run": [],
        "verdict": {"outcome": "passed", "reason": "nothing failed"}, "started": "2026-11-21T03:28:38Z",
        "versions": {"peerbar": "0.1.0", "qemu": "11.1.3", "kernel": "7.3.4", "packages": null}}"#;
    fs::write(run.join("results.json"), results).unwrap();
    let report = |words: &[&str]| {
        let mut peerbar = Command::new(env!("CARGO_BIN_EXE_peerbar"));
        let peerbar = peerbar.arg("report").args(words);
        peerbar.current_dir(&folder).output().unwrap()
    };
    for words in [
        &[][..],
        &["--as", "junit"],
        &["--as", "json"],
        &["--as", "html"],
    ] {
        let output = report(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(output.stdout.is_empty(), "{words:?}");
        let begins = "peerbar: runs/latest: the file verdict is missing, ";
        assert!(stderr(&output).starts_with(begins), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1);
    }
    fs::write(run.join("verdict"), "passed: nothing failed\n").unwrap();
    let output = report(&[]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let expected = "x: passed: nothing failed, 0 of 0 checks passed (2026-11-21 03:28 UTC)\n";
    assert_eq!(shown, expected, "{}", stderr(&output));
}

/// Writes a run of a disk in `folder` without its file `verdict`.
fn write_run(folder: &Path, scenario: &str, verdict: &str) -> io::Result<()> {
    let versions = r#""versions": {"peerbar": "0.1.0", "qemu": "11.1.3", "kernel": "7.3.4", "packages": null}"#;
    let started = r#"{"command": [], "process": 1, "scenario": "x.toml", "#;
    let results = r#"{"format": 1, "scenario": "x", "seconds": 1.0, "not_run": [], "checks": [], "#;
    let times = r#""started": "2026-11-21T03:28:38Z""#;
    for (name, text) in [
        ("started.json", format!("{started}{versions}}}")),
        (
            "results.json",
            format!("{results}{verdict}, {times}, {versions}}}"),
        ),
        ("scenario.toml", scenario.to_owned()),
        ("evidence.json", "[]".to_owned()),
    ] {
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}

const DISK: &str = "[[nvme]]\nname = \"d\"\nnamespaces = [{ ram = \"1M\" }]\n";
const PASSED: &str =
    r#""exit_code": 0, "verdict": {"outcome": "passed", "reason": "nothing failed"}"#;
const UNENDED: &str =
    "/verdict: only a run that is over, by a peerbar of this version, can be explained";

#[test]
fn run_without_a_verdict_is_not_explained() {
    let folder = tempfile::tempdir().unwrap();
    write_run(folder.path(), &format!("name = \"x\"\n{DISK}"), PASSED).unwrap();
    let explain = || peerbar(&["explain", "--run", folder.path().to_str().unwrap()]).unwrap();
    let refused = explain();
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains(UNENDED), "{}", stderr(&refused));
    fs::write(folder.path().join("verdict"), "passed: nothing failed\n").unwrap();
    let explained = explain();
    assert_eq!(explained.status.code(), Some(0), "{}", stderr(&explained));
}

#[test]
fn guest_that_was_not_run_is_explained_by_its_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path();
    let why = "not run: guest left is not ready after 90 s";
    fs::write(run.join("guests.json"), r#"["left", "right"]"#).unwrap();
    fs::write(run.join("verdict"), format!("{why}\n")).unwrap();
    let path = run.to_str().unwrap();
    let refused = peerbar(&["explain", "--run", path]).unwrap();
    let expected = format!("peerbar: {path} has no results: {why}\n");
    assert_eq!(
        (refused.status.code(), stderr(&refused)),
        (Some(2), expected)
    );

    let failed = r#""exit_code": 1, "verdict": {"outcome": "failed", "reason": "not ready"}"#;
    let guests = "[[guest]]\nname = \"left\"\n[[guest]]\nname = \"right\"\n";
    let disk = DISK.replace("namespaces", "guest = \"left\"\nnamespaces");
    let other = disk.replace("left", "right").replace("\"d\"", "\"e\"");
    let group = format!("name = \"x\"\n{guests}{disk}{other}");
    write_run(run, &group, failed).unwrap();
    fs::write(run.join("verdict"), "failed: not ready\n").unwrap();
    let [left, right] = ["left", "right"].map(|name| run.join(name));
    fs::create_dir(&left).unwrap();
    fs::create_dir(&right).unwrap();
    write_run(&left, &format!("name = \"x\"\n{DISK}"), failed).unwrap();
    fs::write(left.join("verdict"), "failed: not ready\n").unwrap();
    fs::write(right.join("verdict"), format!("{why}\n")).unwrap();
    let explained = peerbar(&["explain", "--run", path]).unwrap();
    let text = String::from_utf8_lossy(&explained.stdout);
    assert_eq!(explained.status.code(), Some(0), "{}", stderr(&explained));
    assert!(text.starts_with("the run: failed: not ready\n"), "{text}");
    assert!(
        text.ends_with(&format!("== guest right\n{why}\n")),
        "{text}"
    );
    let refused = peerbar(&["explain", "--run", path, "--guest", "right"]).unwrap();
    assert!(stderr(&refused).contains(why), "{}", stderr(&refused));
}

#[test]
fn failed_run_of_guests_that_passed_never_looks_passed() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path();
    let left = run.join("left");
    fs::create_dir(&left).unwrap();
    write_run(&left, &format!("name = \"x\"\n{DISK}"), PASSED).unwrap();
    fs::write(left.join("verdict"), "passed: nothing failed\n").unwrap();
    fs::write(run.join("guests.json"), r#"["left"]"#).unwrap();
    let group = format!(
        "name = \"x\"\n[[guest]]\nname = \"left\"\n{}",
        DISK.replace("namespaces", "guest = \"left\"\nnamespaces")
    );
    let reason = "server fabric ended";
    let verdict =
        format!(r#""exit_code": 1, "verdict": {{"outcome": "failed", "reason": "{reason}"}}"#);
    write_run(run, &group, &verdict).unwrap();
    let said = |words: &[&str]| {
        let output = peerbar(words).unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text, stderr(&output))
    };
    let out = tempfile::tempdir().unwrap();
    let [run_path, left, out] = [run, &left, out.path()].map(|path| path.to_str().unwrap());
    for words in [
        &["explain", "--run", run_path][..],
        &["explain", "--run", left],
        &["explain", "--run", run_path, "--guest", "left"],
        &["report", run_path],
    ] {
        let (code, _, message) = said(words);
        assert_eq!(code, Some(2), "{words:?}: {message}");
        assert!(message.contains("verdict"), "{words:?}: {message}");
    }
    fs::write(run.join("verdict"), format!("failed: {reason}\n")).unwrap();
    for words in [
        &["explain", "--run", run_path][..],
        &["explain", "--run", left],
        &["explain", "--run", run_path, "--guest", "left", "--json"],
        &["report", run_path],
        &["report", run_path, "--as", "junit"],
        &["report", run_path, "--as", "html"],
        &["report", run_path, "--as", "json"],
        &["report", "--merge", run_path, "--output", out],
    ] {
        let (code, text, message) = said(words);
        let wanted = i32::from(words[0] == "report");
        assert_eq!(code, Some(wanted), "{words:?}: {message}");
        assert!(text.contains(reason), "{words:?}: {text}");
    }
    for words in [
        &["report", left][..],
        &["report", "--merge", left, "--output", out],
    ] {
        let (code, _, message) = said(words);
        assert_eq!(code, Some(2), "{words:?}: {message}");
        let wanted = "only the results of one guest are there, without the verdict on the run";
        assert!(message.contains(wanted), "{words:?}: {message}");
    }
}

#[test]
fn missing_temporary_folder_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    for words in [&["kernel", "build"][..], &["devices"]] {
        let mut peerbar = Command::new(env!("CARGO_BIN_EXE_peerbar"));
        peerbar.args(words).current_dir(&folder);
        let output = peerbar.env("TMPDIR", &missing).output().unwrap();
        assert_eq!(output.status.code(), Some(69), "{words:?}");
        let begins = format!("peerbar: TMPDIR is {}, ", missing.display());
        assert!(stderr(&output).starts_with(&begins), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1);
    }
}

#[test]
fn broken_scenario_names_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.toml");
    fs::write(
        &path,
        "name = \"broken\"\ntimeout = \"soon\"\nnvme = []\ncheck = []\n",
    )
    .unwrap();
    let output = peerbar(&["run", path.to_str().unwrap()]).unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = "invalid time limit `soon`: expected seconds or minutes from `1s` to `1440m`";
    assert_eq!(
        stderr(&output),
        format!("peerbar: {}:2: {message}\n", path.display())
    );
}

#[test]
fn list_explains_a_kind_of_check_with_its_keys() {
    let all = peerbar(&["list"]).unwrap();
    let text = String::from_utf8_lossy(&all.stdout).into_owned();
    assert!(text.contains("\n  gpu-file            Reads data from disks into GPU memory"));
    let one = peerbar(&["list", "controller-reset"]).unwrap();
    let expected = "controller-reset\n    Resets the controller through sysfs, and checks that it is live again afterwards \
                    and still has its p2pmem.\n    device     Name of an `[[nvme]]`.\n    name       ";
    let shown = String::from_utf8_lossy(&one.stdout).into_owned();
    assert!(shown.starts_with(expected), "{shown}");
}

#[test]
fn init_writes_a_scenario_and_overwrites_by_force_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.toml");
    let path = file.to_str().unwrap();
    let init = |options: &[&str]| peerbar(&[&["init", path], options].concat()).unwrap();
    assert_eq!(init(&[]).status.code(), Some(0));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("[[nvme]]"), "{text}");
    std::fs::write(&file, "mine").unwrap();
    let refused = init(&[]);
    assert_eq!(refused.status.code(), Some(2));
    let report = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        report.contains("is there already: name another file, or use --force"),
        "{report}"
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    assert_eq!(init(&["--force"]).status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn check_reports_every_mistake_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let right = "name = \"x\"\n[[gpu]]\nname = \"gpu0\"\n[[check]]\nkind = \"provider\"\ndevice = \"gpu0\"\n";
    let good = write("good.toml", right);
    let bad = write(
        "bad.toml",
        &right
            .replace("kind", "knid")
            .replace("name = \"x\"", "name = 1"),
    );
    let passed = peerbar(&["check", &good]).unwrap();
    assert_eq!(passed.status.code(), Some(0));
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text(&passed), format!("{good}: ok, 1 check\n"));
    let failed = peerbar(&["check", &bad, &good]).unwrap();
    assert_eq!(failed.status.code(), Some(1));
    // One that is not there hides nothing of the others.
    let missing = peerbar(&["check", "no/such.toml", &bad, &good]).unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert_eq!(text(&missing), text(&failed));
    assert!(stderr(&missing).contains("scenario no/such.toml not found"));
    let lines = text(&failed);
    let starts: Vec<&str> = lines
        .lines()
        .filter_map(|line| line.strip_prefix(&bad))
        .collect();
    assert_eq!(starts.len(), 2, "{lines}");
    assert!(
        starts[0].starts_with(":1: ") && starts[1].starts_with(":4: "),
        "{lines}"
    );
    assert!(
        lines.ends_with(&format!("{good}: ok, 1 check\n")),
        "{lines}"
    );
}

#[test]
fn wrong_arguments_are_wrong_usage() {
    let wrong: [&[&str]; 9] = [
        &["completions", "no-such-shell"],
        &["list", "no-such-kind"],
        &[],
        &["run", "--no-such-option"],
        &["run", "--timeout", "never"],
        &["run", "--modules", "x"],
        &["matrix", "--iommu", "arm"],
        &["matrix", "--quick", "--cpu", "EPYC"],
        &["matrix", "--cpu", "host"],
    ];
    for arguments in wrong {
        assert_eq!(
            peerbar(arguments).unwrap().status.code(),
            Some(2),
            "{arguments:?}"
        );
    }
}
