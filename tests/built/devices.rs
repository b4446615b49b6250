//! The chapter "Your own QEMU or libvirt", command by command: devices for machines that this test starts itself.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::own_guest::OwnGuest;

const CHAPTER: &str = include_str!("../../docs/src/own-qemu.md");
const SCENARIO: &str = include_str!("../../docs/src/two-disks.toml");

/// Returns the commands of a section of the chapter: its blocks of shell.
pub(crate) fn commands(section: &str) -> Vec<&'static str> {
    let rest = CHAPTER.split_once(section).map_or("", |(_, rest)| rest);
    let section = rest.split("\n## ").next().unwrap_or_default();
    let blocks = section.split("\n```sh\n").skip(1);
    blocks
        .filter_map(|block| block.split("\n```").next())
        .collect()
}

/// A program that runs until it is asked to end.
pub(crate) struct Serving {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Serving {
    /// Starts it. Returns its output up to the line with `ready`.
    pub(crate) fn start(
        guest: &OwnGuest,
        folder: &Path,
        command: &str,
        ready: &str,
    ) -> anyhow::Result<(Self, String)> {
        let mut shell = guest.shell(folder, &format!("exec {command}"));
        let mut child = shell.stdout(Stdio::piped()).spawn()?;
        let stdout = BufReader::new(child.stdout.take().context("no stdout")?);
        let mut serving = Self { child, stdout };
        let mut printed = String::new();
        while !printed
            .lines()
            .last()
            .is_some_and(|line| line.contains(ready))
        {
            let more = serving.stdout.read_line(&mut printed)? > 0;
            ensure!(more, "{command} never says {ready}: {printed}");
        }
        Ok((serving, printed))
    }

