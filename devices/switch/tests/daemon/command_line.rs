//! The daemon as a program.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::raw::{Daemon, program};

#[test]
fn it_ends_well_when_asked_to_and_leaves_no_socket() {
    let mut daemon = Daemon::start(&[]);
    let pid = Pid::from_child(&daemon.child);
    kill_process(pid, Signal::TERM).unwrap();
    assert!(daemon.child.wait().unwrap().success());
    assert!(!daemon.path.exists());
}

#[test]
fn socket_in_use_or_wrong_link_is_one_clear_line() {
    let daemon = Daemon::start(&[]);
    let run = |words: &[&str]| {
        let mut command = program();
        command.arg("--socket-path").arg(&daemon.path).args(words);
        let output = command.stdin(Stdio::null()).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (status, words) = run(&[]);
    assert_eq!(status, Some(69));
    assert!(words.starts_with("peerbar-switch: socket path "), "{words}");
    assert!(words.contains("in use by a live server"), "{words}");
    assert_eq!(words.lines().count(), 1);
    let (status, words) = run(&["--link", "disk0=lossy"]);
    assert_eq!(status, Some(2));
    assert!(words.contains("none of route, redirect"), "{words}");
    let (status, words) = run(&["--pci-hole", "0x2000-0x1000"]);
    assert_eq!(status, Some(2));
    assert!(words.contains("is no FIRST-LAST"), "{words}");
}
