//! A child behind the parent-death wrapper dies with its parent, however that dies, and has no more rights than it needs.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

const PEERBAR: &str = env!("CARGO_BIN_EXE_peerbar");

#[test]
fn killed_parent_ends_its_child() {
    let script = format!("'{PEERBAR}' die-with-parent $$ sh -c 'echo $$; exec sleep 60' & wait");
    let mut parent = Command::new("sh")
        .args(["-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let pid = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
    let child = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    kill_process(Pid::from_child(&parent), Signal::KILL).unwrap();
    parent.wait().unwrap();
    let limit = Timespec {
        tv_sec: 30,
        tv_nsec: 0,
    };
    let ended = poll(&mut [PollFd::new(&child, PollFlags::IN)], Some(&limit)).unwrap();
    assert_eq!(ended, 1, "the child outlives its parent");
}

#[test]
fn other_parent_is_refused() {
    let output = Command::new(PEERBAR)
        .args(["die-with-parent", "1", "true"])
        .process_group(0)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(69));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "peerbar: the launcher 1 is gone\n"
    );
}

#[test]
fn missing_program_is_named() {
    let own = std::process::id().to_string();
    let output = Command::new(PEERBAR)
        .args(["die-with-parent", &own, "/no/such/program"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(69));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        words.starts_with("peerbar: cannot start /no/such/program: "),
        "{words}"
    );
}

#[test]
fn confined_child_gains_and_inherits_nothing() {
    let own = std::process::id().to_string();
    let inherited = File::open("/dev/null").unwrap();
    fcntl_setfd(&inherited, FdFlags::empty()).unwrap();
    let number = inherited.as_raw_fd();
    let script =
        format!("[ -e /proc/$$/fd/{number} ] && echo inherited; grep NoNewPrivs: /proc/$$/status");
    let child = |option: &[&str]| {
        let mut command = Command::new(PEERBAR);
        command.arg("die-with-parent").args(option).arg(&own);
        let output = command.args(["sh", "-c", &script]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(child(&["--confined"]), "NoNewPrivs:\t1\n");
    assert!(child(&[]).starts_with("inherited\n"));
}