    /// Ends it as Ctrl-C does. Returns its exit code and its output since the start.
    pub(crate) fn end(mut self) -> anyhow::Result<(Option<i32>, String)> {
        kill_process(Pid::from_child(&self.child), Signal::INT)?;
        let mut printed = String::new();
        self.stdout.read_to_string(&mut printed)?;
        Ok((self.child.wait()?.code(), printed))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

#[test]
#[ignore = "boots guests; scripts/test runs it"]
fn own_qemu_gets_devices_one_machine_after_another() {
    let folder = tempfile::tempdir().unwrap();
    let guest = OwnGuest::make(folder.path()).unwrap();
    // The chapter's scenario, with a fault: a wrong address from block 32768 of the second disk on.
    let faulty = "name = \"disk1\"\nseed-fault = [\"unmapped:32768\"]";
    let scenario = SCENARIO.replace("name = \"disk1\"", faulty);
    fs::write(folder.path().join("two-disks.toml"), scenario).unwrap();
    let [devices, qemu] = commands("## All devices of a scenario")[..] else {
        panic!("not two commands");
    };
    let last = "disk1\",\"socket\"";
    let (serving, printed) = Serving::start(&guest, folder.path(), devices, last).unwrap();
    assert!(printed.contains("also in lab/qemu.args"), "{printed}");
    let expected = |text: &str| {
        [
            format!("disk0 has: {text}"),
            "disk0 reads what was written".to_owned(),
            "disk1 has a bad block".to_owned(),
            format!("disk1 has: {text}"),
            "disk1 reads what was written".to_owned(),
            "p2pmem: 1".to_owned(),
        ]
    };
    // The kernel probes the disks in parallel, so either may be first.
    let said = |qemu: &str| {
        let mut said = guest.said(folder.path(), qemu).unwrap();
        said.sort();
        said
    };
    assert_eq!(said(qemu), expected("nothing"));
    // The printed text itself, in place of the file with it.
    let pasted = printed.split_once('\n').unwrap().1.trim_end();
    let pasted = qemu.replace(
        "xargs -a lab/qemu.args peerbar qemu --",
        &format!("qemu-system-x86_64 {pasted}"),
    );
    assert!(
        pasted.contains("-device 'x3130-upstream") || pasted.contains("-device x3130-upstream"),
        "{pasted}"
    );
    // A trace of one disk changes nothing.
    let sockets = pasted.split("\"path\":\"").skip(1);
    let mut sockets = sockets.filter_map(|rest| rest.split('"').next());
    let server = sockets.find(|path| path.contains("disk0")).unwrap();
    let trace = format!("peerbar vfio-user trace {server} --listen traced.sock -o trace.txt 2>&1");
    let (trace, _) = Serving::start(&guest, folder.path(), &trace, "the client connects").unwrap();
    let traced = pasted.replace(&format!("\"{server}\""), "\"traced.sock\"");
    assert_eq!(said(&traced), expected("a guest was here"));
    check_trace(trace, folder.path()).unwrap();

    let (code, news) = serving.end().unwrap();
    assert_eq!(code, Some(0), "{news}");
    for device in ["disk0", "disk1"] {
        assert_eq!(
            news.matches(&format!("{device}: QEMU connects")).count(),
            2,
            "{news}"
        );
        assert_eq!(
            news.matches(&format!("{device}: QEMU leaves")).count(),
            2,
            "{news}"
        );
    }
    assert!(news.contains("disk1: payload so far: guest-ram "), "{news}");
    assert!(
        news.contains("DMAs failed") && news.contains("  FAULT at "),
        "{news}"
    );
    let left: Vec<_> = fs::read_dir(folder.path().join("lab")).unwrap().collect();
    assert_eq!(left.len(), 3, "only two files and the lock stay: {left:?}");
    let run = folder.path().join("runs/latest");
    let verdict = fs::read_to_string(run.join("verdict")).unwrap();
    assert_eq!(verdict, "ended by the user\n");
}

/// Checks the lines and the summary of a trace whose connection has ended.
fn check_trace(trace: Serving, folder: &Path) -> anyhow::Result<()> {
    let (code, summary) = trace.end()?;
    ensure!(code == Some(0), "{summary}");
    // Of a command's row: its number of requests, of errors, and of requests without an answer.
    let row = |command: &str| -> Option<[u64; 3]> {
        let rows = summary.lines();
        let row = rows.map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = row.into_iter().find(|row| row.first() == Some(&command))?;
        let numbers = row.get(1..4)?.iter().map(|number| number.parse().ok());
        numbers.collect::<Option<Vec<u64>>>()?.try_into().ok()
    };
    for (command, least) in [
        ("VERSION", 1),
        ("DEVICE_GET_INFO", 1),
        ("DEVICE_RESET", 1),
        ("DEVICE_SET_IRQS", 2),
        ("DMA_MAP", 2),
        ("REGION_WRITE", 100),
    ] {
        let [count, errors, unanswered] = row(command).with_context(|| summary.clone())?;
        ensure!(
            count >= least && errors == 0 && unanswered == 0,
            "{command}: {summary}"
        );
    }
    let lines = fs::read_to_string(folder.join("trace.txt"))?;
    for part in ["VERSION 0.0 max_", "MEMORY|MASTER", "MSI-X vector"] {
        ensure!(lines.contains(part), "{part}: {lines}");
    }
    ensure!(!lines.contains("MALFORMED"), "{lines}");
    Ok(())
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn single_device_is_one_option_for_qemu() {
    let folder = tempfile::tempdir().unwrap();
    let guest = OwnGuest::make(folder.path()).unwrap();
    let [nvme, qemu] = commands("## One device alone")[..] else {
        panic!("not two commands");
    };
    let (serving, _) = Serving::start(&guest, folder.path(), nvme, "ready").unwrap();
    let said = guest.said(folder.path(), qemu).unwrap();
    assert_eq!(
        said,
        [
            "disk0 has: nothing",
            "disk0 reads what was written",
            "p2pmem: 1"
        ]
    );
    assert_eq!(serving.end().unwrap().0, Some(0));
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn description_for_programs_has_sockets_and_events() {
    let folder = tempfile::tempdir().unwrap();
    let guest = OwnGuest::make(folder.path()).unwrap();
    fs::write(folder.path().join("two-disks.toml"), SCENARIO).unwrap();
    let command = "peerbar devices two-disks.toml --json";
    let (serving, line) = Serving::start(&guest, folder.path(), command, "ready").unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(ready["event"], "ready");
    let socket = ready["sockets"]["disk0"].as_str().unwrap();
    assert!(Path::new(socket).exists(), "{line}");
    let arguments = ready["arguments"].as_array().unwrap();
    assert!(
        arguments
            .iter()
            .any(|word| word.as_str().unwrap().contains(socket)),
        "{line}"
    );
    let domain = ready["domain"].as_str().unwrap();
    assert!(
        domain.contains("<source type=\"memfd\"/>") && domain.contains(socket),
        "{domain}"
    );
    let (code, _) = serving.end().unwrap();
    assert_eq!(code, Some(0));
    assert!(!Path::new(socket).exists());
}
