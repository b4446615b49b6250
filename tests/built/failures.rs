//! Runs that fail: the messages for the user, and that nothing is left behind.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use peerbar_lab::artifacts::{Artifacts, Own};
use peerbar_lab::guest_needs::GuestNeeds;
use peerbar_lab::signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::launched::Launched;
use crate::own_guest::{wrapper, write_script};
use crate::{PEERBAR, peerbar};

/// A scenario whose only check, unless a word of it is replaced, takes longer than any test.
const SCENARIO: &str = r#"
name = "failure"
timeout = "5m"
tools = true

[machine]
kernel-parameters = ""

[[nvme]]
name = "disk"
namespaces = [{ ram = "16M" }]

[[check]]
name = "long"
kind = "command"
run = "sleep 1000"
"#;

/// Starts `scenario`.
fn start(scenario: &str) -> anyhow::Result<Launched> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("failure.toml"), scenario)?;
    Launched::start(folder, &["run", "--verbose", "failure.toml"])
}

/// Returns the processes that the launcher has started, with their command lines.
pub(crate) fn children(run: &Launched) -> anyhow::Result<Vec<(String, Pid)>> {
    let launcher = run.launcher.id();
    let list = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children"))?;
    let named = |pid: &str| {
        let name = fs::read_to_string(format!("/proc/{pid}/cmdline"))?;
        let pid = Pid::from_raw(pid.parse()?).context("no pid")?;
        Ok((name, pid))
    };
    list.split_whitespace().map(named).collect()
}

fn watched(children: &[(String, Pid)]) -> anyhow::Result<Vec<OwnedFd>> {
    children
        .iter()
        .map(|(_, pid)| Ok(pidfd_open(*pid, PidfdFlags::empty())?))
        .collect()
}

