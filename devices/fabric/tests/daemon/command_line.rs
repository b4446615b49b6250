//! The daemon as a program.

use std::process::Stdio;

use rustix::process::Signal;

use crate::process::{Daemon, program};

#[test]
fn it_ends_well_when_asked_to_and_leaves_no_socket() {
    let mut daemon = Daemon::start(&[]);
    daemon.signal(Signal::TERM);
    assert!(daemon.child.wait().unwrap().success());
    assert!(!daemon.path.exists());
    assert!(!daemon.folder.path().join("control").exists());
}

#[test]
fn socket_in_use_or_wrong_rule_is_one_clear_line() {
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
    assert!(words.starts_with("peerbar-fabric: socket path "), "{words}");
    assert!(words.contains("in use by a live server"), "{words}");
    assert_eq!(words.lines().count(), 1);
    let (status, words) = run(&["--impair", "a->b lossy"]);
    assert_eq!(status, Some(2));
    assert!(words.contains("\"lossy\", which is no effect"), "{words}");
    let (status, words) = run(&["--record", "/nowhere/record"]);
    assert_eq!(status, Some(69));
    assert!(
        words.contains("cannot make the record /nowhere/record"),
        "{words}"
    );
}