fn ends(process: &OwnedFd) -> anyhow::Result<bool> {
    let limit = Timespec {
        tv_sec: 30,
        tv_nsec: 0,
    };
    Ok(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit))? == 1)
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn failed_check_and_warning_of_the_kernel_are_exit_code_1_and_both_named() {
    let line = "echo strange; echo '<4>WARNING: made up' > /dev/kmsg; exit 3";
    let mut run = start(&SCENARIO.replace("sleep 1000", line)).unwrap();
    let (code, results, progress) = run.end().unwrap();
    assert_eq!(code, Some(1), "{progress}");
    let verdict = run.kept("verdict").unwrap();
    assert!(results.contains(verdict.trim_end()), "{results}");
    assert!(
        verdict.starts_with("failed: 1 of 1 checks did not pass: long; the console says: "),
        "{verdict}"
    );
    assert!(verdict.ends_with("WARNING: made up\n"), "{verdict}");
    assert!(progress.contains("strange"), "{progress}");
    assert!(
        progress.contains("lines of the console, the rest is in"),
        "{progress}"
    );
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn a_panic_is_a_dead_guest() {
    let parameters = r#"kernel-parameters = "rdinit=/no/such/init""#;
    let mut run = start(&SCENARIO.replace(r#"kernel-parameters = """#, parameters)).unwrap();
    let (code, results, progress) = run.end().unwrap();
    assert_eq!(code, Some(255), "{progress}");
    assert!(
        results.contains("guest died: the report ends before its plan line"),
        "{results}"
    );
    assert!(progress.contains("Kernel panic"), "{progress}");
    assert!(run.kept("console.log").unwrap().contains("Kernel panic"));
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn guest_that_is_not_done_meets_the_time_limit() {
    let mut run = start(&SCENARIO.replace("5m", "1s")).unwrap();
    let (code, results, progress) = run.end().unwrap();
    assert_eq!(code, Some(124), "{progress}");
    assert!(
        results.contains("timed out: the guest did not finish within 1 s"),
        "{results}"
    );
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn a_dead_server_is_a_failed_run() {
    let mut run = start(SCENARIO).unwrap();
    run.wait_until_it_says("peerbar-agent: command").unwrap();
    let children = children(&run).unwrap();
    let server = children
        .iter()
        .find(|(name, _)| name.contains("peerbar-nvme"))
        .unwrap();
    kill_process(server.1, Signal::KILL).unwrap();
    let (code, results, progress) = run.end().unwrap();
    assert_eq!(code, Some(1), "{results}{progress}");
    let words = "failed: server disk ended (signal: 9 (SIGKILL))";
    assert!(results.contains(words), "{results}");
    assert_eq!(run.sockets_left().unwrap(), 0);
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn guest_that_dies_of_its_server_fails_by_server() {
    let mut run = start(SCENARIO).unwrap();
    run.wait_until_it_says("the guest is ready").unwrap();
    let children = children(&run).unwrap();
    let of_server = |(name, _): &&(String, Pid)| name.contains("peerbar-nvme");
    let server = children.iter().find(of_server).unwrap();
    let qemu = children.iter().find(|child| !of_server(child)).unwrap();
    let ended = pidfd_open(server.1, PidfdFlags::empty()).unwrap();
    kill_process(server.1, Signal::TERM).unwrap();
    assert!(ends(&ended).unwrap());
    // The launcher may have ended it already, because of its server.
    let _ = kill_process(qemu.1, Signal::KILL);
    let (code, results, progress) = run.end().unwrap();
    assert_eq!(code, Some(1), "{results}{progress}");
    let words = "failed: server disk ended (exit status: 0)";
    assert!(results.contains(words), "{results}");
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn a_signal_ends_everything_in_order() {
    // `signal_while_images_are_made_leaves_nothing` tests the other signals.
    let mut run = start(SCENARIO).unwrap();
    run.wait_until_it_says("the guest is ready").unwrap();
    let children = watched(&children(&run).unwrap()).unwrap();
    assert_eq!(children.len(), 2);
    kill_process(run.pid(), Signal::TERM).unwrap();
    assert_eq!(run.end().unwrap().0, Some(128 + 15));
    assert!(children.iter().all(|child| ends(child).unwrap()));
    assert_eq!(run.sockets_left().unwrap(), 0);
    assert_eq!(
        run.kept("verdict").unwrap(),
        "interrupted: ended by signal 15\n"
    );
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn readers_that_go_change_no_verdict() {
    let mut run = start(&SCENARIO.replace("sleep 1000", "false")).unwrap();
    run.wait_until_it_says("the guest is ready").unwrap();
    let Launched {
        mut launcher,
        stderr,
        folder,
    } = run;
    drop((launcher.stdout.take(), stderr));
    assert_eq!(launcher.wait().unwrap().code(), Some(1));
    let verdict = fs::read_to_string(folder.path().join("runs/latest/verdict")).unwrap();
    assert_eq!(verdict, "failed: 1 of 1 checks did not pass: long\n");
    assert_eq!(
        fs::read_dir(folder.path().join("sockets")).unwrap().count(),
        0
    );
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn a_killed_launcher_leaves_no_process() {
    let mut run = start(SCENARIO).unwrap();
    run.wait_until_it_says("the guest is ready").unwrap();
    let children = watched(&children(&run).unwrap()).unwrap();
    assert_eq!(children.len(), 2);
    kill_process(run.pid(), Signal::KILL).unwrap();
    run.end().unwrap();
    assert!(children.iter().all(|child| ends(child).unwrap()));
    assert!(!Path::new(&run.folder.path().join("runs/latest/verdict")).exists());
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn wrong_qemu_is_a_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["Cargo.toml", "/bin/true", "/no/such/qemu"] {
        let output = Command::new(&*PEERBAR)
            .args(["run", "--qemu", file])
            .env("PEERBAR_CACHE", folder.path())
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert!(
            words.contains(file) && words.lines().count() == 1,
            "{words}"
        );
    }
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn first_error_is_not_hidden_by_that_of_the_verdict() {
    let runs = tempfile::tempdir().unwrap();
    for (command, taken) in [("run", "console.log"), ("devices", "nvme-provider.log")] {
        let folder = runs.path().join(command);
        // Neither of the two can be written.
        fs::create_dir_all(folder.join(taken)).unwrap();
        fs::create_dir(folder.join("verdict")).unwrap();
        let output = Command::new(&*PEERBAR)
            .args([command, "root-ports", "--run-series", "x", "--run-folder"])
            .arg(&folder)
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(69), "{words}");
        let last = words.lines().last().unwrap();
        assert!(
            last.starts_with("peerbar: cannot ") && last.contains(taken),
            "{words}"
        );
        assert!(
            words.contains("without a verdict: cannot replace "),
            "{words}"
        );
    }
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn guest_that_kvm_gives_up_ends_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let agent = PEERBAR.with_file_name("peerbar-agent");
    let needs = GuestNeeds::default();
    let artifacts = Artifacts::prepare(&Own::default(), &needs, &agent, &signals::NONE).unwrap();
    let qemu = folder.path().join("qemu-system-x86_64");
    // In place of a guest: QEMU's message about one that KVM has given up. QEMU does not end.
    let script = wrapper(&artifacts, &[]).unwrap().replacen(
        '\n',
        "\ncase \"$*\" in *vfio-user-pci*socket*) echo 'KVM internal error. Suberror: 3' >&2; exec sleep 1000;; esac\n",
        1,
    );
    write_script(&qemu, &script).unwrap();
    let output = Command::new(&*PEERBAR)
        .args(["run", "root-ports", "--timeout", "5m", "--qemu"])
        .arg(&qemu)
        .current_dir(&folder)
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(255), "{words}");
    let reason = "guest died: KVM gave the guest up: KVM internal error. Suberror: 3 (";
    assert!(words.contains(reason), "{words}");
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn scenario_with_the_name_of_a_folder_is_the_shipped_one() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("root-ports")).unwrap();
    let output = peerbar(&["run", "root-ports", "--dry-run"], folder.path()).unwrap();
    assert!(output.status.success(), "{output:?}");
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(words.contains("peerbar-nvme"), "{words}");
}

/// Makes a program in place of mmdebstrap that writes its process id into a FIFO and works for
/// longer than any test.
fn endless_mmdebstrap(folder: &Path) -> anyhow::Result<()> {
    let script = folder.join("script");
    fs::write(
        &script,
        format!(
            "#!/bin/sh\necho $$ > {}/pid\nexec sleep 1000\n",
            folder.display()
        ),
    )?;
    // Another process writes it: a writable descriptor in the child of another test would prevent
    // its start.
    let copied = Command::new("install")
        .args([&script, &folder.join("mmdebstrap")])
        .status()?;
    let fifo = Command::new("mkfifo").arg(folder.join("pid")).status()?;
    ensure!(copied.success() && fifo.success());
    Ok(())
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn signal_while_images_are_made_leaves_nothing() {
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15)] {
        let folder = tempfile::tempdir().unwrap();
        endless_mmdebstrap(folder.path()).unwrap();
        let cache = folder.path().join("cache");
        let start = || {
            Command::new(&*PEERBAR)
                .arg("run")
                .env("PEERBAR_CACHE", &cache)
                .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()))
                .current_dir(folder.path())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let mut launcher = start();
        let pid = fs::read_to_string(folder.path().join("pid")).unwrap();
        let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
        let mmdebstrap = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        // The second launcher waits for the first.
        let mut waiting = start();
        let mut line = String::new();
        let mut stderr = BufReader::new(waiting.stderr.take().unwrap());
        stderr.read_line(&mut line).unwrap();
        assert!(
            line.contains("which process ") && line.contains(" (peerbar run) builds"),
            "{line}"
        );
        kill_process(Pid::from_child(&waiting), signal).unwrap();
        assert_eq!(waiting.wait().unwrap().code(), Some(128 + number));
        kill_process(Pid::from_child(&launcher), signal).unwrap();
        let mut words = String::new();
        let mut stderr = launcher.stderr.take().unwrap();
        stderr.read_to_string(&mut words).unwrap();
        assert_eq!(launcher.wait().unwrap().code(), Some(128 + number));
        assert!(
            words.ends_with(&format!("peerbar: ended by signal {number}\n")),
            "{words}"
        );
        assert!(ends(&mmdebstrap).unwrap());
        let mut left: Vec<_> = fs::read_dir(&cache)
            .unwrap()
            .map(|found| found.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["lock", "mmdebstrap.log"]);
    }
}
